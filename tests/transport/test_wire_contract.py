"""The committed wire package is what proto/ says, generated for the oldest protobuf we admit."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from noloco_node import wire

ROOT = Path(__file__).parents[2]
GENERATOR = ROOT / "proto" / "generate.py"


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("proto_generate", GENERATOR)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_committed_code_is_what_the_generator_makes() -> None:
    done = subprocess.run([sys.executable, GENERATOR, "--check"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_drift_is_named(generator: ModuleType) -> None:
    made = generator.committed()
    made["node_pb2.py"] += "# changed"
    made["new_pb2.py"] = ""
    del made["state_pb2.py"]
    assert generator.drift(made) == ["new_pb2.py", "node_pb2.py", "state_pb2.py"]


def test_generated_code_runs_on_protobuf_5_29() -> None:
    for path in Path(wire.__file__).parent.glob("*_pb2.py"):
        assert re.search(r"# Protobuf Python Version: 5\.29\.", path.read_text()), path.name
