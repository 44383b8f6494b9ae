"""NoLoCo (arXiv 2506.10911), section 3.2: outer steps synchronise "only pairs of the accelerators", "a randomly chosen
local subgroup of n instances", n = 2, from a draw that nobody negotiates."""

from __future__ import annotations

from collections import Counter
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noloco_node.core import pairing

SEEDS = st.integers(0, 2**64 - 1)
STEPS = st.integers(0, 10**6)


@given(SEEDS, STEPS, st.integers(0, 7), st.integers(1, 40))
def test_partner_of_partner_is_self(seed: int, outer_step: int, stage: int, half: int) -> None:
    num_replicas = 2 * half
    partners = [pairing.partner(seed, stage, outer_step, num_replicas, replica) for replica in range(num_replicas)]
    for replica, partner in enumerate(partners):
        assert partner is not None
        assert partner != replica
        assert partners[partner] == replica


@given(SEEDS, STEPS, st.integers(0, 7), st.integers(0, 20))
def test_exactly_one_replica_rests_when_their_number_is_odd(seed: int, outer_step: int, stage: int, half: int) -> None:
    num_replicas = 2 * half + 1
    partners = [pairing.partner(seed, stage, outer_step, num_replicas, replica) for replica in range(num_replicas)]
    assert partners.count(None) == 1
    assert all(p is None or partners[p] == replica for replica, p in enumerate(partners))


def test_the_resting_replica_changes_evenly() -> None:
    rests = Counter(
        next(replica for replica in range(5) if pairing.partner(7, 0, k, 5, replica) is None) for k in range(2000)
    )
    assert sum((rests[replica] - 400) ** 2 / 400 for replica in range(5)) < 25  # chi-square, 4 degrees of freedom


@pytest.mark.parametrize("num_replicas", [4, 6, 7])
def test_every_pair_is_equally_likely(num_replicas: int) -> None:
    steps = 3000
    met = Counter(
        tuple(sorted(group)) for k in range(steps) for group in pairing.groups(3, 1, k, num_replicas) if len(group) == 2
    )
    pairs = list(combinations(range(num_replicas), 2))
    expected = steps * (num_replicas // 2) / len(pairs)
    assert set(met) == set(pairs)
    assert sum((met[pair] - expected) ** 2 / expected for pair in pairs) < 3 * len(pairs)


def test_pairs_of_successive_outer_steps_are_independent() -> None:
    """A pair of N = 6 meets again at the next step with chance 1/5."""
    draws = [pairing.partner(9, 0, k, 6, 0) for k in range(2001)]
    again = sum(a == b for a, b in pairwise(draws))
    assert 330 < again < 470


@given(SEEDS, STEPS, st.permutations(range(8)))
def test_the_draw_does_not_depend_on_who_is_alive_or_in_which_order_they_are_known(
    seed: int, outer_step: int, roster: list[int]
) -> None:
    """It is over the seats of the table: any node that knows any of them computes the same partners."""
    known = {replica: pairing.partner(seed, 0, outer_step, 8, replica) for replica in roster[:5]}
    assert all(known[replica] == pairing.partner(seed, 0, outer_step, 8, replica) for replica in sorted(known))
    assert {frozenset(group) for group in pairing.groups(seed, 0, outer_step, 8)} == {
        frozenset((replica, pairing.partner(seed, 0, outer_step, 8, replica) or 0)) for replica in roster
    }
