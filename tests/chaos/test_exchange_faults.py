"""Faults inside an exchange of real processes: each outer step ends alike on both sides, and training goes on.

A few of them run with the other tests, all of them with `make faults`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from duel import DECIDER, FOLLOWER, Duel, Pace, duel, limits_kept
from fault_schedule import Action
from network_lab import open_network

from noloco_node.core import limits

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ALL = os.environ.get("CHAOS_ALL", "") == "1"
KILLS = [(victim, share) for victim in (FOLLOWER, DECIDER) for share in (0.01, 0.5, 0.99, 0.998)]
rare = pytest.mark.skipif(not ALL, reason="runs with CHAOS_ALL=1")

QUICK = Pace(interval_s=10.0, grace_s=3.0, exchange_max_s=8.0)
PATIENT = Pace(interval_s=30.0, grace_s=5.0, exchange_max_s=24.0)  # an exchange outlives a stalled stream


@pytest.fixture(scope="module", autouse=True)
def namespaces() -> None:
    network = open_network()
    network.close()
    if not network.can_cut:
        pytest.skip(network.words)


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory, namespaces: None) -> Iterator[Duel]:
    with duel(tmp_path_factory.mktemp("quick"), QUICK) as found:
        yield found


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory, namespaces: None) -> Iterator[Duel]:
    with duel(tmp_path_factory.mktemp("patient"), PATIENT) as found:
        yield found


@pytest.mark.parametrize(("victim", "share"), KILLS if ALL else [(FOLLOWER, 0.5)])
def test_a_partner_killed_inside_its_tensor_leaves_the_other_solo_in_time_and_pairs_again(
    quick: Duel, victim: str, share: float
) -> None:
    survivor = DECIDER if victim == FOLLOWER else FOLLOWER
    quick.wait_until_both_train()
    step = quick.next_step()
    quick.wait_until_sent(victim, step, share)
    quick.do(Action.KILL, victim)
    quick.do(Action.RESTART, victim)
    line = quick.outcomes(step, (survivor,))[survivor]
    assert limits_kept(quick, line, step)
    if line["outcome"] == "paired":  # then READY, or COMMIT, was out before it died
        assert share > 0.9
    quick.wait_until_paired(after=step)


@rare
def test_a_partner_stopped_before_the_boundary_for_longer_than_the_grace_time_is_solo_on_both_sides(
    quick: Duel,
) -> None:
    quick.wait_until_both_train()
    step = quick.next_step()
    quick.stopped_for(FOLLOWER, QUICK.grace_s + 3.0)
    closed = quick.outcomes(step)
    assert [line["outcome"] for line in closed.values()] == ["solo", "solo"]
    assert limits_kept(quick, closed[DECIDER], step)
    quick.wait_until_paired(after=step)


@pytest.mark.parametrize("victim", [FOLLOWER, DECIDER] if ALL else [DECIDER])
def test_a_partner_stopped_inside_the_trade_ends_alike_on_both_sides(quick: Duel, victim: str) -> None:
    quick.wait_until_both_train()
    step = quick.next_step()
    quick.wait_until_sent(victim, step, 0.5)
    quick.stopped_for(victim, QUICK.grace_s + 1.0)
    assert_alike(quick, step)
    quick.wait_until_paired(after=step)


def test_a_link_cut_for_less_than_the_stall_time_is_waited_for(quick: Duel) -> None:
    quick.wait_until_both_train()
    step = quick.next_step()
    quick.wait_until_sent(FOLLOWER, step, 0.3)
    quick.cut_for(FOLLOWER, 1.5)
    assert_alike(quick, step)
    quick.wait_until_paired(after=step)


@rare
def test_a_dead_p2pd_inside_the_trade_ends_alike_on_both_sides(quick: Duel) -> None:
    quick.wait_until_both_train()
    step = quick.next_step()
    quick.wait_until_sent(DECIDER, step, 0.5)
    quick.do(Action.KILL_DAEMON, DECIDER)
    assert_alike(quick, step)
    quick.wait_until_paired(after=step)


@rare
def test_a_link_cut_for_longer_than_the_stall_time_is_resumed_on_a_new_stream(patient: Duel) -> None:
    patient.wait_until_both_train()
    step = patient.next_step()
    patient.wait_until_sent(DECIDER, step, 0.5)
    patient.cut_for(DECIDER, limits.STALL_S + 2.0)
    assert_alike(patient, step)
    patient.wait_until_paired(after=step)


def assert_alike(found: Duel, step: int) -> None:
    """Both paired or both solo, within the limits."""
    closed = found.outcomes(step)
    assert len({line["outcome"] for line in closed.values()}) == 1, closed
    for line in closed.values():
        assert limits_kept(found, line, step), closed
