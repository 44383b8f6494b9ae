"""Who mixes weights with whom at an outer step.

Owns the draw `pairing` and the order `repair` in which orphaned seats ask one another. Every draw is over the seats
of the fixed table, never over whoever is alive, so that all nodes compute the same pairs from the seed alone. Must
not know: who holds a seat. Source: paper section 3.2 (random groups of n = 2), DESIGN sections 3 and 5a.
"""

from __future__ import annotations

from collections.abc import Iterable

from noloco_node.core import seed as draws

PAIR = 2


def _order(seed: int, stage: int, outer_step: int, num_replicas: int) -> tuple[int, ...]:
    return draws.permutation(seed, "pairing", stage, outer_step, n=num_replicas)


def groups(
    seed: int, stage: int, outer_step: int, num_replicas: int, group_size: int = PAIR
) -> tuple[tuple[int, ...], ...]:
    """The stage's replicas cut into ceil(N / group_size) groups of a drawn order, as order[g::num_groups].

    Nodes only ever use pairs; with an odd N one group holds a single replica, which rests. Larger groups are for the
    lab. Sizes of two groups differ by at most one.
    """
    order = _order(seed, stage, outer_step, num_replicas)
    num_groups = -(-num_replicas // group_size)
    return tuple(order[first::num_groups] for first in range(num_groups))


def partner(seed: int, stage: int, outer_step: int, num_replicas: int, replica: int) -> int | None:
    """The replica drawn as partner of `replica` at `outer_step`; None for the odd one, which rests."""
    order = _order(seed, stage, outer_step, num_replicas)
    num_groups = -(-num_replicas // PAIR)
    place = order.index(replica)
    other = place + num_groups if place < num_groups else place - num_groups
    return order[other] if other < num_replicas else None


def repair_order(seed: int, stage: int, outer_step: int, replica: int, others: Iterable[int]) -> tuple[int, ...]:
    """Order in which `replica`, whose drawn partner is vacant, offers to the `others` in the same position.

    Sorted by a keyed hash of (stage, outer step, lower replica, higher replica): both ends of a pair see the same
    number, so two orphans that like each other best ask each other. How many are asked is the caller's limit
    (`limits.OFFERS_MAX`). `replica` itself is left out.
    """

    def liking(other: int) -> tuple[int, int]:
        low, high = sorted((replica, other))
        return draws.key64(seed, "repair", stage, outer_step, low, high), other

    return tuple(sorted({other for other in others if other != replica}, key=liking))
