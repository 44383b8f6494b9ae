"""`noloco-node simulate`: swarms of real state machines on a virtual clock, with everything that goes wrong in one."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from noloco_node.sim.simulation import Figures, Run

SEATS = re.compile(r"([1-9]\d{0,3})x([1-9]\d{0,4})")
ALL = "all"
PROGRESS_S = 5.0


class Seats(click.ParamType):
    """Stages x replicas, as `2x64`."""

    name = "PxD"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        found = SEATS.fullmatch(value)
        if found is None:
            self.fail(f"{value!r} is not stages x replicas, such as 2x16", param, ctx)
        return int(found[1]), int(found[2])


@click.command()
@click.option("--seed", default=1, show_default=True, type=click.IntRange(0), help="first seed")
@click.option("--seeds", default=1, show_default=True, type=click.IntRange(1), help="how many, one after the other")
@click.option("--seats", default="2x16", show_default=True, type=Seats(), help="pipeline stages x replicas")
@click.option("--scenario", default=ALL, show_default=True, help="what goes wrong; `all` takes each in turn")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="write the figures here; - = stdout")
@click.option("--jobs", type=click.IntRange(1), help="processes at once  [default: the cores]")
@click.option("--quiet", is_flag=True, help="no progress")
def simulate(
    seed: int, seeds: int, seats: tuple[int, int], scenario: str, json_file: Path | None, jobs: int | None, quiet: bool
) -> int:
    """Run the node's own state machine in simulated swarms and check, after every event, what must always hold.

    The same seed is the same run. A run that breaks an invariant prints the command that repeats it, and the exit
    code is then 24. With --scenario all each seed runs one scenario, in turn; docs/simulation.md tells of them.
    """
    from noloco_node.cli.results import write_json
    from noloco_node.errors import TargetMissed
    from noloco_node.sim.campaign import run_all, summary

    began_s = time.monotonic()
    runs = _runs(range(seed, seed + seeds), seats, scenario)
    found = run_all(runs, jobs or os.cpu_count() or 1, _Progress(len(runs), quiet))
    figures = summary(found, began_s)
    if json_file is not None:
        write_json(json_file, figures)
    if str(json_file) != "-":
        _print(figures)
    if figures["violations"]:
        count = len({entry["command"] for entry in figures["violations"]})
        raise TargetMissed(f"{count} of {len(runs)} runs broke an invariant", "repeat one by its command above")
    return 0


def _runs(seeds: range, seats: tuple[int, int], scenario: str) -> list[Run]:
    from noloco_node.sim.scenarios import SCENARIOS
    from noloco_node.sim.simulation import Run

    if scenario != ALL and scenario not in SCENARIOS:
        raise click.BadParameter(f"{scenario!r} is none of all, {', '.join(SCENARIOS)}", param_hint="--scenario")
    names = list(SCENARIOS) if scenario == ALL else [scenario]
    if len(seeds) == 1:
        return [Run(name, seeds[0], *seats) for name in names]
    return [Run(names[seed % len(names)], seed, *seats) for seed in seeds]


class _Progress:
    """A line now and then, and one for each run that failed."""

    def __init__(self, total: int, quiet: bool) -> None:
        self._total, self._quiet = total, quiet
        self._told_s = time.monotonic()

    def __call__(self, done: int, figures: Figures) -> None:
        for violation in figures.violations[:1]:
            click.echo(f"{violation.checker}: {violation.node} {violation.words}\n  {figures.run.command}", err=True)
        if not self._quiet and (time.monotonic() - self._told_s >= PROGRESS_S):
            self._told_s = time.monotonic()
            click.echo(f"{done} of {self._total} runs", err=True)


def _print(figures: dict[str, Any]) -> None:
    steps, runs = figures["outer_steps"], figures["runs"]
    for line in (
        f"runs          {runs} ({figures['seeds']} seeds; {', '.join(figures['scenarios'])})",
        f"outer steps   {steps:,}, {figures['paired']:,} of them paired, {figures['splits']} pairs closed unlike",
        f"messages      {figures['messages_per_seat_per_outer_step']} per seat and outer step",
        f"violations    {len(figures['violations'])}",
        f"time          {figures['wall_s']} s, {figures['cpu_ms_per_seat_per_outer_step']} ms per seat and outer step",
    ):
        click.echo(line)
    if runs == 1:
        click.echo(f"digest        {next(iter(figures['digests'].values()))}")
