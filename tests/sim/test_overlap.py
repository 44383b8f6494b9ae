"""Mode overlap on a virtual clock: training runs on while x travels, fragments take turns (DESIGN 5a)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest

from noloco_node.core import effects as do
from noloco_node.core import events as ev
from noloco_node.core.types import Outcome, Phase, Seat
from noloco_node.sim.checkers.checker import Checker
from noloco_node.sim.replica import Replica
from noloco_node.sim.scenarios import SCENARIOS
from noloco_node.sim.simulation import Run, prepare
from noloco_node.sim.virtual_node import VirtualNode
from noloco_node.sim.virtual_swarm import VirtualSwarm

FRAGMENTS = 3
QUIET = Run("overlap", 3, 2, 4)


@dataclass(eq=False)
class Watch(Checker):
    """What nodes did between the boundary of an outer step and its end."""

    swarm: VirtualSwarm
    name = "watch"
    steps_meanwhile: int = 0
    saved: list[int] = field(default_factory=list)
    phases: set[Phase] = field(default_factory=set)

    def after(self, node: VirtualNode, event: ev.Event, effects: list[do.Effect]) -> Iterator[str]:
        machine = node.machine
        if machine is None:
            return iter(())
        self.phases.add(machine.phase)
        trades = machine.work is not None and machine.work.desk.is_trading(node.clock.now)
        self.steps_meanwhile += trades and isinstance(event, ev.InnerStepDone)
        if machine.phase is Phase.TRAINING:
            self.saved += [effect.outer_step for effect in effects if isinstance(effect, do.SaveCheckpoint)]
        return iter(())


@pytest.fixture(scope="module")
def watched() -> tuple[VirtualSwarm, Watch]:
    swarm, _ = prepare(QUIET)
    watch = Watch(swarm)
    swarm.watch([*swarm.checkers, watch])
    swarm.run(swarm.start_s + 600.0)
    assert swarm.violations == []
    return swarm, watch


def test_every_outer_step_after_the_first_is_paired(watched: tuple[VirtualSwarm, Watch]) -> None:
    closed = [step for node in watched[0].nodes for step in node.ledger.closed()]
    assert len(closed) == 9 * 8
    assert {step.outcome for step in closed if step.number > 0} == {Outcome.PAIRED}


def test_inner_steps_go_on_during_an_exchange(watched: tuple[VirtualSwarm, Watch]) -> None:
    assert watched[1].steps_meanwhile > 0
    assert Phase.EXCHANGING not in watched[1].phases


def test_a_checkpoint_is_taken_when_every_fragment_was_exchanged_once_more(
    watched: tuple[VirtualSwarm, Watch],
) -> None:
    """The fragment of the step that is trained on when the last of a round closed belongs to the next round."""
    assert set(watched[1].saved) == {FRAGMENTS, 2 * FRAGMENTS, 3 * FRAGMENTS}


def test_an_outer_step_moves_its_own_fragment_only() -> None:
    replica = Replica(Seat(0, 0), FRAGMENTS)
    replica.inner_step(replica.weights[0].theta)
    before = replica.weights
    replica.take_boundary(4, b"digest")
    assert [old == new for old, new in zip(before, replica.weights, strict=True)] == [True, False, True]


@pytest.mark.parametrize("outer_steps", [8, 4, 3])
def test_the_last_outer_step_of_a_run_is_saved_though_its_round_is_not_over(
    monkeypatch: pytest.MonkeyPatch, outer_steps: int
) -> None:
    monkeypatch.setitem(SCENARIOS, "overlap", replace(SCENARIOS["overlap"], outer_steps=outer_steps))
    swarm, _ = prepare(Run("overlap", 3, 1, 4))
    swarm.run(swarm.start_s + 600.0)
    assert swarm.violations == []
    for node in swarm.nodes:
        last = node.ledger.closed()[-1]
        kept = node.disk.newest(last.seat)
        assert kept is not None
        assert kept.outer_step == last.number + 1 == outer_steps
