"""The table of phases against the machine that lives them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from virtual_swarm import VirtualNode, VirtualSwarm

from noloco_node.core import events as ev
from noloco_node.core.machine import Machine
from noloco_node.core.phases import PHASES, table_markdown
from noloco_node.core.types import Clock, PeerId, Phase, Seat, SeatRecord, SeatState, Settings

SETTINGS = Settings(
    run="r",
    seed=7,
    num_stages=2,
    num_replicas=2,
    micro_batches=2,
    inner_steps=3,
    total_outer_steps=2,
    start_seats=4,
    clock=Clock.STEPS,
    grace_s=20.0,
    exchange_max_s=60.0,
    settle_s=1.0,
    idle_close_s=5.0,
)
LIVES_S = 62.0  # longer than any record that is out
Step = tuple[Phase, Phase]
LISTED = {(row.phase, end.then) for row in PHASES for end in row.ends}


@pytest.fixture(name="seen")
def _seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[Step]]:
    """Every change of phase that any machine makes during the test."""
    seen: set[Step] = set()
    handle = Machine.handle

    def watched(machine: Machine, event: ev.Event, now: float) -> list[object]:
        before = machine.phase
        out = handle(machine, event, now)
        if machine.phase is not before:
            seen.add((before, machine.phase))
        return list(out)

    monkeypatch.setattr(Machine, "handle", watched)
    yield seen
    assert seen <= LISTED


def swarm_with_a_node_in(phase: Phase, **changes: object) -> tuple[VirtualSwarm, VirtualNode]:
    swarm = VirtualSwarm(replace(SETTINGS, **changes))  # type: ignore[arg-type]
    node = swarm.node(1, 1)
    swarm.run(60.0, until=lambda: node.machine.phase is phase)
    assert node.machine.phase is phase
    return swarm, node


def record_of(node: VirtualNode, swarm: VirtualSwarm, **changes: object) -> SeatRecord:
    """A record for the node's own seat, newer than any it published."""
    own = node.record
    assert own is not None
    now_ms = int(swarm.now * 1000)
    news = {"seq": own.seq + 1000, "expires": now_ms + int(LIVES_S * 1000), "state": SeatState.ACTIVE}
    return replace(own, **(news | changes))  # type: ignore[arg-type]


def test_every_phase_has_one_row_in_the_order_of_life() -> None:
    assert [row.phase for row in PHASES] == list(Phase)
    assert len(table_markdown().splitlines()) == 2 + len(Phase)


def test_a_whole_life_walks_the_table(seen: set[Step]) -> None:
    VirtualSwarm(SETTINGS).run_to_end()
    assert seen == {
        (Phase.JOINING, Phase.SYNCING),
        (Phase.SYNCING, Phase.TRAINING),
        (Phase.TRAINING, Phase.EXCHANGING),
        (Phase.EXCHANGING, Phase.TRAINING),
        (Phase.TRAINING, Phase.DRAINING),
        (Phase.DRAINING, Phase.LEFT),
    }


def test_weights_of_a_run_that_is_over_lead_to_draining(seen: set[Step]) -> None:
    swarm, node = swarm_with_a_node_in(Phase.SYNCING)
    swarm.run(60.0, until=lambda: node.machine._sync_asked)
    node.feed(ev.StateLoaded(SETTINGS.total_outer_steps, 0, 0, "checkpoint"))
    assert node.machine.phase is Phase.DRAINING
    assert (Phase.SYNCING, Phase.DRAINING) in seen


def test_a_replica_far_behind_its_stage_syncs_again(seen: set[Step]) -> None:
    swarm, node = swarm_with_a_node_in(Phase.TRAINING)
    ahead = record_of(node, swarm, seat=Seat(1, 0), peer=PeerId("ahead"), claim=0, checkpoint_step=9)
    node.feed(ev.RecordLearnt(ahead, LIVES_S))
    swarm.run(30.0, until=lambda: (Phase.TRAINING, Phase.SYNCING) in seen)
    assert (Phase.TRAINING, Phase.SYNCING) in seen


@pytest.mark.parametrize("phase", [Phase.SYNCING, Phase.TRAINING, Phase.EXCHANGING])
def test_an_outranked_node_joins_again(phase: Phase, seen: set[Step]) -> None:
    swarm, node = swarm_with_a_node_in(phase)
    rival = record_of(node, swarm, peer=PeerId("rival"), claim=0)
    node.feed(ev.RecordLearnt(rival, LIVES_S))
    assert (phase, Phase.JOINING) in seen


@pytest.mark.parametrize("phase", [Phase.JOINING, Phase.SYNCING, Phase.TRAINING, Phase.EXCHANGING])
def test_a_stop_ends_in_left_from_every_phase(phase: Phase, seen: set[Step]) -> None:
    swarm, node = swarm_with_a_node_in(phase)
    node.feed(ev.StopRequested("signal"))
    assert seen & {(phase, Phase.DRAINING), (phase, Phase.LEFT)}
    swarm.run(20.0, until=lambda: node.left is not None)
    assert node.machine.phase is Phase.LEFT


def test_a_stop_after_the_claim_is_published_drains_first(seen: set[Step]) -> None:
    swarm, node = swarm_with_a_node_in(Phase.JOINING)
    swarm.run(60.0, until=lambda: node.record is not None)
    node.feed(ev.StopRequested("signal"))
    assert (Phase.JOINING, Phase.DRAINING) in seen


@pytest.mark.parametrize("phase", [Phase.JOINING, Phase.SYNCING, Phase.TRAINING, Phase.EXCHANGING, Phase.DRAINING])
def test_a_second_process_with_the_key_ends_the_first_in_every_phase(phase: Phase, seen: set[Step]) -> None:
    swarm, node = swarm_with_a_node_in(phase)
    swarm.run(60.0, until=lambda: node.record is not None and node.machine.membership.claim is not None)
    node.feed(ev.RecordLearnt(record_of(node, swarm, incarnation=node.machine.incarnation + 1), LIVES_S))
    assert (phase, Phase.LEFT) in seen


def test_the_ways_out_named_here_are_all_that_the_table_lists() -> None:
    life = {
        (Phase.JOINING, Phase.SYNCING),
        (Phase.SYNCING, Phase.TRAINING),
        (Phase.TRAINING, Phase.EXCHANGING),
        (Phase.EXCHANGING, Phase.TRAINING),
        (Phase.TRAINING, Phase.DRAINING),
        (Phase.TRAINING, Phase.SYNCING),
        (Phase.SYNCING, Phase.DRAINING),
        (Phase.DRAINING, Phase.LEFT),
    }
    outranked = {(phase, Phase.JOINING) for phase in (Phase.SYNCING, Phase.TRAINING, Phase.EXCHANGING)}
    stopped = {(phase, Phase.DRAINING) for phase in (Phase.JOINING, Phase.SYNCING, Phase.TRAINING, Phase.EXCHANGING)}
    doubled = {(phase, Phase.LEFT) for phase in Phase if phase is not Phase.LEFT}
    assert life | outranked | stopped | doubled == LISTED
