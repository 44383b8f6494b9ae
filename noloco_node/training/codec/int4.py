"""int4: blocks of 64 values with a power-of-two scale; 4.125 bits a value, error at most half a scale.

It does not shrink as partners come closer: the spread stays at that floor (DESIGN 5a). The lattice has no such floor.
"""

from __future__ import annotations

import torch
from torch import Tensor

from noloco_node.training.codec.nibbles import pack, unpack
from noloco_node.training.codec.scaled_integers import ScaledIntegers


class Int4(ScaledIntegers):
    """-7 .. 7 are sent; -8 is taken as well."""

    def __init__(self, name: str) -> None:
        super().__init__(name, bits=4)

    def _pack(self, integers: Tensor) -> Tensor:
        return pack(integers.view(torch.uint8) & 15)

    def _unpack(self, packed: Tensor) -> Tensor:
        return (unpack(packed) ^ 8).view(torch.int8) - 8  # extends the sign
