"""Runs that broke an invariant once hold now."""

from __future__ import annotations

from pathlib import Path

import pytest

from noloco_node.sim.simulation import Run, simulate

LINES = (Path(__file__).parent / "regressions.txt").read_text(encoding="utf-8").splitlines()


def run_of(line: str) -> Run:
    words, _, why = line.partition("#")
    assert why.strip(), "each line says why"
    scenario, seats, seed = words.split()
    stages, replicas = seats.split("x")
    return Run(scenario, int(seed), int(stages), int(replicas))


RUNS = [run_of(line) for line in LINES if not line.startswith("#")]


@pytest.mark.parametrize("run", RUNS, ids=[run.command for run in RUNS])
def test_a_run_that_failed_once_holds(run: Run) -> None:
    assert simulate(run).violations == ()
