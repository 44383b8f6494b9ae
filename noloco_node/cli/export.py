"""`noloco-node export`: from checkpoints, or from the live swarm, to a Hugging Face model folder."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from noloco_node.cli.program import pasteable
from noloco_node.cli.progress import say
from noloco_node.config.run_spec import RunSpec
from noloco_node.config.spec_file import load_run_spec

FOLDER = click.Path(path_type=Path, file_okay=False)


@click.command()
@click.option(
    "--checkpoints",
    "folders",
    type=click.Path(path_type=Path),
    multiple=True,
    help="Data directory of a node, or any folder above or at its checkpoints; may be repeated.",
)
@click.option("--from-swarm", is_flag=True, help="Fetch the newest checkpoint of every stage from running nodes.")
@click.option("--peer", "peers", multiple=True, help="Address of a running node (with --from-swarm); may be repeated.")
@click.option(
    "--data-dir",
    help="With --from-swarm: show the key of this node, which is on a closed swarm's list and must not run meanwhile.",
)
@click.option("--spec", "spec_file", type=click.Path(path_type=Path), help="Run spec; needed with --from-swarm.")
@click.option("--out", type=FOLDER, required=True, help="Folder for the model; must be empty or new.")
def export(
    folders: tuple[Path, ...],
    from_swarm: bool,
    peers: tuple[str, ...],
    data_dir: str | None,
    spec_file: Path | None,
    out: Path,
) -> None:
    """Average the replicas of every stage and write a model that Hugging Face tools load."""
    _check_choices(folders, from_swarm, peers, spec_file)
    if data_dir and not from_swarm:
        raise click.UsageError("--data-dir goes with --from-swarm; a node's own checkpoints are --checkpoints DATA_DIR")
    if out.exists() and any(out.iterdir()):
        raise click.UsageError(f"--out {out} is not empty")
    spec = load_run_spec(spec_file) if spec_file else None
    if not from_swarm:
        _export(_local(folders), spec, out)
        return
    assert spec is not None, "_check_choices asks for it"
    with tempfile.TemporaryDirectory(prefix="noloco-export-") as folder:
        _export(_fetched(spec, peers, _key_in(data_dir), Path(folder)), spec, out)


def _check_choices(folders: tuple[Path, ...], from_swarm: bool, peers: tuple[str, ...], spec: Path | None) -> None:
    if bool(folders) == from_swarm:
        raise click.UsageError("give either --checkpoints or --from-swarm")
    if from_swarm and not (peers and spec):
        raise click.UsageError("--from-swarm needs --peer and --spec")
    if peers and not from_swarm:
        raise click.UsageError("--peer goes with --from-swarm")


def _local(folders: tuple[Path, ...]) -> list[Path]:
    from noloco_node.cli.checkpoints import checkpoints_in

    return checkpoints_in(folders)


def _key_in(data_dir: str | None) -> Path | None:
    """The key file of that data directory; None: a key of its own for this command."""
    from noloco_node.config.node_sources import load_node_config
    from noloco_node.discovery.identity import load_identity

    if data_dir is None:
        return None
    path = load_node_config({"data_dir": data_dir}).identity_file
    assert path is not None, "NodeConfig fills it in"
    return load_identity(path).path


def _fetched(spec: RunSpec, peers: tuple[str, ...], key_file: Path | None, folder: Path) -> list[Path]:
    from noloco_node.cli.swarm_fetch import fetch_checkpoints

    return fetch_checkpoints(spec, peers, folder, key_file)


def _export(paths: list[Path], spec: RunSpec | None, out: Path) -> None:
    from noloco_node.cli.checkpoints import of_run
    from noloco_node.training.export import export_model

    found = of_run(paths, spec)
    say(f"averaging {len(found.files)} checkpoints of {found.meta.num_stages} stages")
    export_model(found.files.values(), out)
    seats = ", ".join(str(seat) for seat in sorted(found.files))
    click.echo(f"averaged seats {seats} of run {found.meta.run}")
    click.echo(pasteable(f"wrote {out}; try: noloco-node generate {out} --prompt 'def '"))
