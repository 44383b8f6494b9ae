"""Integers of few bits with one power-of-two scale per block: what int8 and int4 share.

Owns the choice of scale, rounding and their checks. The scale is the smallest power of two with which the block's
largest magnitude rounds to an integer that exists, so |x - x^| <= scale / 2 for each value. It is 2^-126 at least:
nothing decoded is denormal. On the wire it is one byte, the exponent field of the scale as a float32; zero in it is a
block of zeros.

A library's quantiser (torch's per-channel one, torchao) is not used: its scales are floats that are not powers of two,
so that products round, and it does not promise the same bits on every device.
"""

from __future__ import annotations

import math
from abc import abstractmethod

import torch
from torch import Tensor

from noloco_node.errors import RemoteProtocolError
from noloco_node.training.codec.blocks import ValueBlocks, check_sendable
from noloco_node.training.codec.port import VALUE_MAX

_MANTISSA_BITS = 23
_EXPONENT_BIAS = 127


class ScaledIntegers(ValueBlocks):
    """Two's complement integers of `bits` bits. A block: scale byte, then what `_pack` makes of the integers."""

    def __init__(self, name: str, bits: int) -> None:
        super().__init__(name)
        self._bits = bits
        self._field_max = int(math.log2(VALUE_MAX)) + _EXPONENT_BIAS - (bits - 2)

    def _encode_rows(self, rows: Tensor, scales: Tensor, out: Tensor) -> None:
        largest = torch.maximum(rows.amax(1), -rows.amin(1))
        check_sendable(largest)
        fields = self._scale_fields(largest)
        inverse = _power_of_two(2 * _EXPONENT_BIAS - fields)
        integers = torch.round_(rows * inverse[:, None]).to(torch.int8)
        out[:, 0] = fields
        out[:, 1:] = self._pack(integers)

    def _decode_rows(self, encoded: Tensor) -> Tensor:
        fields = encoded[:, 0].to(torch.int32)
        if int(fields.amax()) > self._field_max:
            raise RemoteProtocolError(f"a block of codec {self.name} has a scale beyond any that is sent")
        return self._unpack(encoded[:, 1:]).float().mul_(_power_of_two(fields)[:, None])

    def _scale_fields(self, largest: Tensor) -> Tensor:
        """Exponent field of the scale: the largest magnitude lies below 2^(bits-1) - 1/2 of it.

        In units of 2^(bits-2) that limit is the float whose `bits` - 1 leading mantissa bits are ones, so adding the
        last of those bits carries into the exponent exactly from the limit on.
        """
        carried = largest.view(torch.int32) + (1 << (_MANTISSA_BITS + 1 - self._bits))
        return ((carried >> _MANTISSA_BITS) - (self._bits - 2)).clamp_(min=1)

    @abstractmethod
    def _pack(self, integers: Tensor) -> Tensor:
        """int8 (blocks, block_values) to uint8 (blocks, bytes)."""

    @abstractmethod
    def _unpack(self, packed: Tensor) -> Tensor: ...


def _power_of_two(fields: Tensor) -> Tensor:
    """float32 from its exponent field (int32); zero for field 0."""
    return (fields << _MANTISSA_BITS).view(torch.float32)
