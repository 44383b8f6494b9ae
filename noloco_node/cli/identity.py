"""`noloco-node identity`: the key that makes this node itself. Shows where it lies, makes, copies and restores it.

Key bytes go from file to file, never to a terminal or a log.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from noloco_node.config.node_sources import load_node_config
from noloco_node.discovery.identity import KEY_FILE_MODE, load_identity, load_or_create_identity
from noloco_node.errors import BadIdentity

FILE = click.Path(path_type=Path, dir_okay=False)


@click.group(invoke_without_command=True)
@click.option("--data-dir", help="Data directory of the node. [env NOLOCO_DATA_DIR]")
@click.option("--identity-file", help="The key file itself. [env NOLOCO_IDENTITY_FILE]")
@click.option("--config", help="node.toml. [env NOLOCO_CONFIG]")
@click.option("--create", is_flag=True, help="Make a key if there is none.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.pass_context
def identity(
    context: click.Context,
    data_dir: str | None,
    identity_file: str | None,
    config: str | None,
    create: bool,
    as_json: bool,
) -> None:
    """Show the node's peer id and where its key lies; export or import the key."""
    chosen = load_node_config({"data_dir": data_dir, "identity_file": identity_file}, config)
    path = chosen.identity_file
    assert path is not None, "NodeConfig fills it in"
    context.obj["identity_file"] = path
    if context.invoked_subcommand is None:
        _show(path, create, as_json)


@identity.command("export")
@click.argument("file", type=FILE)
@click.pass_context
def export_key(context: click.Context, file: Path) -> None:
    """Copy the key to FILE (mode 0600). Whoever has it can act as this node."""
    found = load_identity(context.obj["identity_file"])
    _copy(found.path, file)
    click.echo(f"exported {found.peer_id} to {file.absolute()}")


@identity.command("import")
@click.argument("file", type=FILE)
@click.pass_context
def import_key(context: click.Context, file: Path) -> None:
    """Make the key in FILE this node's own. A key that is there already is never replaced."""
    load_identity(file)
    path: Path = context.obj["identity_file"]
    _make_folder(path.parent)
    _copy(file, path)
    click.echo(f"imported {load_identity(path).peer_id} to {path}")


def _show(path: Path, create: bool, as_json: bool) -> None:
    if not path.exists() and not create:
        raise BadIdentity(f"there is no key at {path}", "make one with --create, or start the node")
    found = load_or_create_identity(path)
    if as_json:
        click.echo(json.dumps({"peer_id": found.peer_id, "identity_file": str(path)}))
        return
    click.echo(f"peer id   {found.peer_id}\nkey file  {path}")


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadIdentity(f"cannot make {folder}: {error.strerror}", "choose a folder that can be written") from error


def _copy(source: Path, target: Path) -> None:
    """Whole or not at all, readable by the owner only, never over another file."""
    try:
        content = source.read_bytes()
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, KEY_FILE_MODE)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError as error:
        raise BadIdentity(f"{target} exists already", "move it away first, if it is really to be replaced") from error
    except OSError as error:
        raise BadIdentity(f"{target} cannot be written: {error.strerror}", "choose another path") from error
