"""Which replica of each stage a micro-batch visits.

Owns the draw `routing`: for the boundary into stage s (s >= 1) and micro-batch number n, one permutation pi of the
replicas, applied to the *origin* replica r: the micro-batch goes to pi[r]. Because the path is named by the origin
and not by the sender, a detour at one stage leaves the rest of the path as it was, and a receiver finds the origin by
inverting pi. For each n every replica of a stage gets exactly one micro-batch. Must not know: who holds a seat, who is
busy. Source: paper section 3.1, DESIGN sections 3 and 5 ("Path").
"""

from __future__ import annotations

from noloco_node.core import seed as draws
from noloco_node.core.types import MicroBatchId


def _boundary(seed: int, stage: int, n: int, num_replicas: int) -> tuple[int, ...]:
    if stage < 1:
        raise ValueError("a micro-batch is drawn at stage 0, not routed into it")
    return draws.permutation(seed, "routing", stage, n, n=num_replicas)


def candidates(seed: int, stage: int, n: int, origin: int, num_replicas: int) -> tuple[int, ...]:
    """Replicas of `stage` in the order in which micro-batch (origin, n) tries them: pi[r], pi[r+1], ... around.

    The first is its drawn place; the others stand in when that seat is vacant, busy or broken. Each occurs once.
    """
    order = _boundary(seed, stage, n, num_replicas)
    return order[origin:] + order[:origin]


def origin_of(seed: int, stage: int, n: int, replica: int, num_replicas: int) -> int:
    """Inverse of the draw: the origin whose micro-batch number `n` is meant for `replica` of `stage`."""
    return _boundary(seed, stage, n, num_replicas).index(replica)


def ordered_ids(
    seed: int, stage: int, inner_step: int, replica: int, micro_batches: int, num_replicas: int
) -> tuple[MicroBatchId, ...]:
    """Ids of inner step t at `replica` under `admit = "ordered"`: numbers t*M .. (t+1)*M - 1, in this order.

    `inner_step` counts from the start of the run, `micro_batches` is M. At stage 0 they are the replica's own.
    """
    numbers = range(inner_step * micro_batches, (inner_step + 1) * micro_batches)
    if stage == 0:
        return tuple(MicroBatchId(replica, n) for n in numbers)
    return tuple(MicroBatchId(origin_of(seed, stage, n, replica, num_replicas), n) for n in numbers)
