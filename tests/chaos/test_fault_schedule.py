"""The plan of a chaos run is a pure function of the seed, and never does what cannot be undone."""

from __future__ import annotations

from collections import Counter

import pytest
from fault_schedule import BACK_S, UNDONE_BY, Action, Deed, Plan, schedule

NODES = tuple(f"n{i}" for i in range(8))
PLAN = Plan(seconds=600.0)


def test_same_seed_same_deeds_and_another_seed_others() -> None:
    assert schedule(1, NODES, PLAN) == schedule(1, NODES, PLAN)
    assert schedule(1, NODES, PLAN) != schedule(2, NODES, PLAN)


def test_seed_1_begins_as_it_always_did() -> None:
    """A run is told by its seed alone: when this changes, the seeds of earlier reports mean other runs."""
    assert schedule(1, NODES, PLAN)[:3] == FIRST_OF_SEED_1


@pytest.mark.parametrize("seed", range(20))
def test_ten_minutes_hold_every_fault_and_end_calm(seed: int) -> None:
    deeds = schedule(seed, NODES, PLAN)
    assert {deed.action for deed in deeds} == set(Action)
    assert max(deed.at_s for deed in deeds) <= PLAN.seconds - PLAN.calm_after_s
    assert min(deed.at_s for deed in deeds) >= PLAN.calm_before_s


@pytest.mark.parametrize("seed", range(20))
def test_a_node_suffers_one_fault_at_a_time_and_each_is_undone(seed: int) -> None:
    faulty: dict[str, Action] = {}
    back_s: dict[str, float] = {}
    there = set(NODES)
    for deed in schedule(seed, NODES, PLAN):
        if deed.action is Action.JOIN:
            there.add(deed.node)
            continue
        assert deed.node in there
        if deed.action in UNDONE_BY.values():
            assert UNDONE_BY[faulty.pop(deed.node)] is deed.action
            back_s[deed.node] = deed.at_s + BACK_S
            continue
        assert deed.node not in faulty
        assert deed.at_s >= back_s.get(deed.node, 0.0) - 0.01
        if deed.action in UNDONE_BY:
            faulty[deed.node] = deed.action
        if deed.action is Action.LEAVE:
            there.remove(deed.node)
    assert faulty == {}
    assert len(there) == len(NODES)


@pytest.mark.parametrize("seed", range(20))
def test_no_more_than_a_quarter_is_disturbed_at_once(seed: int) -> None:
    down: set[str] = set()
    for deed in schedule(seed, NODES, PLAN):
        if deed.action in UNDONE_BY:
            down.add(deed.node)
        down.discard(deed.node) if deed.action in UNDONE_BY.values() else None
        assert len(down) <= len(NODES) // 4


def test_a_deck_without_cuts_cuts_nothing() -> None:
    plan = Plan(seconds=600.0, deck=tuple(action for action in PLAN.deck if action is not Action.CUT))
    assert Counter(deed.action for deed in schedule(1, NODES, plan))[Action.CUT] == 0


FIRST_OF_SEED_1 = (
    Deed(10.0, Action.KILL_DAEMON, "n7"),
    Deed(21.58, Action.STOP, "n0"),
    Deed(41.29, Action.KILL, "n1"),
)
