"""The node's machine, many of them together, on a virtual clock."""

from __future__ import annotations

import dataclasses

import pytest
from virtual_swarm import START_S, VirtualSwarm

from noloco_node.core import effects as do
from noloco_node.core import events as ev
from noloco_node.core.outer_clock import NOT_BEGUN
from noloco_node.core.types import Admit, Ask, Clock, ClosedStep, Commit, Outcome, Phase, Seat, Settings, Wait

BASE = Settings(
    run="r",
    seed=7,
    num_stages=2,
    num_replicas=2,
    micro_batches=4,
    inner_steps=5,
    total_outer_steps=3,
    clock=Clock.STEPS,
    grace_s=20.0,
    exchange_max_s=60.0,
    lease_s=60.0,
    renew_s=20.0,
    settle_s=1.0,
    idle_close_s=5.0,
    late_s=30.0,
)


def settings(**changes: object) -> Settings:
    from dataclasses import replace

    return replace(BASE, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("admit", [Admit.ARRIVAL, Admit.ORDERED])
@pytest.mark.parametrize(("stages", "replicas"), [(1, 2), (2, 2), (1, 4), (3, 2), (4, 4)])
def test_a_full_swarm_pairs_every_outer_step_and_leaves(stages: int, replicas: int, admit: Admit) -> None:
    seats = stages * replicas
    swarm = VirtualSwarm(settings(num_stages=stages, num_replicas=replicas, admit=admit, start_seats=seats))
    swarm.run_to_end()
    assert [n.left.reason if n.left else n.machine.phase for n in swarm.nodes] == ["finished"] * (stages * replicas)
    assert swarm.outcomes() == {Outcome.PAIRED: 3 * stages * replicas, Outcome.SOLO: 0}
    for node in swarm.nodes:
        assert node.corrections == [0, 1, 2]
        assert set(node.in_flight_at_change) == {0}


def test_an_odd_swarm_rests_one_replica_in_each_outer_step() -> None:
    swarm = VirtualSwarm(settings(num_stages=1, num_replicas=3, start_seats=3))
    swarm.run_to_end()
    assert swarm.outcomes() == {Outcome.PAIRED: 6, Outcome.SOLO: 3}


def test_a_lone_node_takes_solo_steps() -> None:
    swarm = VirtualSwarm(settings(num_stages=1, num_replicas=1))
    swarm.run_to_end()
    assert swarm.outcomes() == {Outcome.PAIRED: 0, Outcome.SOLO: 3}
    assert len(swarm.nodes[0].steps) == 15


def test_every_own_micro_batch_is_trained_or_dropped() -> None:
    swarm = VirtualSwarm(settings(num_stages=3, num_replicas=2, start_seats=6))
    swarm.run_to_end()
    for node in swarm.nodes[:2]:
        assert node.machine.flow is not None
        accounts = node.machine.flow.accounts
        assert accounts.trained == 3 * 5 * 4
        assert node.machine.flow.open == 0


def test_ordered_steps_train_on_exactly_m_micro_batches() -> None:
    swarm = VirtualSwarm(settings(admit=Admit.ORDERED, start_seats=4))
    swarm.run_to_end()
    for node in swarm.nodes:
        assert [step.micro_batches for step in node.steps] == [4] * 15
        assert [step.position for step in node.steps] == list(range(15))


def test_the_time_clock_closes_outer_steps_by_time() -> None:
    swarm = VirtualSwarm(settings(clock=Clock.TIME, outer_interval_s=10.0, total_outer_steps=4, start_seats=4))
    swarm.nodes[1].compute_s = 0.03  # a slower machine
    swarm.run_to_end()
    assert all(n.left is not None for n in swarm.nodes)
    assert swarm.outcomes()[Outcome.SOLO] == 0


def test_nobody_trains_before_outer_step_0_begins() -> None:
    swarm = VirtualSwarm(settings(clock=Clock.TIME, outer_interval_s=10.0, total_outer_steps=2, num_stages=1))
    swarm.run(START_S - swarm.now - 0.01)
    assert {node.machine.waits_for for node in swarm.nodes if node.machine.phase is Phase.TRAINING} == {NOT_BEGUN}
    swarm.run_to_end()
    begun = [now for node in swarm.nodes for now, effect in node.log if isinstance(effect, do.RunForward)]
    assert START_S <= min(begun) < START_S + 0.1
    assert swarm.outcomes()[Outcome.PAIRED] > 0


def test_intervals_without_training_pass_unclosed() -> None:
    swarm = VirtualSwarm(settings(clock=Clock.TIME, outer_interval_s=5.0, total_outer_steps=0), seats=[Seat(0, 0)])
    swarm.run(60.0)
    node = swarm.nodes[0]
    assert node.closed == []
    assert node.machine.outer_step >= 9
    assert node.machine.waits_for == "no replica of stage 1 is known"


def test_a_newcomer_of_an_empty_stage_waits_while_the_run_has_a_past() -> None:
    swarm = VirtualSwarm(settings(total_outer_steps=0, start_seats=4))
    gone = [swarm.node(1, 0), swarm.node(1, 1)]
    swarm.run(60.0, until=lambda: all(len(n.closed) >= 2 for n in swarm.nodes))
    for node in gone:
        node.alive = False
    swarm.run(70.0)
    late = swarm.add(Seat(1, 0))
    swarm.run(40.0)
    assert late.machine.phase is Phase.SYNCING
    assert "has trained" in late.machine.waits_for
    assert not any(isinstance(effect, do.InitialiseState) for _, effect in late.log)


def test_a_step_of_lost_work_alone_closes_when_nothing_comes() -> None:
    swarm = VirtualSwarm(settings(total_outer_steps=0, start_seats=4))
    last = swarm.node(1, 0)
    swarm.run(60.0, until=lambda: len(last.closed) >= 1)
    assert last.machine.flow is not None
    gate = last.machine.flow.gate
    gate.totals.admitted = max(1, gate.totals.admitted)
    for node in swarm.nodes[:2]:
        node.alive = False
    swarm.run(40.0)
    assert gate.is_empty


def test_a_killed_replica_leaves_its_partner_solo_and_its_micro_batches_to_others() -> None:
    swarm = VirtualSwarm(settings(total_outer_steps=6, start_seats=4, grace_s=5.0, lease_s=10.0, renew_s=3.0))
    victim = swarm.node(1, 1)
    swarm.run(60.0, until=lambda: len(victim.closed) >= 2)
    victim.alive = False
    swarm.run_to_end()
    survivors = [n for n in swarm.nodes if n is not victim]
    assert all(n.left is not None for n in survivors)
    partner = swarm.node(1, 0)
    assert [c.outcome for c in partner.closed].count(Outcome.SOLO) >= 3
    for node in swarm.nodes[:2]:
        assert node.machine.flow is not None
        assert node.machine.flow.accounts.dropped <= 4


@pytest.mark.parametrize("at_s", [0.005, 0.5, 1.5, 3.0, 3.3, 4.0, 6.0])
def test_a_stop_in_any_phase_ends_within_the_grace_time(at_s: float) -> None:
    swarm = VirtualSwarm(settings(total_outer_steps=0))
    node = swarm.nodes[0]
    swarm.run(at_s)
    had_state = node.machine.flow is not None
    node.feed(ev.StopRequested("signal"))
    swarm.run(15.0, until=lambda: node.left is not None)
    assert node.left is not None
    assert node.machine.phase is Phase.LEFT
    saved = [e for _, e in node.log if isinstance(e, do.SaveCheckpoint)]
    assert bool(saved) == had_state
    if had_state:
        published = [e for _, e in node.log if isinstance(e, do.PublishRecord)]
        assert published[-1].state == "leaving"


def test_after_a_restart_the_partner_hears_how_the_step_of_the_checkpoint_closed() -> None:
    swarm = VirtualSwarm(settings(num_stages=1, total_outer_steps=0, start_seats=2))
    node, partner = swarm.nodes
    swarm.run(60.0, until=lambda: len(node.closed) >= 1)
    last = node.closed[0]
    node.machine.phase, node.machine._sync_asked = Phase.SYNCING, True
    node.feed(ev.StateLoaded(1, 0, 8, "checkpoint", ClosedStep(0, last.outcome, last.reason, last.partner, last.peer)))
    said = node.machine.handle(ev.ExchangeMessageReceived(partner.peer, Ask(0)), swarm.now)
    assert do.SendExchange(partner.peer, Commit(0)) in said
    node.machine.phase, node.machine._sync_asked = Phase.SYNCING, True
    node.feed(ev.StateLoaded(1, 0, 8, "checkpoint", ClosedStep(5, last.outcome, "", last.partner, last.peer)))
    said = node.machine.handle(ev.ExchangeMessageReceived(partner.peer, Ask(5)), swarm.now)
    assert do.SendExchange(partner.peer, Wait(5)) in said  # a note that cannot be true is not believed


def test_a_record_that_renews_what_is_known_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    swarm = VirtualSwarm(settings(total_outer_steps=0, start_seats=4))
    node, other = swarm.node(0, 0), swarm.node(1, 0)
    swarm.run(60.0, until=lambda: len(node.closed) >= 1)
    assert other.record is not None
    lives_s = other.record.expires / 1000 - swarm.now + 1
    newer = dataclasses.replace(other.record, seq=other.record.seq + 1, expires=other.record.expires + 1000)
    monkeypatch.setattr(type(node.machine), "_settle", lambda machine: pytest.fail("nothing is to be settled"))
    assert node.machine.handle(ev.RecordLearnt(newer, lives_s), swarm.now) == []
    assert newer in node.machine.membership.roster.live(other.record.seat, swarm.now)
