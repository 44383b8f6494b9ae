"""A replica whose weights are history, or that others refuse, fetches its stage's state while it runs (DESIGN 4)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from virtual_swarm import VirtualNode, VirtualSwarm

from noloco_node.core import effects as do
from noloco_node.core import events as ev
from noloco_node.core import limits
from noloco_node.core.exchange_reason import Reason
from noloco_node.core.standing import Standing
from noloco_node.core.types import Clock, Outcome, PeerId, Phase, Seat, Settings
from noloco_node.errors import ExitCode

INTERVAL_S = 20.0
SETTINGS = Settings(
    run="r",
    seed=7,
    num_stages=1,
    num_replicas=4,
    micro_batches=4,
    inner_steps=5,
    total_outer_steps=0,
    clock=Clock.TIME,
    outer_interval_s=INTERVAL_S,
    grace_s=5.0,
    lease_s=200.0,
    settle_s=1.0,
)


def closed(outcome: Outcome, peer: str, reason: str = Reason.REFUSED) -> do.CloseExchange:
    return do.CloseExchange(3, PeerId(peer), outcome, str(reason), Seat(0, 1))


def fetched(node: VirtualNode) -> list[do.FetchState]:
    return [effect for _, effect in node.log if isinstance(effect, do.FetchState)]


def begin(swarm: VirtualSwarm) -> VirtualNode:
    """All are at work and have saved; the one that is looked at."""
    swarm.run(400.0, until=lambda: all(len(node.closed) >= 2 for node in swarm.nodes))
    swarm.run(INTERVAL_S / 2)
    assert all(node.machine.phase in (Phase.TRAINING, Phase.EXCHANGING) for node in swarm.nodes)
    return swarm.nodes[-1]


def suspend(node: VirtualNode, seconds: float) -> None:
    """SIGSTOP and SIGCONT: its timers and what comes wait."""
    backlog: list[ev.Event] = []
    node.feed = backlog.append  # type: ignore[method-assign]
    node.swarm.run(seconds)
    del node.feed
    for event in [ev.TimePassed(), *backlog]:
        node.feed(event)


@pytest.mark.parametrize("clock", [Clock.TIME, Clock.STEPS])
def test_a_node_suspended_for_many_outer_steps_fetches_state_and_trains_on(clock: Clock) -> None:
    swarm = VirtualSwarm(replace(SETTINGS, clock=clock, inner_steps=40))
    node = begin(swarm)
    assert not fetched(node)
    suspend(node, 8 * INTERVAL_S)
    swarm.run(INTERVAL_S)
    assert len(fetched(node)) == 1
    steps = len(node.closed)
    swarm.run(4 * INTERVAL_S)
    assert node.machine.phase in (Phase.TRAINING, Phase.EXCHANGING)
    assert len(node.closed) > steps
    assert node.closed[-1].outcome is Outcome.PAIRED
    assert len(fetched(node)) == 1


def test_a_node_alone_that_slept_goes_on_with_what_it_has() -> None:
    swarm = VirtualSwarm(replace(SETTINGS, num_replicas=1))
    node = begin(swarm)
    suspend(node, 8 * INTERVAL_S)
    steps = len(node.closed)
    swarm.run(2 * INTERVAL_S + limits.STALE_LOOK_S)
    assert not fetched(node)
    assert len(node.closed) > steps


def test_a_short_stop_is_no_reason_to_fetch() -> None:
    swarm = VirtualSwarm(SETTINGS)
    node = begin(swarm)
    suspend(node, 2 * INTERVAL_S)
    swarm.run(3 * INTERVAL_S)
    assert not fetched(node)


def test_a_node_refused_by_two_partners_in_a_row_fetches_state() -> None:
    swarm = VirtualSwarm(SETTINGS)
    node = begin(swarm)
    for peer in ("peer0", "peer1"):
        node.machine.standing.closed(closed(Outcome.SOLO, peer))
    swarm.run(INTERVAL_S)
    assert len(fetched(node)) == 1
    assert set(fetched(node)[0].donors) == {"peer0", "peer1", "peer2"}
    assert node.machine.phase in (Phase.TRAINING, Phase.EXCHANGING)


def test_refusals_count_by_different_partners_and_since_the_last_pair() -> None:
    standing = Standing()
    for reason in ("partner: tensor refused", "tensor refused", "partner: deadline", "no partner"):
        standing.closed(closed(Outcome.SOLO, "a", reason))
    assert not standing.reason
    standing.closed(closed(Outcome.PAIRED, "c"))
    standing.closed(closed(Outcome.SOLO, "b"))
    assert not standing.reason
    standing.closed(closed(Outcome.SOLO, "a", "partner: tensor refused"))
    assert "refused" in standing.reason
    standing.loaded(4)
    assert not standing.reason


def test_the_stage_is_as_far_as_the_median_of_its_replicas() -> None:
    standing = Standing()
    standing.loaded(5)
    standing.compare([6, 6, 10**9])
    assert not standing.reason
    standing.compare([6, 5 + limits.STALE_STEPS_MAX + 1, 10**9])
    assert "outer steps behind" in standing.reason


def test_a_stop_is_not_held_up_by_the_look_for_who_is_ahead() -> None:
    swarm = VirtualSwarm(SETTINGS)
    node = begin(swarm)
    suspend(node, 8 * INTERVAL_S)
    assert node.machine.standing.is_unsure
    node.feed(ev.StopRequested("signal"))
    swarm.run(15.0, until=lambda: node.left is not None)
    assert node.left is not None


def test_a_double_of_our_key_far_ahead_is_still_seen_as_one() -> None:
    node = begin(VirtualSwarm(SETTINGS))
    own = node.record
    assert own is not None
    double = replace(
        own,
        incarnation=own.incarnation + 1,
        seq=own.seq + 1000,
        expires=own.expires + 1000,
        checkpoint_step=own.checkpoint_step + 5 * limits.STALE_STEPS_MAX,
    )
    effects = node.machine.handle(ev.RecordLearnt(double, 60.0), node.swarm.now)
    assert [effect.code for effect in effects if isinstance(effect, do.Leave)] == [ExitCode.IDENTITY_IN_USE]


def test_a_state_that_outlived_its_seat_is_not_heard() -> None:
    swarm = VirtualSwarm(SETTINGS, [Seat(0, 0)])
    node = swarm.nodes[0]
    swarm.run(60.0, until=lambda: node.machine.phase is Phase.SYNCING)
    there = Seat(0, 1)
    node.feed(ev.StateLoaded(3, 0, 0, "peer"))  # nobody asked
    assert node.machine.phase is Phase.SYNCING
    swarm.run(60.0, until=lambda: node.machine._sync_asked)
    node.feed(ev.StateLoaded(3, 0, 0, "peer", seat=there))
    node.feed(ev.StateUnavailable("gone", there))
    assert node.machine.phase is Phase.SYNCING
    assert node.machine._sync_asked
    swarm.run(60.0, until=lambda: node.machine.phase is not Phase.SYNCING)
    assert node.machine.outer_step == 0
    node.feed(ev.CheckpointSaved(9, seat=there))
    assert node.machine.states.kept.get(Seat(0, 0)) is None
    assert node.machine._checkpoint_step == 0
