"""NoLoCo (arXiv 2506.10911), section 3.1: "We use random permutations to group workers, and perform the routing based
on the random groups that guarantees good load balancing. During the backward pass, gradients follow the same path"."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from noloco_node.core import routing

SEEDS = st.integers(0, 2**64 - 1)


def path(seed: int, origin: int, n: int, num_stages: int, num_replicas: int) -> tuple[int, ...]:
    later = (routing.candidates(seed, stage, n, origin, num_replicas)[0] for stage in range(1, num_stages))
    return origin, *later


@given(SEEDS, st.integers(0, 10**9), st.integers(1, 5), st.integers(1, 16))
def test_every_micro_batch_takes_one_seat_per_stage_and_each_replica_gets_the_same_number(
    seed: int, n: int, num_stages: int, num_replicas: int
) -> None:
    paths = [path(seed, origin, n, num_stages, num_replicas) for origin in range(num_replicas)]
    for stage in range(num_stages):
        assert sorted(visited[stage] for visited in paths) == list(range(num_replicas))


@given(SEEDS, st.integers(0, 10**9), st.integers(2, 5), st.integers(1, 16), st.data())
def test_a_receiver_finds_the_origin_and_with_it_the_way_back(
    seed: int, n: int, num_stages: int, num_replicas: int, data: st.DataObject
) -> None:
    origin = data.draw(st.integers(0, num_replicas - 1))
    for stage, replica in enumerate(path(seed, origin, n, num_stages, num_replicas)):
        assert stage == 0 or routing.origin_of(seed, stage, n, replica, num_replicas) == origin


def test_every_replica_of_the_next_stage_is_equally_likely() -> None:
    counts = Counter(path(4, 2, n, 2, 5)[1] for n in range(2000))
    assert sum((counts[replica] - 400) ** 2 / 400 for replica in range(5)) < 25  # chi-square, 4 degrees of freedom


def test_all_paths_through_three_stages_occur_equally() -> None:
    counts = Counter(path(4, 0, n, 4, 3)[1:] for n in range(2700))
    assert len(counts) == 27
    assert sum((seen - 100) ** 2 / 100 for seen in counts.values()) < 62  # 26 degrees of freedom


@given(SEEDS, st.integers(0, 10**9), st.integers(2, 12))
def test_stand_ins_of_different_origins_do_not_all_fall_on_one_replica(seed: int, n: int, num_replicas: int) -> None:
    """When a replica is gone, its micro-batch goes to the next in the order, one place further for each failure."""
    seconds = [routing.candidates(seed, 1, n, origin, num_replicas)[1] for origin in range(num_replicas)]
    assert sorted(seconds) == list(range(num_replicas))
