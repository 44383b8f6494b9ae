"""The routing draw. Its properties as the paper states them are in tests/paper/test_paper_routing.py."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noloco_node.core import routing
from noloco_node.core.types import MicroBatchId

SIZES = st.integers(1, 20)


@given(SIZES, st.integers(1, 6), st.integers(0, 10**9), st.data())
def test_candidates_are_a_permutation(num_replicas: int, stage: int, n: int, data: st.DataObject) -> None:
    origin = data.draw(st.integers(0, num_replicas - 1))
    assert sorted(routing.candidates(9, stage, n, origin, num_replicas)) == list(range(num_replicas))


@given(SIZES, st.integers(1, 6), st.integers(0, 10**9), st.data())
def test_origin_inverts_the_first_candidate(num_replicas: int, stage: int, n: int, data: st.DataObject) -> None:
    origin = data.draw(st.integers(0, num_replicas - 1))
    first = routing.candidates(9, stage, n, origin, num_replicas)[0]
    assert routing.origin_of(9, stage, n, first, num_replicas) == origin


def test_the_next_candidate_is_the_next_origins_place() -> None:
    """pi[r], pi[r + 1 mod N], ...: one permutation for all origins."""
    firsts = [routing.candidates(2, 1, 5, origin, 6)[0] for origin in range(6)]
    assert routing.candidates(2, 1, 5, 4, 6) == tuple(firsts[4:] + firsts[:4])


def test_boundaries_and_numbers_draw_independently() -> None:
    paths = {tuple(routing.candidates(2, stage, n, 0, 5)) for stage in (1, 2, 3) for n in range(20)}
    assert len(paths) > 35


def test_nothing_is_routed_into_stage_zero() -> None:
    with pytest.raises(ValueError, match="stage 0"):
        routing.candidates(2, 0, 1, 0, 4)


def test_ordered_ids_at_stage_zero_are_ones_own() -> None:
    assert routing.ordered_ids(2, 0, 3, 1, 2, 4) == (MicroBatchId(1, 6), MicroBatchId(1, 7))


@given(SIZES, st.integers(0, 50), st.integers(1, 8), st.integers(1, 3))
def test_ordered_ids_cut_all_micro_batches_among_the_replicas(
    num_replicas: int, inner_step: int, micro_batches: int, stage: int
) -> None:
    ids = [
        id
        for replica in range(num_replicas)
        for id in routing.ordered_ids(4, stage, inner_step, replica, micro_batches, num_replicas)
    ]
    numbers = range(inner_step * micro_batches, (inner_step + 1) * micro_batches)
    assert sorted(ids) == [MicroBatchId(origin, n) for origin in range(num_replicas) for n in numbers]


def test_ordered_ids_are_in_index_order_and_name_the_replica_as_first_candidate() -> None:
    ids = routing.ordered_ids(4, 2, 5, 3, 4, 6)
    assert [id.n for id in ids] == [20, 21, 22, 23]
    assert all(routing.candidates(4, 2, id.n, id.origin, 6)[0] == 3 for id in ids)
