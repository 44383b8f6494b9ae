"""`noloco-node swarm`: a run spec, commented and valid, to share with all who join; the owner's signature below it."""

from __future__ import annotations

import os
import secrets
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from noloco_node.cli.program import pasteable
from noloco_node.config.model_config import read_model_config
from noloco_node.config.peer_list import PeerList, checked_peer, read_peer_list, signed_list
from noloco_node.config.presets import PRESETS, preset
from noloco_node.config.run_spec import RunSpec
from noloco_node.config.spec_file import build_run_spec, dump, load_run_spec, parse_run_spec
from noloco_node.config.spec_signing import replace_file, sign_spec_file, signed_text
from noloco_node.discovery.identity import Identity, load_identity
from noloco_node.errors import BadSpec

SEED_BITS = 48
INTERVALS_S = {"tiny": 10.0, "demo": 30.0}  # of the time clock; the others keep the run spec's default
START_IN_S = 30
DAY_S = 86_400
SIGN_ADVICE = "name the owner's key, or sign the run spec with it first: noloco-node swarm sign"
KEY_FILE = click.Path(path_type=Path, dir_okay=False)


@click.group()
def swarm() -> None:
    """Begin a new swarm, sign its run spec, say who may take part."""


@swarm.command()
@click.argument("path", type=click.Path(path_type=Path, dir_okay=False), default=Path("swarm.toml"))
@click.option("--preset", "base", type=click.Choice(PRESETS), default="demo", show_default=True, help="Start from.")
@click.option("--name", help="Name of the swarm; default the preset's.")
@click.option("--seed", type=click.IntRange(min=0), help="Run seed; drawn at random when not given.")
@click.option("--stages", type=click.IntRange(min=1), help="Pipeline stages.")
@click.option("--replicas", type=click.IntRange(min=1), help="Seats per stage.")
@click.option("--outer-steps", type=click.IntRange(min=1), help="Outer steps until the run ends.")
@click.option(
    "--start-seats", type=click.IntRange(min=0), help="A new run waits for so many nodes.  [default: the preset's, 0]"
)
@click.option(
    "--clock",
    type=click.Choice(["time", "steps"]),
    help="What says that an outer step is due: the hour, for machines of unlike speed, or the steps made "
    "(for like machines).  [default: the preset's, steps]",
)
@click.option(
    "--interval", "interval_s", type=float, help="Seconds per outer step (clock time).  [default: the preset's]"
)
@click.option(
    "--start-in",
    "start_in_s",
    type=click.IntRange(min=0),
    default=START_IN_S,
    show_default=True,
    help="Seconds until outer step 0 begins, for nodes to gather (clock time).",
)
@click.option(
    "--model-config",
    type=click.Path(path_type=Path),
    help="Hugging Face config.json to train instead of the preset's model.",
)
@click.option(
    "--owner-key",
    type=KEY_FILE,
    help="Key file of the owner: the run spec names and is signed by it.  [default: an open run]",
)
def new(path: Path, base: str, owner_key: Path | None, **choices: Any) -> None:
    """Write a run spec to PATH (default swarm.toml). An existing file is never overwritten."""
    if choices["interval_s"] is not None and choices["clock"] != "time":
        raise click.UsageError("--interval goes with --clock time")
    spec = _spec(base, path, choices)
    text = dump(spec, config_file=_relative(choices["model_config"], path))
    if owner_key is not None:
        text = signed_text(text, path.absolute().parent, load_identity(owner_key))
        spec = parse_run_spec(text, path.absolute().parent)
    _write(path, text)
    click.echo(f"wrote {path} (run {spec.run_id})")
    for line in _words(spec):
        click.echo(line)
    for line in (
        f"the first node:  noloco-node run --spec {path} --data-dir DIR",
        "its ADDRESS:     noloco-node status --data-dir DIR --address --wait 120",
        f"all others:      noloco-node run --spec {path} --data-dir DIR --initial-peers ADDRESS",
    ):
        click.echo(pasteable(line))
    click.echo("on one machine:  each its own --data-dir, --listen /ip4/127.0.0.1/tcp/PORT and --metrics-port")


@swarm.command()
@click.argument("path", type=click.Path(path_type=Path, dir_okay=False), default=Path("swarm.toml"))
@click.option("--key", type=KEY_FILE, required=True, help="Key file of the owner, as `noloco-node identity` makes it.")
def sign(path: Path, key: Path) -> None:
    """Name the key's owner in the run spec PATH and sign it. Naming an owner makes it another run."""
    spec = sign_spec_file(path, load_identity(key))
    click.echo(f"signed {path} (run {spec.run_id}, owner {spec.swarm.owner})")


