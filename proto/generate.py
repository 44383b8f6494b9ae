"""Generates noloco_node/wire from proto/noloco/v1: `python proto/generate.py [--check]`.

Owns the way from .proto to committed Python: grpcio-tools 1.71.2 (its code runs on protobuf 5.29 and later), one flat
package `noloco_node.wire`, imports rewritten to it. `--check` compares with the committed files, exit code 1 on drift.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

PROTO_ROOT = Path(__file__).resolve().parent
WIRE = PROTO_ROOT.parent / "noloco_node" / "wire"
TOOLS_VERSION = "1.71.2"
GENERATED = ("*_pb2.py", "*_pb2.pyi", "*_pb2_grpc.py")


def run_protoc(out: Path) -> None:
    """Compile all files; those without services get no `_pb2_grpc` module."""
    well_known = files("grpc_tools") / "_proto"
    sources = sorted(PROTO_ROOT.glob("noloco/v1/*.proto"))
    with_services = [path for path in sources if re.search(r"^service ", path.read_text(), re.MULTILINE)]
    include = [f"-I{PROTO_ROOT}", f"-I{well_known}"]
    jobs = [(sources, [f"--python_out={out}", f"--pyi_out={out}"]), (with_services, [f"--grpc_python_out={out}"])]
    for paths, flags in jobs:
        if paths and protoc.main(["protoc", *include, *flags, *map(str, paths)]) != 0:
            raise SystemExit("protoc failed")


def flatten(text: str) -> str:
    """Let generated modules find one another inside the package."""
    return text.replace("from noloco.v1 import", "from noloco_node.wire import")


def generate() -> dict[str, str]:
    """File name -> content of everything that belongs into the wire package."""
    with tempfile.TemporaryDirectory() as folder:
        run_protoc(Path(folder))
        made = Path(folder) / "noloco" / "v1"
        return {path.name: flatten(path.read_text()) for path in sorted(made.iterdir()) if path.is_file()}


def committed() -> dict[str, str]:
    return {path.name: path.read_text() for pattern in GENERATED for path in WIRE.glob(pattern)}


def write(made: dict[str, str]) -> None:
    for name in committed().keys() - made.keys():
        (WIRE / name).unlink()
    for name, text in made.items():
        (WIRE / name).write_text(text)


def drift(made: dict[str, str]) -> list[str]:
    have = committed()
    return sorted(name for name in made.keys() | have.keys() if made.get(name) != have.get(name))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only; exit code 1 on drift")
    check = parser.parse_args().check
    if version("grpcio-tools") != TOOLS_VERSION:
        print(f"grpcio-tools {TOOLS_VERSION} is needed, found {version('grpcio-tools')}", file=sys.stderr)
        return 1
    made = generate()
    if not check:
        write(made)
        return 0
    differing = drift(made)
    for name in differing:
        print(f"differs from proto/: noloco_node/wire/{name} (run `python proto/generate.py`)", file=sys.stderr)
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
