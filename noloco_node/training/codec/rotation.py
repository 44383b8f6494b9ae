"""A random rotation of blocks: signs drawn from the seed, then the Walsh-Hadamard transform.

Whatever a block's values look like, after it each is a sum of all of them with random signs, hence nearly normal: one
scale fits the whole block, a few places tell its size, and no outlier is left that a modulo code would take for
another value. Owns the transform; must not know what it is used for.

Only elementwise float32 additions and subtractions, level by level: the same bits on every device. Of integers whose
magnitudes add up to less than 2^24 in a block it is exact, and T(-v) = -T(v) bit for bit always.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import torch
from torch import Tensor

from noloco_node.core.seed import integers


def draw_signs(seed: int, block_values: int) -> Tensor:
    """(block_values,) of -1 and 1, one bit of the draw each."""
    bits = (word >> bit & 1 for word in _words(seed, block_values // 64) for bit in range(64))
    return torch.tensor([1.0 - 2.0 * bit for bit in bits])


def _words(seed: int, count: int) -> Iterator[int]:
    return islice(integers(seed, "codec", "signs"), count)


def hadamard(rows: Tensor) -> Tensor:
    """Walsh-Hadamard transform of each row (natural order, not normalised), in `rows` itself or in new memory.

    rows: (m, n) float32, contiguous, n a power of two; its content is lost. Done twice it is n times the identity.
    """
    num_rows, length = rows.shape
    source, target, width = rows, torch.empty_like(rows), 1
    while width < length:
        pairs, sums = (each.view(num_rows, -1, 2, width) for each in (source, target))
        torch.add(pairs[:, :, 0], pairs[:, :, 1], out=sums[:, :, 0])
        torch.sub(pairs[:, :, 0], pairs[:, :, 1], out=sums[:, :, 1])
        source, target, width = target, source, width * 2
    return source
