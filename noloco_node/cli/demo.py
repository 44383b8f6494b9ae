"""`noloco-node demo`: a whole swarm of real node processes on this machine, from nothing to an exported model."""

from __future__ import annotations

import contextlib
import json
import signal
from pathlib import Path
from types import FrameType
from typing import Any

import click

from noloco_node.cli.program import pasteable

PERPLEXITY_MAX = 10.0  # of the averaged model, after a run as it comes
AS_IT_COMES = {"stages": 2, "replicas": 2, "outer_steps": None, "inner_steps": None, "preset": "demo"}


@click.command()
@click.option("--stages", default=2, show_default=True, type=click.IntRange(1, 64), help="pipeline stages")
@click.option("--replicas", default=2, show_default=True, type=click.IntRange(1, 64), help="replicas of each stage")
@click.option("--outer-steps", type=click.IntRange(1), help="outer steps of the run  [default: the preset's]")
@click.option("--inner-steps", type=click.IntRange(1), help="inner steps per outer step  [default: the preset's]")
@click.option("--preset", default="demo", show_default=True, type=click.Choice(["demo", "tiny"]), help="model size")
@click.option("--seed", default=1, show_default=True, type=click.IntRange(0), help="run seed")
@click.option(
    "--data-dir", default="demo", show_default=True, type=click.Path(path_type=Path), help="all files go here"
)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="write the summary's figures here")
@click.option(
    "--target-perplexity",
    type=float,
    help="fail unless the averaged model is this good  [default: 10 for the run as it comes]",
)
@click.option("--quiet", is_flag=True, help="no live table")
def demo(**options: Any) -> int:
    """Train a small Llama on Python's own source in a swarm of local processes, then export it.

    Ends with code 0 only when every node closed every outer step, paired wherever the draw gave it a partner (with an
    odd number of replicas one of each stage rests), the averaged model got better and was exported. The run as it
    comes, without --preset, --stages, --replicas, --outer-steps and --inner-steps, must also bring the averaged
    model's held-out perplexity down to 10. A swarm in which nothing moves for three minutes is stopped: it failed.
    """
    from noloco_node.cli.demo_folder import demo_folder
    from noloco_node.cli.results import write_json

    spec = _spec(options)
    data_dir: Path = options["data_dir"].absolute()
    _end_as_ctrl_c_does()
    with demo_folder(data_dir) as sockets:
        if options["json_file"] is not None:
            with contextlib.suppress(OSError):  # what an earlier run wrote is not of this one
                options["json_file"].unlink()
        folders = _train(spec, data_dir, sockets, options["quiet"])
        found = _report(spec, folders, data_dir)
        if options["json_file"] is not None:
            write_json(options["json_file"], found)
    _print_summary(found, data_dir)
    _judge(found, _target(options))
    return 0


def _end_as_ctrl_c_does() -> None:
    """Asked to end in another way the nodes are stopped as well, and the folder for their sockets removed."""

    def end(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)


def _train(spec: Any, data_dir: Path, sockets: Path, quiet: bool) -> list[tuple[Any, Path]]:
    """Returns each seat's folder when every node has ended well. Raises NolocoError."""
    from noloco_node.cli.live_table import live_screen, node_table
    from noloco_node.cli.local_swarm import LocalSwarm, wait_for_end
    from noloco_node.core.types import Seat

    spec_file = _write_spec(data_dir, spec)
    seats = [Seat(s, r) for s in range(spec.swarm.num_stages) for r in range(spec.swarm.num_replicas)]
    with LocalSwarm(spec_file, data_dir, seats, temporary=sockets) as swarm:
        click.echo(f"starting {len(seats)} node processes; their logs are {data_dir}/node-*/node.log", err=True)
        try:
            with live_screen(quiet) as show:
                swarm.start()
                wait_for_end(swarm, lambda statuses: show(node_table(statuses, "noloco-node demo")))
        except KeyboardInterrupt:
            click.echo("stopping the nodes; a second Ctrl-C ends them at once", err=True)
            raise
        return [(seat, swarm.folder_of(seat)) for seat in seats]