@swarm.command()
@click.argument("path", type=click.Path(path_type=Path, dir_okay=False), default=Path("peers.json"))
@click.option("--spec", type=click.Path(path_type=Path, dir_okay=False), default=Path("swarm.toml"), show_default=True)
@click.option("--key", type=KEY_FILE, required=True, help="Key file of the run's owner.")
@click.option("--allow", multiple=True, help="Peer id that may take part; from the first one on nobody else may.")
@click.option("--deny", multiple=True, help="Peer id that may not.")
@click.option("--forget", multiple=True, help="Peer id to take off both sides.")
@click.option("--days", type=click.IntRange(min=1), help="No node takes the list up after so many.  [default: never]")
def peers(path: Path, spec: Path, key: Path, days: int | None, **names: tuple[str, ...]) -> None:
    """Write or change PATH (default peers.json), the signed list of who may take part.

    Each change has a greater serial; nodes that run with --peer-list take it up within seconds.
    """
    changed = _changed_list(path, load_run_spec(spec), load_identity(key), days, names)
    allowed = "everybody else" if changed.allow is None else f"{len(changed.allow)} allowed"
    click.echo(f"wrote {path} (serial {changed.serial}): {len(changed.deny)} denied, {allowed}")


def _changed_list(
    path: Path, spec: RunSpec, owner: Identity, days: int | None, names: dict[str, tuple[str, ...]]
) -> PeerList:
    if spec.swarm.owner != owner.peer_id:
        raise BadSpec(f"the run's owner is {spec.swarm.owner or 'nobody'}, the key is {owner.peer_id}", SIGN_ADVICE)
    known = PeerList(spec.run_id, serial=0)
    if path.exists():
        known = read_peer_list(path, run=spec.run_id, owner=owner.peer_id)
    expires_unix_s = int(time.time()) + days * DAY_S if days else 0
    chosen = {side: [checked_peer(name, side) for name in found] for side, found in names.items()}
    made = replace(known, expires_unix_s=expires_unix_s).changed(**chosen)
    replace_file(path, signed_list(made, owner))
    return made


def _words(spec: RunSpec) -> list[str]:
    """What the volunteers are in for: seats, and when the run begins and ends."""
    swarm, outer = spec.swarm, spec.outer
    table = f"{swarm.num_stages} stages x {swarm.num_replicas} replicas"
    seats = f"seats:  {swarm.num_stages * swarm.num_replicas} ({table}); a stage needs a node, and two to mix weights"
    if outer.clock == "steps":
        begin = f"{outer.start_seats} seats are taken" if outer.start_seats else "each stage has a node"
        end = f"{outer.total_outer_steps} of them" if outer.total_outer_steps else "no end"
        return [seats, f"steps:  an outer step every {outer.inner_steps} inner steps, {end}, once {begin}"]
    end_s = outer.start_unix_s + outer.total_outer_steps * outer.outer_interval_s
    end = f"until {_utc(end_s)}" if outer.total_outer_steps else "no end"
    every = f"an outer step every {outer.outer_interval_s:g} s from {_utc(outer.start_unix_s)}"
    return [seats, f"time:   {every}, {end}, whoever is there"]


def _utc(unix_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(unix_s))


def _spec(base: str, path: Path, choices: dict[str, Any]) -> RunSpec:
    seed = choices["seed"] if choices["seed"] is not None else secrets.randbits(SEED_BITS)
    swarm_keys = {
        "name": choices["name"],
        "seed": seed,
        "num_stages": choices["stages"],
        "num_replicas": choices["replicas"],
    }
    on_time = choices["clock"] == "time"
    outer = {
        "total_outer_steps": choices["outer_steps"],
        "start_seats": choices["start_seats"],
        "clock": choices["clock"],
        "outer_interval_s": choices["interval_s"] or (INTERVALS_S.get(base) if on_time else None),
        "start_unix_s": float(int(time.time()) + choices["start_in_s"]) if on_time else None,
    }
    spec = preset(base, swarm=_given(swarm_keys), outer=_given(outer))
    return _with_model(spec, choices["model_config"])


def _given(keys: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in keys.items() if value is not None}


def _with_model(spec: RunSpec, model_config: Path | None) -> RunSpec:
    if model_config is None:
        return spec
    try:
        model = read_model_config(model_config)
    except ValueError as error:
        raise BadSpec(str(error), "name a Hugging Face config.json") from error
    return build_run_spec(spec.model_dump() | {"model": model}, spec.folder)


def _relative(model_config: Path | None, path: Path) -> str:
    if model_config is None:
        return ""
    return os.path.relpath(model_config.absolute(), path.absolute().parent)


def _write(path: Path, text: str) -> None:
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise BadSpec(f"{path} exists already", "choose another path or remove it yourself") from error
    except OSError as error:
        raise BadSpec(f"{path} cannot be written: {error.strerror}", "choose another path") from error
