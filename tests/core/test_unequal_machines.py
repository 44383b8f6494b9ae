"""What slow and dying machines cost the others, on the virtual clock (outer clock by time)."""

import pytest
from virtual_swarm import HOP_S, VirtualNode, VirtualSwarm

from noloco_node.core import events as ev
from noloco_node.core import limits
from noloco_node.core.types import Clock, Outcome, Settings

INTERVAL_S = 60.0
COMPUTE_S = 0.2  # one forward, and half a backward, of a usual machine


def settings(stages: int, replicas: int, **changes: object) -> Settings:
    plain = {
        "run": "r",
        "seed": 7,
        "num_stages": stages,
        "num_replicas": replicas,
        "micro_batches": 4,
        "inner_steps": 20,
        "total_outer_steps": 0,
        "clock": Clock.TIME,
        "outer_interval_s": INTERVAL_S,
        "grace_s": 18.0,
        "lease_s": 20.0,
        "renew_s": 5.0,
        "settle_s": 1.0,
        "late_s": 20.0,
    }
    return Settings(**(plain | changes))  # type: ignore[arg-type]


def swarm_of(stages: int, replicas: int, slowness: dict[int, float] | None = None) -> VirtualSwarm:
    """`slowness`: how many times slower the node of that number is."""
    swarm = VirtualSwarm(settings(stages, replicas))
    for number, node in enumerate(swarm.nodes):
        node.compute_s = COMPUTE_S * (slowness or {}).get(number, 1.0)
    return swarm


def added(node: VirtualNode) -> int:
    """Micro-batches that went into this replica's steps."""
    flow = node.machine.flow
    assert flow is not None
    return flow.accounts.trained + flow.accounts.served


def kill(victim: VirtualNode) -> None:
    """The machine is gone; whoever has a call with it sees the stream break."""
    victim.alive = False
    seat = victim.machine.wanted
    assert seat is not None
    for caller in victim.calls.values():
        if caller is not None:
            node, call = caller
            node.later(HOP_S, ev.HopBroken(call, seat, "lost"))
    for target, call in victim.hops.values():
        target.later(HOP_S, ev.CallerLost(call))


def test_with_one_stage_a_machine_twenty_times_slower_costs_the_others_less_than_a_twentieth() -> None:
    equal, unequal = swarm_of(1, 4), swarm_of(1, 4, {3: 20.0})
    for swarm in (equal, unequal):
        swarm.run(12 * INTERVAL_S)
    others = range(3)
    share = sum(added(unequal.nodes[n]) for n in others) / sum(added(equal.nodes[n]) for n in others)
    assert share > 0.95, share
    slow = unequal.nodes[3]
    assert added(slow) > 0
    outcomes = [closed.outcome for closed in slow.closed]
    assert outcomes.count(Outcome.PAIRED) > 0.8 * len(outcomes)  # it finds its partners all the same


@pytest.mark.slow
def test_with_four_stages_a_machine_four_times_slower_does_not_slow_the_swarm_to_its_pace() -> None:
    equal, unequal = swarm_of(4, 4), swarm_of(4, 4, {5: 4.0})
    for swarm in (equal, unequal):
        swarm.run(5 * INTERVAL_S)
    share = sum(map(added, unequal.nodes)) / sum(map(added, equal.nodes))
    assert share > 0.65, share  # one of 16 machines runs at a quarter: 0.95 would be no loss at all
    assert all(node.machine.outer_step >= 4 for node in unequal.nodes)


@pytest.mark.slow
def test_four_by_four_with_crashes_and_a_slow_machine_never_stands_still() -> None:
    swarm = swarm_of(4, 4, {6: 4.0})
    swarm.run(2 * INTERVAL_S)
    for victim in (5, 10, 15):  # of different stages
        kill(swarm.nodes[victim])
        before = {n: added(node) for n, node in enumerate(swarm.nodes)}
        closed = {n: len(node.closed) for n, node in enumerate(swarm.nodes)}
        swarm.run(3 * INTERVAL_S)
        living = [(n, node) for n, node in enumerate(swarm.nodes) if node.alive]
        assert all(added(node) > before[n] for n, node in living)
        assert all(len(node.closed) >= closed[n] + 2 for n, node in living)
    for _, node in living:
        flow = node.machine.flow
        assert flow is not None
        away = [work for work in flow.gate.works if work.own and work.away_since_s]
        assert all(
            swarm.now - work.away_since_s < 2 * limits.HOP_GIVE_UP_S for work in away
        )  # nothing is lost for good