def _spec(options: dict[str, Any]) -> Any:
    from noloco_node.config.presets import preset

    seats = options["stages"] * options["replicas"]
    outer: dict[str, Any] = {"start_seats": seats}
    if options["outer_steps"]:
        outer["total_outer_steps"] = options["outer_steps"]
    if options["inner_steps"]:
        outer["inner_steps"] = options["inner_steps"]
    swarm = {"num_stages": options["stages"], "num_replicas": options["replicas"], "seed": options["seed"]}
    return preset(options["preset"], swarm=swarm, outer=outer)


def _write_spec(data_dir: Path, spec: Any) -> Path:
    from noloco_node.config.spec_file import dump
    from noloco_node.errors import DiskFailed

    path = data_dir / "swarm.toml"
    try:
        path.write_text(dump(spec))
    except OSError as error:
        raise DiskFailed(f"{path} cannot be written: {error.strerror}", "name another --data-dir") from error
    return path


def _report(spec: Any, folders: list[Any], data_dir: Path) -> dict[str, Any]:
    from noloco_node.cli import demo_report
    from noloco_node.cli.demo_folder import MARKER

    histories = demo_report.Histories.read(folders, spec.run_id)
    found = demo_report.summary(spec, histories, [folder for _, folder in folders], data_dir / "model")
    demo_report.plot(histories, data_dir / "training.png")
    found["plot"] = str(data_dir / "training.png")
    (data_dir / MARKER).write_text(json.dumps(found, indent=2) + "\n")
    return found


def _print_summary(found: dict[str, Any], data_dir: Path) -> None:
    paths = ", ".join(f"{value:.2f}" for value in found["replica_perplexities"].values())
    steps, averaged = found["outer_steps"], f"{found['averaged_perplexity']:.2f} averaged"
    speed = f"in {found['training_s']:.0f} s, {found['tokens_per_s']:,.0f} tokens/s, each counted once"
    for line in (
        f"held-out perplexity  {found['initial_perplexity']:.1f} -> {averaged} ({paths} per replica)",
        f"outer steps          {steps['paired']} paired, {steps['solo']} solo, over {found['nodes']} nodes",
        f"training             {found['tokens_total']:,} tokens {speed}",
        f"plot                 {found['plot']}",
        f"model                {found['export_dir']}",
        "",
        "generate text from it:",
        pasteable(f"  noloco-node generate {found['export_dir']} --prompt 'def main(' --max-tokens 200"),
    ):
        click.echo(line)


def _target(options: dict[str, Any]) -> float | None:
    """The perplexity asked for; of a run as it comes, the one it is known to reach."""
    if options["target_perplexity"] is not None:
        return float(options["target_perplexity"])
    changed = any(options[name] != value for name, value in AS_IT_COMES.items())
    return None if changed else PERPLEXITY_MAX


def _judge(found: dict[str, Any], target: float | None) -> None:
    """Did the run do what it was asked?"""
    from noloco_node.errors import TargetMissed

    closed = sum(found["outer_steps"].values())
    wanted = found["outer_steps_per_seat"] * found["nodes"]
    if closed != wanted:
        raise TargetMissed(f"{closed} outer steps were closed, {wanted} were asked for", "look into the nodes' logs")
    if found["unpaired"]:
        raise TargetMissed(
            f"{found['unpaired']} outer steps closed solo that had a partner drawn", "look into the nodes' logs"
        )
    if not found["averaged_perplexity"] < found["initial_perplexity"]:
        raise TargetMissed("the averaged model is not better than the untrained one", "train for more steps")
    if target is not None and found["averaged_perplexity"] > target:
        raise TargetMissed(
            f"averaged perplexity {found['averaged_perplexity']:.2f} is above {target:g}", "train for more outer steps"
        )
