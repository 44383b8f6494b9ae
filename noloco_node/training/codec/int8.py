"""int8: blocks of 256 values with a power-of-two scale; 8.03 bits a value, error at most half a scale."""

from __future__ import annotations

import torch
from torch import Tensor

from noloco_node.training.codec.scaled_integers import ScaledIntegers


class Int8(ScaledIntegers):
    """-127 .. 127 are sent; -128 is taken as well."""

    def __init__(self, name: str) -> None:
        super().__init__(name, bits=8)

    def _pack(self, integers: Tensor) -> Tensor:
        return integers.view(torch.uint8)

    def _unpack(self, packed: Tensor) -> Tensor:
        return packed.view(torch.int8)
