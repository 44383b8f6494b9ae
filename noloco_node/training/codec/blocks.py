"""What all codecs do alike: cut x and the bytes into rows of blocks, and go over them piece by piece.

Owns sizes and the checks of size and range; pieces fit a second-level cache and bound the memory that encoding takes.
Must not know what stands in a block. A codec fills in what happens to whole rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import pad

from noloco_node.core import codec_sizes
from noloco_node.errors import LocalProtocolError, RemoteProtocolError
from noloco_node.training.codec.port import NOTHING, VALUE_MAX, Correction

PIECE_VALUES: Final = 1 << 18  # a multiple of every block


class BlockCodec(ABC):
    """Rows: x as (blocks, block_values) float32, encoded as (blocks, block_bytes) uint8, scales as (blocks,)."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._layout = codec_sizes.layout(name)
        self.block_values = self._layout.block_values

    def encoded_bytes(self, num_values: int) -> int:
        return codec_sizes.encoded_bytes(self.name, num_values)

    def sketch_bytes(self, num_values: int) -> int:
        return codec_sizes.sketch_bytes(self.name, num_values)

    def prepare(self, x: Tensor) -> Tensor:
        return x

    def sketch(self, prepared: Tensor) -> Tensor:
        return NOTHING.to(torch.uint8)

    def scales(self, own_sketch: Tensor, their_sketch: Tensor) -> Tensor:
        if their_sketch.numel():
            raise RemoteProtocolError(f"codec {self.name} has no sketch, {their_sketch.numel()} bytes of one came")
        return NOTHING

    @torch.no_grad()
    def encode(self, prepared: Tensor, scales: Tensor, out: Tensor) -> None:
        num_values = prepared.numel()
        if out.numel() != self.encoded_bytes(num_values):
            raise LocalProtocolError(f"{out.numel()} bytes for {num_values} values of codec {self.name}")
        for values, encoded, blocks in self._pieces(num_values):
            rows = self._rows(prepared[values])
            there = torch.empty(encoded.stop - encoded.start, dtype=torch.uint8, device=rows.device)
            self._encode_rows(rows, scales[blocks].to(rows.device), self._byte_rows(there))
            out[encoded].copy_(there)

    @torch.no_grad()
    def correction(self, own: Tensor, theirs: Tensor, scales: Tensor, num_values: int) -> Correction:
        self._check_size(theirs, num_values)
        c, refused = torch.empty(num_values, device=own.device), 0
        for values, encoded, blocks in self._pieces(num_values):
            pair = self._byte_rows(own[encoded]), self._byte_rows(theirs[encoded])
            rows, refused_here = self._correct_rows(*pair, scales[blocks].to(own.device))
            c[values] = rows.reshape(-1)[: values.stop - values.start]
            refused += refused_here
        return Correction(c, refused, -(-num_values // self.block_values))

    @abstractmethod
    def _encode_rows(self, rows: Tensor, scales: Tensor, out: Tensor) -> None: ...

    @abstractmethod
    def _correct_rows(self, own: Tensor, theirs: Tensor, scales: Tensor) -> tuple[Tensor, int]:
        """c as rows, and how many of them are refused and zero."""

    def _pieces(self, num_values: int) -> Iterator[tuple[slice, slice, slice]]:
        """Values, their encoded bytes and their blocks."""
        for start in range(0, num_values, PIECE_VALUES):
            stop = min(start + PIECE_VALUES, num_values)
            first, last = start // self.block_values, -(-stop // self.block_values)
            encoded = slice(first * self._layout.block_bytes, last * self._layout.block_bytes)
            yield slice(start, stop), encoded, slice(first, last)

    def _rows(self, values: Tensor) -> Tensor:
        missing = -values.numel() % self.block_values
        return (pad(values, (0, missing)) if missing else values).view(-1, self.block_values)

    def _byte_rows(self, encoded: Tensor) -> Tensor:
        return encoded.view(-1, self._layout.block_bytes)

    def _check_size(self, encoded: Tensor, num_values: int) -> None:
        if encoded.numel() != self.encoded_bytes(num_values):
            raise RemoteProtocolError(
                f"tensor has {encoded.numel()} bytes, expected {self.encoded_bytes(num_values)} of codec {self.name}"
            )


class ValueBlocks(BlockCodec):
    """A codec whose bytes tell x by themselves: c is half the difference of two decoded tensors."""

    @torch.no_grad()
    def decode(self, encoded: Tensor, num_values: int) -> Tensor:
        self._check_size(encoded, num_values)
        x = torch.empty(num_values, device=encoded.device)
        for values, part, _ in self._pieces(num_values):
            x[values] = self._decode_rows(self._byte_rows(encoded[part])).reshape(-1)[: values.stop - values.start]
        return x

    @abstractmethod
    def _decode_rows(self, encoded: Tensor) -> Tensor: ...

    def _correct_rows(self, own: Tensor, theirs: Tensor, scales: Tensor) -> tuple[Tensor, int]:
        return (self._decode_rows(theirs) - self._decode_rows(own)) * 0.5, 0


def check_sendable(magnitudes: Tensor) -> None:
    """Raises FloatingPointError unless all are finite and at most VALUE_MAX."""
    if not bool((magnitudes <= VALUE_MAX).all()):
        raise FloatingPointError(f"x is not finite, or beyond {VALUE_MAX:.3g}: it is not sent")


def check_received(values: Tensor) -> Tensor:
    """`values`. Raises RemoteProtocolError unless all are finite and at most VALUE_MAX."""
    if not bool((values.abs() <= VALUE_MAX).all()):
        raise RemoteProtocolError("tensor is not finite")
    return values
