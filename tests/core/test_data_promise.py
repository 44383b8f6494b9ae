"""What a stage-0 replica promises a successor about its data, and keeps."""

from __future__ import annotations

from itertools import pairwise

import pytest
from virtual_swarm import VirtualNode, VirtualSwarm

from noloco_node.core import effects as do
from noloco_node.core import events as ev
from noloco_node.core import limits
from noloco_node.core.data_promise import DataPromise
from noloco_node.core.seats import Roster
from noloco_node.core.succession import first_number, promises_of_others
from noloco_node.core.types import Clock, PeerId, Phase, Seat, Settings

RENEW_S = 20.0
SETTINGS = Settings(
    run="r",
    seed=7,
    num_stages=1,
    num_replicas=2,
    micro_batches=4,
    inner_steps=20,
    total_outer_steps=0,
    clock=Clock.TIME,
    outer_interval_s=600.0,
    settle_s=1.0,
    renew_s=RENEW_S,
)


def test_nothing_may_be_drawn_before_a_promise_is_out() -> None:
    promise = DataPromise(10, RENEW_S, 0.0)
    assert promise.limit(1.0) == 10
    assert promise.next(10, 1.0) == 10 + limits.DATA_PROMISE_MIN
    promise.told(26, 10, 1.0)
    assert promise.limit(1.0) == 26


def test_it_reaches_as_far_as_one_renewal_at_the_present_pace() -> None:
    promise = DataPromise(0, RENEW_S, 0.0)
    promise.told(100, 0, 0.0)
    assert promise.next(50, 10.0) == 50 + 5 * RENEW_S
    assert promise.next(90, 10.0) == 90 + 9 * RENEW_S
    assert promise.next(1, 10.0) == 100  # never less than before


def test_it_is_renewed_before_it_is_used_up_and_asked_for_once() -> None:
    promise = DataPromise(0, RENEW_S, 0.0)
    promise.told(100, 0, 0.0)
    assert not promise.is_short(74, 1.0)
    assert promise.is_short(75, 1.0)
    promise.asked(200, 1.0)
    assert not promise.is_short(99, 1.5)
    assert promise.limit(1.5) == 100
    promise.told(200, 99, 2.0)
    assert not promise.is_short(99, 2.0)


def test_a_store_that_takes_too_long_is_not_waited_for() -> None:
    promise = DataPromise(0, RENEW_S, 0.0)
    promise.told(100, 0, 0.0)
    promise.asked(200, 1.0)
    due_s = promise.next_deadline(1.0)
    assert due_s == 1.0 + limits.PROMISE_WAIT_S
    assert promise.limit(due_s) == 200
    assert promise.next_deadline(due_s) is None


def drawn(node: VirtualNode) -> list[tuple[float, int]]:
    return [(t, e.n) for t, e in node.log if isinstance(e, do.DrawMicroBatch)]


@pytest.mark.parametrize("compute_s", [0.2, 5.0])
def test_no_number_is_drawn_that_was_not_promised_before(compute_s: float) -> None:
    swarm = VirtualSwarm(SETTINGS)
    node = swarm.nodes[0]
    node.compute_s = compute_s
    swarm.run(60.0)
    node.compute_s = compute_s / 10  # it becomes faster
    swarm.run(60.0)
    assert drawn(node)[-1][1] > 20
    promised = 0
    for effect in (effect for _, effect in node.log):
        if isinstance(effect, do.PublishRecord):
            promised = max(promised, effect.data_next)
        elif isinstance(effect, do.DrawMicroBatch):
            assert effect.n < promised
    times = [at_s for at_s, _ in drawn(node)][8:]
    assert max(b - a for a, b in pairwise(times)) < 6 * compute_s + 0.1  # and none waited for a record


@pytest.mark.parametrize("seconds", [3.0, 17.0, 100.0, 123.4])
def test_a_successor_repeats_nothing_and_skips_at_most_what_one_renewal_draws(seconds: float) -> None:
    swarm = VirtualSwarm(SETTINGS, [Seat(0, 0), Seat(0, 1)])
    victim = swarm.node(0, 1)
    victim.compute_s = 0.05
    swarm.run(60.0, until=lambda: victim.machine.phase is Phase.TRAINING)
    swarm.run(seconds)
    victim.alive = False
    heir = swarm.add(Seat(0, 1))
    swarm.run(120.0, until=lambda: len(drawn(heir)) > 0)
    last, pace = drawn(victim)[-1][1], 1 / victim.compute_s
    gap = drawn(heir)[0][1] - (last + 1)
    assert 0 <= gap <= max(limits.DATA_PROMISE_MIN, pace * RENEW_S * 1.1)


def test_a_successor_of_a_seat_that_was_long_empty_hears_its_promise_from_the_donor() -> None:
    swarm = VirtualSwarm(SETTINGS)
    node = swarm.nodes[0]
    swarm.run(30.0)
    roster = node.machine.membership.roster
    promised = roster.data_next(Seat(0, 1))
    assert promised > 0
    assert dict(roster.promises(0, apart_from=node.peer)) == {1: promised}
    heir = swarm.add(Seat(0, 1))
    heir.machine.handle(ev.Started(has_initial_peers=True), swarm.now)
    heir.machine.membership._step, heir.machine.membership._target = "holding", Seat(0, 1)  # type: ignore[assignment]
    heir.machine.phase, heir.machine._sync_asked = Phase.SYNCING, True
    heir.machine.handle(ev.StateLoaded(3, 0, promised, "peer"), swarm.now)
    assert heir.machine.flow is not None
    assert heir.machine.flow.data_next == promised


def test_a_checkpoint_keeps_what_others_promised_and_not_our_own() -> None:
    swarm = VirtualSwarm(SETTINGS)
    node = swarm.nodes[0]
    swarm.run(30.0)
    node.feed(ev.StopRequested("signal"))
    swarm.run(10.0)
    saved = [e for _, e in node.log if isinstance(e, do.SaveCheckpoint)][-1]
    assert [replica for replica, _ in saved.promised] == [1]


@pytest.mark.parametrize("seat", [Seat(0, 0), Seat(1, 0)])
@pytest.mark.parametrize("source", ["peer", "checkpoint"])
def test_no_donor_can_send_us_further_than_the_greatest_number(seat: Seat, source: str) -> None:
    told = ev.StateLoaded(3, 0, 1 << 70, source, promised=((0, 1 << 60),))
    assert first_number(Roster(SETTINGS), seat, told, PeerId("me")) == limits.DATA_NEXT_MAX


def test_a_checkpoint_keeps_what_we_promised_for_a_seat_held_before() -> None:
    roster, me = Roster(SETTINGS), PeerId("me")
    roster.note_promise(Seat(0, 0), 40, me)
    roster.note_promise(Seat(0, 1), 70, me)
    roster.note_promise(Seat(0, 1), 30, PeerId("before"))
    assert promises_of_others(roster, Seat(0, 1), me) == ((0, 40), (1, 30))
    assert promises_of_others(roster, Seat(1, 1), me) == ()
