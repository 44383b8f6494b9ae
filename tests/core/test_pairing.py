"""The pairing draw. Its properties as the paper states them are in tests/paper/test_paper_pairing.py."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noloco_node.core import pairing


def test_groups_are_slices_of_one_order() -> None:
    groups = pairing.groups(3, 1, 7, 7)
    assert [len(group) for group in groups] == [2, 2, 2, 1]
    assert sorted(replica for group in groups for replica in group) == list(range(7))


@given(st.integers(1, 40), st.integers(2, 6))
def test_group_sizes_differ_by_at_most_one(num_replicas: int, group_size: int) -> None:
    sizes = [len(group) for group in pairing.groups(1, 0, 0, num_replicas, group_size)]
    assert sum(sizes) == num_replicas
    assert len(sizes) == -(-num_replicas // group_size)
    assert max(sizes) <= group_size
    assert max(sizes) - min(sizes) <= 1


@given(st.integers(1, 33), st.integers(0, 500), st.integers(0, 5))
def test_partner_is_the_other_member_of_the_group(num_replicas: int, outer_step: int, stage: int) -> None:
    for group in pairing.groups(11, stage, outer_step, num_replicas):
        for replica in group:
            others = [other for other in group if other != replica]
            assert pairing.partner(11, stage, outer_step, num_replicas, replica) == (others[0] if others else None)


def test_a_lone_replica_rests() -> None:
    assert pairing.partner(1, 0, 0, 1, 0) is None


def test_a_replica_outside_the_table_is_refused() -> None:
    with pytest.raises(ValueError, match="not in tuple"):
        pairing.partner(1, 0, 0, 4, 4)


def test_stages_pair_independently() -> None:
    draws = [[pairing.partner(1, stage, k, 8, 0) for k in range(20)] for stage in range(3)]
    assert draws[0] != draws[1] != draws[2] != draws[0]


@given(st.permutations(range(9)))
def test_repair_order_does_not_depend_on_the_order_of_the_others(others: list[int]) -> None:
    assert pairing.repair_order(5, 1, 3, 4, others) == pairing.repair_order(5, 1, 3, 4, range(9))


def test_repair_order_leaves_oneself_out_and_keeps_all_others() -> None:
    assert sorted(pairing.repair_order(5, 1, 3, 4, [4, 6, 2, 6])) == [2, 6]


def test_two_orphans_see_the_same_liking() -> None:
    """Walking to the best liked again and again ends at two that like each other best: nobody asks in a circle."""
    orphans = range(10)
    for outer_step in range(30):
        best = {a: pairing.repair_order(5, 0, outer_step, a, orphans)[0] for a in orphans}
        assert any(best[best[a]] == a for a in orphans)
        trail = [0]
        while best[best[trail[-1]]] != trail[-1]:
            trail.append(best[trail[-1]])
            assert len(trail) <= len(orphans)


def test_repair_order_changes_with_the_outer_step() -> None:
    assert len({pairing.repair_order(5, 0, k, 0, range(6)) for k in range(20)}) > 15
