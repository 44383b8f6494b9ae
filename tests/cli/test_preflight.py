"""What is said of a start within its first second: the plainest cause, before anything heavy is imported."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from noloco_node.cli.preflight import check_start
from noloco_node.config.node_config import NodeConfig
from noloco_node.config.presets import preset
from noloco_node.core import limits
from noloco_node.discovery.identity import IdentityLock, load_or_create_identity
from noloco_node.discovery.settings import PID_FILE
from noloco_node.driver.data_dir_lock import data_dir_locked
from noloco_node.errors import BadConfig, IdentityInUse, PortInUse

SPEC = preset("tiny")
HEAVY = ("torch", "transformers", "datasets", "grpc", "hivemind", "numpy", "uvloop")


@pytest.fixture
def taken() -> Iterator[int]:
    """A port of 127.0.0.1 on which somebody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PORT_WAIT_S", 0.0)


def config(folder: Path, port: int = 0, metrics_port: int = 0) -> NodeConfig:
    return NodeConfig(data_dir=folder, listen=(f"/ip4/127.0.0.1/tcp/{port}",), metrics_port=metrics_port)


def test_node_started_twice_hears_of_its_data_directory_although_the_ports_are_taken(
    tmp_path: Path, taken: int
) -> None:
    with data_dir_locked(tmp_path), pytest.raises(BadConfig, match=f"is in use by process {os.getpid()}") as refused:
        check_start(config(tmp_path, taken, taken), SPEC)
    assert "--data-dir" in refused.value.advice


def test_key_in_use_elsewhere_is_said_before_the_ports(tmp_path: Path, taken: int) -> None:
    load_or_create_identity(tmp_path / "identity.key")
    key = IdentityLock(tmp_path / "identity.key", tmp_path)
    key.acquire()
    with pytest.raises(IdentityInUse):
        check_start(config(tmp_path, taken), SPEC)
    key.release()
    check_start(config(tmp_path), SPEC)


def test_taken_listen_port_is_named_with_its_owner(tmp_path: Path, taken: int) -> None:
    with pytest.raises(PortInUse, match=f"{taken} is in use by process {os.getpid()}") as refused:
        check_start(config(tmp_path, taken), SPEC)
    assert "--listen" in refused.value.advice


def test_port_that_the_daemon_of_a_killed_node_may_hold_is_left_to_the_start(tmp_path: Path, taken: int) -> None:
    (tmp_path / PID_FILE).write_text("{}")
    check_start(config(tmp_path, taken), SPEC)


def test_listen_address_that_is_none_is_refused(tmp_path: Path) -> None:
    bad = NodeConfig(data_dir=tmp_path, listen=("/ip4/127.0.0.1.1/tcp/1",), metrics_port=0)
    with pytest.raises(BadConfig, match="listen address"):
        check_start(bad, SPEC)


def test_checks_of_a_start_import_nothing_heavy() -> None:
    code = f"import sys, noloco_node.cli.preflight; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
