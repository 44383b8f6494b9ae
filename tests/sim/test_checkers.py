"""Each checker catches a machine that breaks its invariant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from noloco_node.core import effects as do
from noloco_node.core import events as ev
from noloco_node.core import exchange, outer_update
from noloco_node.core.device_plan import DevicePlan
from noloco_node.core.exchange_desk import ExchangeDesk
from noloco_node.core.exchange_memory import ExchangeMemory
from noloco_node.core.exchange_table import ExchangeState, Role
from noloco_node.core.flow import MicroBatchFlow
from noloco_node.core.lookout import Lookout
from noloco_node.core.machine import HANDLERS, Machine
from noloco_node.core.outer_clock import OuterClock
from noloco_node.core.seats import Roster
from noloco_node.core.types import Commit
from noloco_node.sim.checkers.every import every_checker
from noloco_node.sim.exchange_lane import ExchangeLane
from noloco_node.sim.micro_batch_lane import MicroBatchLane
from noloco_node.sim.replica import Replica
from noloco_node.sim.simulation import Run, prepare, simulate

Patch = pytest.MonkeyPatch


def adds_c_twice(patch: Patch) -> None:
    """The correction stays due once after it was added."""
    added, seen = ExchangeDesk.correction_added, set()

    def forgets_once(desk: ExchangeDesk, outer_step: int) -> None:
        if (desk, outer_step) in seen:
            added(desk, outer_step)
        seen.add((desk, outer_step))

    patch.setattr(ExchangeDesk, "correction_added", forgets_once)
    patch.setattr(Replica, "release", lambda *args: None)


def takes_commit_for_solo(patch: Patch) -> None:
    def closes_solo(self: exchange.Exchange, commit: Commit, now: float) -> list[do.Effect]:
        return self._close_solo("doubt")

    patch.setitem(exchange.RULES, (ExchangeState.DOUBT, Commit, Role.FOLLOWER), closes_solo)


def waits_for_ever(patch: Patch) -> None:
    """HAVE is never said, and the deadline never judged."""
    patch.setattr(exchange.Exchange, "_say_have", lambda *args: [])
    patch.setattr(exchange.Exchange, "_late", lambda *args: [])


def takes_too_much(patch: Patch) -> None:
    """The whole difference, and three quarters of the own x."""
    patch.setattr(outer_update, "correction", lambda own, theirs, c: theirs * c.half - own * c.beta)


def repeats_numbers(patch: Patch) -> None:
    draws = MicroBatchFlow.draws

    def begins_again(flow: MicroBatchFlow, *args: Any) -> list[do.Effect]:
        if flow._draw_next == 9:
            flow._draw_next = 4
        return draws(flow, *args)

    patch.setattr(MicroBatchFlow, "draws", begins_again)


def repeats_outer_steps(patch: Patch) -> None:
    advance = OuterClock.advance

    def slips(clock: OuterClock, stage: int, others: Any, now: float) -> None:
        advance(clock, stage, others, now)
        clock.outer_step -= clock.outer_step == 3

    patch.setattr(OuterClock, "advance", slips)


def counts_nothing_dropped(patch: Patch) -> None:
    end = MicroBatchFlow._end

    def forgets(flow: MicroBatchFlow, work: Any, *, dropped: bool) -> list[do.Effect]:
        before = flow.accounts.dropped
        out = end(flow, work, dropped=dropped)
        flow.accounts.dropped = before
        return out

    patch.setattr(MicroBatchFlow, "_end", forgets)


def steps_between_forward_and_backward(patch: Patch) -> None:
    patch.setattr(MicroBatchFlow, "in_flight", property(lambda flow: 0))


def never_yields(patch: Patch) -> None:
    patch.setattr(Roster, "outranked", lambda *args: None)
    patch.setattr(Roster, "claimable_at", lambda roster, seat, now, apart_from=None: now)


def finds_no_partner(patch: Patch) -> None:
    patch.setattr(ExchangeDesk, "begin_phase", lambda *args: [])
    patch.setattr(ExchangeDesk, "partner_of", lambda *args: None)
    patch.setattr("noloco_node.core.agreement.Agreement.partner_of", lambda *args: None)


def forgets_nothing(patch: Patch) -> None:
    patch.setattr(ExchangeMemory, "close", lambda memory, step: memory._closed.setdefault(step.outer_step, step))


def looks_up_everybody(patch: Patch) -> None:
    """All seats each second, though nobody is missing."""
    looks, looked = Lookout.look_around, {}

    def looks_at_all(lookout: Lookout, flow: Any, desk: Any, missing: Any, now: float) -> list[do.Effect]:
        found = looks(lookout, flow, desk, missing, now)
        if looked.get(lookout) == int(now):
            return found
        looked[lookout] = int(now)
        return [*found, do.ReadSeats((*lookout.replicas_of(0), *lookout.replicas_of(1)))]

    patch.setattr(Lookout, "look_around", looks_at_all)


def renews_at_every_forward(patch: Patch) -> None:
    def renews(machine: Machine, event: ev.ForwardDone) -> list[do.Effect]:
        return [*Machine._on_micro_batch_event(machine, event), *machine.membership.publish_now(machine._now)]

    patch.setitem(HANDLERS, ev.ForwardDone, renews)


def calls_too_often(patch: Patch) -> None:
    """Each OFFER goes out again and again."""
    sends = ExchangeLane.executors

    def repeats(lane: ExchangeLane) -> dict[type, Callable[[Any], None]]:
        table = sends(lane)
        send = table[do.SendOffer]
        return table | {do.SendOffer: lambda effect: [send(effect) for _ in range(300)]}

    patch.setattr(ExchangeLane, "executors", repeats)


def plans_at_once(patch: Patch) -> None:
    """Two jobs on the device."""
    patch.setattr(DevicePlan, "_out", lambda plan, job: [job])


BROKEN: list[tuple[str, str, Callable[[Patch], None]]] = [
    ("correction_once", "calm", adds_c_twice),
    ("pair_outcome", "calm", takes_commit_for_solo),
    ("waiting", "calm", waits_for_ever),
    ("pair_sum", "calm", takes_too_much),
    ("counters", "calm", repeats_numbers),
    ("counters", "steps", repeats_outer_steps),
    ("accounts", "crashes", counts_nothing_dropped),
    ("quiet_changes", "calm", steps_between_forward_and_backward),
    ("quiet_changes", "calm", plans_at_once),
    ("one_holder", "join", never_yields),
    ("recovery", "calm", finds_no_partner),
    ("bounds", "calm", forgets_nothing),
    ("bounds", "calm", looks_up_everybody),
    ("bounds", "calm", renews_at_every_forward),
    ("bounds", "calm", calls_too_often),
]


@pytest.mark.parametrize(("checker", "scenario", "break_it"), BROKEN, ids=[b[2].__name__ for b in BROKEN])
def test_a_broken_machine_is_caught(
    checker: str, scenario: str, break_it: Callable[[Patch], None], monkeypatch: Patch
) -> None:
    run = Run(scenario, 5, 2, 4)
    assert simulate(run).violations == ()
    break_it(monkeypatch)
    assert checker in {violation.checker for violation in simulate(run).violations}


def test_every_checker_has_a_broken_machine() -> None:
    swarm, faults = prepare(Run("calm", 1, 1, 2))
    assert {checker.name for checker in every_checker(swarm, faults.window.until_s)} == {name for name, _, _ in BROKEN}


def loses_first_gradients(patch: Patch) -> None:
    """Every hop breaks once between its backward and the delivery, so it is sent again."""
    returns, lost = MicroBatchLane._return_gradient, set()

    def breaks(lane: MicroBatchLane, effect: do.ReturnGradient) -> None:
        visit = lane._visits[effect.call]
        if visit.hop is None or visit.id in lost:
            returns(lane, effect)
            return
        lost.add(visit.id)
        del lane._visits[effect.call]
        visit.hop.break_off()

    patch.setattr(MicroBatchLane, "_return_gradient", breaks)


def test_a_micro_batch_added_twice_is_caught(monkeypatch: Patch) -> None:
    loses_first_gradients(monkeypatch)
    run = Run("calm", 1, 2, 1)
    assert simulate(run).violations == ()  # computed again, not added
    arrived = MicroBatchFlow.arrived

    def counts_all(flow: MicroBatchFlow, event: Any, now: float, *, blocked: bool) -> list[do.Effect]:
        out = arrived(flow, event, now, blocked=blocked)
        if event.call in flow._works:
            flow._works[event.call].count = True
        return out

    monkeypatch.setattr(MicroBatchFlow, "arrived", counts_all)
    assert [v for v in simulate(run).violations if v.checker == "accounts" and "is added in" in v.words]
