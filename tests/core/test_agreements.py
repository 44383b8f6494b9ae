"""With whom: several agreements of one stage find partners, whoever sees whom, in whatever order messages come."""

from __future__ import annotations

import pytest
from agreement_stage import PHASE_S, assert_mutual, peer, seat, settle
from hypothesis import given, settings
from hypothesis import strategies as st

from noloco_node.core import pairing
from noloco_node.core.agreement import Agreed


@given(num=st.integers(1, 9), seed=st.integers(0, 50), data=st.data())
@settings(max_examples=200, deadline=None)
def test_with_one_view_at_most_one_active_seat_stays_alone(num: int, seed: int, data: st.DataObject) -> None:
    active = sorted(data.draw(st.sets(st.integers(0, num - 1), min_size=1)))
    views = {r: set(active) - {r} for r in active}
    stage = settle(num, active, views, lambda n: data.draw(st.integers(0, n - 1)), seed)
    assert_mutual(stage)
    for r in active:
        drawn = pairing.partner(seed, 0, 0, num, r)
        if drawn in active:
            assert stage[r].partner_of(0) == Agreed(seat(drawn), peer(drawn)), "active drawn partners keep each other"
    alone = [r for r in active if stage[r].partner_of(0) is None]
    assert len(alone) <= 1


@given(num=st.integers(2, 6), seed=st.integers(0, 50), data=st.data())
@settings(max_examples=200, deadline=None)
def test_with_different_views_agreements_are_still_mutual(num: int, seed: int, data: st.DataObject) -> None:
    active = list(range(num))
    subsets = st.sets(st.integers(0, num - 1))
    views = {r: data.draw(subsets) - {r} for r in active}
    assert_mutual(settle(num, active, views, lambda n: data.draw(st.integers(0, n - 1)), seed))


@given(num=st.integers(2, 9), seed=st.integers(0, 50), data=st.data())
@settings(max_examples=200, deadline=None)
def test_seats_that_meet_one_after_the_other_leave_at_most_one_alone(num: int, seed: int, data: st.DataObject) -> None:
    """A new run without a gate: who was not seen yet finds its drawn partner taken, and others in the same position."""
    active = sorted(data.draw(st.sets(st.integers(0, num - 1), min_size=1)))
    views = {r: data.draw(st.sets(st.sampled_from(active))) - {r} for r in active}
    stage = settle(num, active, views, lambda n: data.draw(st.integers(0, n - 1)), seed, seen_s=PHASE_S / 2)
    assert_mutual(stage)
    assert sum(one.partner_of(0) is None for one in stage.values()) <= 1


@pytest.mark.parametrize(("num", "vacant"), [(3, {0}), (4, {0}), (4, {0, 1}), (5, {1, 3}), (5, {4}), (5, {0, 1, 2})])
def test_orphans_find_each_other(num: int, vacant: set[int]) -> None:
    active = [r for r in range(num) if r not in vacant]
    for seed in range(20):
        stage = settle(num, active, {r: set(active) - {r} for r in active}, lambda n: 0, seed)
        assert sum(one.partner_of(0) is not None for one in stage.values()) == len(active) // 2 * 2
