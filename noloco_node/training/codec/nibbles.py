"""Two numbers below 16 in a byte, and eight single bits in one.

Partners in a byte lie half (an eighth) of a row apart, so that all work is on contiguous halves, never on every second
element. uint8 in and out; rows of a multiple of two (eight) values.
"""

from __future__ import annotations

import torch
from torch import Tensor


def pack(values: Tensor) -> Tensor:
    """(rows, n) below 16 to (rows, n/2): the first half of a row in the lower four bits."""
    half = values.shape[1] // 2
    return values[:, :half] | (values[:, half:] << 4)


def unpack(packed: Tensor) -> Tensor:
    return torch.cat([packed & 15, packed >> 4], dim=1)


def pack_bits(values: Tensor) -> Tensor:
    """(rows, n) of 0 or 1 to (rows, n/8): eighth j of a row in bit j."""
    planes = values.view(len(values), 8, -1)
    packed = planes[:, 0].clone()
    for bit in range(1, 8):
        packed |= planes[:, bit] << bit
    return packed


def unpack_bits(packed: Tensor) -> Tensor:
    return torch.cat([(packed >> bit) & 1 for bit in range(8)], dim=1)
