"""Simulated runs: the same seed is the same run, invariants hold in every scenario, cost does not grow."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from noloco_node.cli.simulate import simulate as command
from noloco_node.core.device_plan import DevicePlan
from noloco_node.core.flow import MicroBatchFlow
from noloco_node.core.types import Outcome
from noloco_node.sim.campaign import run_all
from noloco_node.sim.scenarios import SCENARIOS
from noloco_node.sim.simulation import Figures, Run, prepare, simulate

STORM = Run("storm", 11, 2, 4)


def test_the_same_seed_is_the_same_run_in_any_process() -> None:
    code = f"from noloco_node.sim.simulation import Run, simulate; print(simulate({STORM!r}).digest)"
    here = simulate(STORM).digest
    for hash_seed in ("0", "77"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        elsewhere = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
        )
        assert int(elsewhere.stdout) == here


def test_another_seed_is_another_run() -> None:
    assert simulate(Run("calm", 1, 1, 2)).digest != simulate(Run("calm", 2, 1, 2)).digest


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_invariants_hold(scenario: str) -> None:
    for seed in (1, 2):
        figures = simulate(Run(scenario, seed, 2, 4))
        assert figures.violations == (), figures.run.command
        assert figures.paired > 0


def test_a_calm_swarm_pairs_every_outer_step_after_the_first() -> None:
    """While it comes together seats meet in another order than the draw has it."""
    swarm, _ = prepare(Run("calm", 3, 2, 8))
    swarm.run(swarm.start_s + 400.0)
    closed = [step for node in swarm.nodes for step in node.ledger.closed()]
    assert len(closed) == 6 * 16
    assert {step.outcome for step in closed if step.number > 0} == {Outcome.PAIRED}


def test_seats_that_meet_in_another_order_than_the_draw_has_it_find_a_partner_all_the_same() -> None:
    """No gate: the first outer step begins as seats come, and most are first seen by another than the drawn partner."""
    swarm, _ = prepare(Run("calm", 3, 2, 8))
    swarm.run(swarm.start_s + 100.0)
    first = [step for node in swarm.nodes for step in node.ledger.closed() if step.number == 0]
    assert [step.outcome for step in first] == [Outcome.PAIRED] * 16


def figures_of(replicas: int) -> Figures:
    return simulate(Run("calm", 1, 1, replicas))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_events_and_messages_per_seat_do_not_grow_with_the_swarm() -> None:
    """Beyond one sweep of look-ups, which covers 64 seats."""
    small, large = figures_of(80), figures_of(160)
    assert small.violations == large.violations == ()
    assert all(figures.paired > 0.9 * figures.outer_steps for figures in (small, large))
    for what in ("messages", "events"):
        per_step = [getattr(figures, what) / figures.outer_steps for figures in (small, large)]
        assert per_step[1] < 1.1 * per_step[0], what


def test_processes_do_not_change_what_is_found() -> None:
    runs = [Run("calm", seed, 1, 2) for seed in (1, 2, 3)]
    alone, together = run_all(runs, 1), run_all(runs, 2)
    assert [figures.digest for figures in alone] == [figures.digest for figures in together]


# --- the command ----------------------------------------------------------------------------------


def test_command_writes_its_figures() -> None:
    options = ["--seed", "4", "--seeds", "2", "--seats", "1x2", "--scenario", "calm", "--jobs", "1", "--json", "-"]
    result = CliRunner().invoke(command, options, standalone_mode=False)
    assert result.exception is None
    figures = json.loads(result.stdout)
    assert figures["seeds"] == 2
    assert figures["violations"] == []
    assert figures["outer_steps"] == 2 * 2 * 6
    assert figures["messages_per_seat_per_outer_step"] > 0
    assert figures["wall_s"] > 0


def test_command_names_the_run_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MicroBatchFlow, "in_flight", property(lambda flow: 0))
    options = ["--seed", "4", "--seats", "2x2", "--scenario", "calm", "--json", "-"]
    result = CliRunner().invoke(command, options, standalone_mode=False)
    assert "noloco-node simulate --scenario calm --seats 2x2 --seed 4" in result.stderr
    violation = json.loads(result.stdout)["violations"][0]
    assert (violation["seed"], violation["checker"]) == (4, "quiet_changes")
    assert "broke an invariant" in str(result.exception)


def test_what_raises_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DevicePlan, "next", lambda *args, **kwargs: 1 / 0)
    violation = simulate(Run("calm", 1, 1, 2)).violations[0]
    assert violation.checker == "fault"
    assert "ZeroDivisionError" in violation.words


@pytest.mark.parametrize("seats", ["2", "0x4", "2x", "x"])
def test_seats_are_stages_times_replicas(seats: str) -> None:
    result = CliRunner().invoke(command, ["--seats", seats])
    assert result.exit_code == 2
    assert "stages x replicas" in result.output


def test_unknown_scenario_is_named_with_those_there_are() -> None:
    result = CliRunner().invoke(command, ["--scenario", "sunshine"])
    assert result.exit_code == 2
    assert "storm" in result.output
