"""How large the difference to a partner is, from little: the sketch that both sides send before x.

Owns what a sketch holds and the scale that follows from two. A sketch has per block of the *rotated* x its first 31
values and its largest magnitude, float32: 128 bytes on 8192 values, 1/8 bit a value. After the rotation each place of
a block is as large as any other, so the root mean square of 31 differences tells that of all 8192 within some 13 %.
Half a modulus of six of those, plus what rounding up adds, leaves up to 0.3 % of the blocks with a difference beyond it
(normal and heavy-tailed draws); five leave 4 %, and seven cost a decibel.

Both sides come to the same scale bit for bit: squares of opposite differences are equal, sums run in one fixed order,
elementwise in float64. A scale is k * 2^e with an integer k <= 8: as good as a power of two (products with integers
below 2^20 are exact), and finer.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from noloco_node.core import codec_sizes
from noloco_node.errors import RemoteProtocolError
from noloco_node.training.codec.blocks import check_received, check_sendable

SAMPLES: Final = codec_sizes.layout("lattice4").sketch_bytes // 4 - 1
REACH: Final = 6.0  # half the modulus, in root mean squares of the sampled difference
SCALE_MIN: Final = 2.0**-110  # no product with it is denormal
INDEX_MAX: Final = 2.0**22  # of a lattice index: exact in float32, and finer than x itself is


def take(rows: Tensor) -> Tensor:
    """Sketch of rotated blocks (blocks, block_values): uint8, flat, on the host.

    Raises FloatingPointError when a value is not finite or beyond what is sent.
    """
    largest = torch.maximum(rows.amax(1), -rows.amin(1))
    check_sendable(largest)
    return torch.cat([rows[:, :SAMPLES], largest[:, None]], dim=1).cpu().view(torch.uint8).reshape(-1)


def scales(own: Tensor, theirs: Tensor, modulus: int) -> Tensor:
    """Lattice spacing per block (float32, on the host). Raises RemoteProtocolError for a sketch that none sends."""
    if theirs.numel() != own.numel():
        raise RemoteProtocolError(f"sketch has {theirs.numel()} bytes, expected {own.numel()}")
    a, b = _read(own), check_received(_read(theirs))
    squares = torch.zeros(len(a), dtype=torch.float64)
    for place in range(SAMPLES):
        difference = b[:, place] - a[:, place]
        squares += difference * difference
    size = torch.sqrt(squares / SAMPLES)
    floor = torch.maximum(a[:, SAMPLES].abs(), b[:, SAMPLES].abs()) / INDEX_MAX
    return _rounded_up(torch.maximum(size * (2 * REACH / modulus), floor).clamp_(min=SCALE_MIN))


def _read(sketch: Tensor) -> Tensor:
    """float64 (blocks, SAMPLES + 1)."""
    values = torch.empty(sketch.numel() // 4)
    values.view(torch.uint8).copy_(sketch)
    return values.double().view(-1, SAMPLES + 1)


def _rounded_up(values: Tensor) -> Tensor:
    """The next k * 2^e with an integer k in 4..8, as float32: exact, and nothing but exponents and small integers."""
    fractions, exponents = torch.frexp(values)
    powers = ((exponents.long() - 3 + 1023) << 52).view(torch.float64)
    return (torch.ceil(fractions * 8) * powers).float()
