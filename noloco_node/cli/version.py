"""`noloco-node version`: what runs here, read from package metadata without importing the packages."""

from __future__ import annotations

import json
import platform
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed

import click

from noloco_node import __version__
from noloco_node.core.limits import PROTOCOL_VERSION

LIBRARIES = ("torch", "transformers", "datasets", "hivemind", "grpcio", "protobuf", "numpy")


def versions() -> dict[str, str | int]:
    found: dict[str, str | int] = {
        "noloco-node": __version__,
        "protocol_version": PROTOCOL_VERSION,
        "python": platform.python_version(),
        "machine": platform.machine(),
    }
    return found | {name: _installed(name) for name in LIBRARIES}


def _installed(name: str) -> str:
    try:
        return installed(name)
    except PackageNotFoundError:
        return "missing"


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def version(as_json: bool) -> None:
    """Show versions of the node, the protocol and its libraries."""
    found = versions()
    if as_json:
        click.echo(json.dumps(found))
        return
    for name, value in found.items():
        click.echo(f"{name:17} {value}")
