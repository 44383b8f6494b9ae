"""Mode prefetch on a virtual clock: slow weights are across before the boundary, whatever happens meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction

import pytest

from noloco_node.core import effects as do
from noloco_node.core import events as ev
from noloco_node.core.types import Outcome, Seat
from noloco_node.sim.checkers.checker import Checker
from noloco_node.sim.exchange_link import TENSOR_S
from noloco_node.sim.replica import Replica
from noloco_node.sim.scenarios import SCENARIOS
from noloco_node.sim.simulation import Run, prepare, simulate
from noloco_node.sim.virtual_node import VirtualNode
from noloco_node.sim.virtual_swarm import VirtualSwarm
from noloco_node.sim.weather import Rates

OUTER_STEPS = 5
CALM = replace(SCENARIOS["calm"], mode=SCENARIOS["prefetch"].mode, outer_steps=OUTER_STEPS)


@dataclass(eq=False)
class Watch(Checker):
    """What was sent before each boundary, and how long it took from there to the partner's whole tensor."""

    swarm: VirtualSwarm
    name = "watch"
    ahead: set[tuple[str, int]] = field(default_factory=set)  # streams of phi that began before the boundary
    late_s: list[float] = field(default_factory=list)

    def after(self, node: VirtualNode, event: ev.Event, effects: list[do.Effect]) -> Iterator[str]:
        for effect in effects:
            if (
                isinstance(effect, do.StreamTensor)
                and node.replica is not None
                and effect.outer_step in (node.replica.ahead)
            ):
                self.ahead.add((node.peer, effect.outer_step))
            if isinstance(effect, do.VerifyTensor):
                step = node.ledger.step(effect.outer_step)
                assert step is not None
                self.late_s.append(node.clock.now - step.begun_s)
        return iter(())


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> tuple[VirtualSwarm, Watch]:
    monkeypatch.setitem(SCENARIOS, "calm", CALM)
    swarm, _ = prepare(Run("calm", 3, 2, 4))
    watch = Watch(swarm)
    swarm.watch([*swarm.checkers, watch])
    swarm.run(swarm.start_s + 600.0)
    assert swarm.violations == []
    return swarm, watch


def test_every_outer_step_is_paired_and_phi_went_ahead(watched: tuple[VirtualSwarm, Watch]) -> None:
    swarm, watch = watched
    closed = [step for node in swarm.nodes for step in node.ledger.closed()]
    assert len(closed) == OUTER_STEPS * 8
    assert {step.outcome for step in closed} == {Outcome.PAIRED}
    assert len(watch.ahead) == len(closed)


def test_only_the_outer_gradient_is_waited_for(watched: tuple[VirtualSwarm, Watch]) -> None:
    """From the later boundary of a pair. The first to take it waits for the other besides."""
    assert min(watched[1].late_s) < TENSOR_S


@pytest.mark.parametrize("seed", range(1, 5))
def test_whatever_happens_every_invariant_holds(seed: int) -> None:
    found = simulate(Run("prefetch", seed, 2, 8))
    assert found.violations == ()
    assert found.paired > found.outer_steps / 2


def test_links_that_break_all_the_time_are_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = Rates(delay_s=0.05, jitter_s=0.3, loss=0.1, double=0.1)
    monkeypatch.setitem(SCENARIOS, "calm", replace(CALM, first=0.0, last=6.0, faulty=rates))
    found = simulate(Run("calm", 5, 1, 8))
    assert found.violations == ()
    assert found.paired > found.outer_steps / 2


def test_a_replica_whose_phi_changed_after_it_was_sent_is_a_fault() -> None:
    replica = Replica(Seat(0, 0))
    replica.freeze_slow_weights(3, b"ahead")
    assert replica.take_boundary(3, b"later").digest == b"ahead"
    replica.freeze_slow_weights(4, b"ahead")
    replica.inner_step(Fraction(1))
    replica.take_boundary(3, b"other")
    with pytest.raises(AssertionError, match="phi changed"):
        replica.take_boundary(4, b"later")
