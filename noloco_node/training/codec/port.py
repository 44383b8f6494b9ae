"""The port of the codecs: how x of an exchange becomes bytes, and two such runs of bytes the correction c.

Owns the steps that all codecs share, and what is refused. Must not know partners, messages or when a step is due.

    prepared = codec.prepare(x)                        once: x itself, or x rotated
    own_sketch = codec.sketch(prepared)                empty for most; both sides send it first
    scales = codec.scales(own_sketch, their_sketch)    the same on both sides
    codec.encode(prepared, scales, out)                piece by piece while sending
    codec.correction(own, theirs, scales, n)           piece by piece while receiving

A piece begins at a multiple of `block_values`: values [a, b) are bytes [encoded_bytes(a), encoded_bytes(b)) and blocks
[a / block_values, ...) of the scales, whatever else is encoded with them.

c_a = (x_b - x_a) / 2 is taken from both sides' bytes *as sent*, by the same elementwise operations in the same order,
so that c_b = -c_a bit for bit (a zero may have either sign) and the pair's sum stays what it was: what a codec loses
brings no bias, and no error feedback is kept (DESIGN 5a). Every operation is an IEEE one on single elements, or a sum
of integers that is exact in any order: bytes and c are the same on every machine and device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

import torch
from torch import Tensor

VALUE_MAX: Final = 2.0**100  # a state beyond it is as good as not finite; differences and scales cannot overflow
REFUSED_SHARE_MAX: Final = 0.05  # of a correction's blocks; chance takes some 0.3 %
NOTHING: Final = torch.empty(0)  # scales and sketch of a codec that needs none


@dataclass(frozen=True, slots=True)
class Correction:
    """c of a run of values (float32, flat). Of `refused_blocks` no difference could be told: there c is zero, on both
    sides alike."""

    values: Tensor
    refused_blocks: int = 0
    blocks: int = 0

    @property
    def fault(self) -> str:
        """Why it is not fit to be added: too much of it could not be told. "" when it is."""
        if self.refused_blocks > REFUSED_SHARE_MAX * self.blocks + 1 or 0 < self.refused_blocks == self.blocks:
            return f"{self.refused_blocks} of {self.blocks} blocks differ by more than the code can tell"
        return ""


class Codec(Protocol):
    """Sizes in bytes and values; x flat float32, encoded runs flat uint8, all on one device."""

    @property
    def name(self) -> str: ...
    @property
    def block_values(self) -> int: ...
    def encoded_bytes(self, num_values: int) -> int: ...
    def sketch_bytes(self, num_values: int) -> int: ...

    def prepare(self, x: Tensor) -> Tensor:
        """What `sketch` and `encode` take: x itself, or a new tensor in its place, filled up to whole blocks."""
        ...

    def sketch(self, prepared: Tensor) -> Tensor:
        """uint8 on the host. Raises FloatingPointError when x is not finite or beyond VALUE_MAX."""
        ...

    def scales(self, own_sketch: Tensor, their_sketch: Tensor) -> Tensor:
        """float32 per block, on the host; the same on both sides. Raises RemoteProtocolError for a bad sketch."""
        ...

    def encode(self, prepared: Tensor, scales: Tensor, out: Tensor) -> None:
        """Fill `out`, exactly as long as the piece takes; it may be host memory while x lies on a device.

        Raises FloatingPointError when x is not finite or beyond VALUE_MAX: such a state is never sent.
        """
        ...

    def correction(self, own: Tensor, theirs: Tensor, scales: Tensor, num_values: int) -> Correction:
        """c of `num_values` values. Raises RemoteProtocolError when `theirs` has another size or no finite value."""
        ...


class ValueCodec(Codec, Protocol):
    """A codec whose bytes tell x by themselves."""

    def decode(self, encoded: Tensor, num_values: int) -> Tensor:
        """x as the partner has it, float32. Raises RemoteProtocolError as `correction` does."""
        ...
