"""The modulo lattice code: 4 or 5 bits a value, as good as the partners are near, not as x is small.

Both sides round their rotated x to one lattice, q = round(y / scale), and send q modulo an odd m (15, 31). Two that are
less than m/2 lattice steps apart learn the difference q_b - q_a exactly from the residues: it is the one in -(m-1)/2 ..
(m-1)/2, there are no ties, and the other side finds its opposite. Nobody needs q itself. The scale comes from sketches
that both sides sent first (`sketch`). Then c = rotated back (q_b - q_a) * scale / 2, in which every sum and product is
exact: c_b = -c_a bit for bit. Error of the rotated difference: at most one scale, root mean square scale / sqrt(6).

A wrap, a difference beyond m/2, would be taken for another value. Each block carries a check, the sum of its q with
odd weights modulo 2^32: the difference of two checks must be that of the differences found. A lone wrap is always seen,
several are but for one in some ten thousand; that block's c is zero on both sides, and counted.

There is no library for it: quantisers of the field code a tensor by itself.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import islice

import torch
from torch import Tensor

from noloco_node.core.seed import integers
from noloco_node.training.codec import sketch
from noloco_node.training.codec.blocks import BlockCodec
from noloco_node.training.codec.nibbles import pack, pack_bits, unpack, unpack_bits
from noloco_node.training.codec.rotation import draw_signs, hadamard

CHECK_BYTES = 4
_CHECK_MASK = (1 << 8 * CHECK_BYTES) - 1


class Lattice(BlockCodec):
    """A block: check, lower four bits of the residues, then their fifth bits if there are any.

    `seed` is drawn anew for each outer step, alike on both sides, so that no difference is unlucky for long.
    """

    def __init__(self, name: str, bits: int, seed: int) -> None:
        super().__init__(name)
        self._bits = bits
        self._modulus = (1 << bits) - 1
        self._signs, self._weights = _draws(seed, self.block_values)

    @torch.no_grad()
    def prepare(self, x: Tensor) -> Tensor:
        """x rotated and scaled by 1 / block_values, filled up with zeros to whole blocks; it replaces x."""
        rotated = torch.empty(-(-x.numel() // self.block_values) * self.block_values, device=x.device)
        factors = (self._signs / self.block_values).to(x.device)
        for values, _, blocks in self._pieces(x.numel()):
            rotated.view(-1, self.block_values)[blocks] = hadamard(self._rows(x[values]) * factors)
        return rotated

    @torch.no_grad()
    def sketch(self, prepared: Tensor) -> Tensor:
        return sketch.take(self._rows(prepared))

    @torch.no_grad()
    def scales(self, own_sketch: Tensor, their_sketch: Tensor) -> Tensor:
        return sketch.scales(own_sketch, their_sketch, self._modulus)

    def _encode_rows(self, rows: Tensor, scales: Tensor, out: Tensor) -> None:
        indices = torch.round_(rows / scales[:, None])
        out[:, :CHECK_BYTES] = self._weighed(indices).view(torch.uint8).view(len(rows), 8)[:, :CHECK_BYTES]
        residues = torch.remainder(indices.to(torch.int32), self._modulus)
        out[:, CHECK_BYTES:] = self._pack(residues.to(torch.uint8))

    def _correct_rows(self, own: Tensor, theirs: Tensor, scales: Tensor) -> tuple[Tensor, int]:
        steps = self._unpack(theirs[:, CHECK_BYTES:]) - self._unpack(own[:, CHECK_BYTES:])
        steps.sub_(torch.round_(steps / self._modulus), alpha=self._modulus)
        wrapped = (_checks(theirs) - _checks(own) - self._weighed(steps)) & _CHECK_MASK != 0
        factors = torch.where(wrapped, 0.0, scales * 0.5)
        c = hadamard(steps).mul_(self._signs.to(own.device)).mul_(factors[:, None])
        return c, int(wrapped.sum())

    def _weighed(self, integers_: Tensor) -> Tensor:
        """int64 (blocks,): sums below 2^53 of integers in float64, exact in any order."""
        return (integers_.double() @ self._weights.to(integers_.device)).long()

    def _pack(self, residues: Tensor) -> Tensor:
        if self._bits == 4:
            return pack(residues)
        return torch.cat([pack(residues & 15), pack_bits(residues >> 4)], dim=1)

    def _unpack(self, packed: Tensor) -> Tensor:
        """float32. A residue that is not sent counts modulo m."""
        half = self.block_values // 2
        lower = unpack(packed[:, :half])
        return (lower if self._bits == 4 else lower | unpack_bits(packed[:, half:]) << 4).float()


def _checks(encoded: Tensor) -> Tensor:
    shifts = torch.tensor([0, 8, 16, 24], device=encoded.device)
    return (encoded[:, :CHECK_BYTES].long() << shifts).sum(1)


@lru_cache(maxsize=4)
def _draws(seed: int, block_values: int) -> tuple[Tensor, Tensor]:
    """Signs of the rotation, and odd weights below 2^16 of the check (float64)."""
    words = islice(integers(seed, "codec", "check"), block_values // 4)
    weights = [float(word >> shift & 0xFFFF | 1) for word in words for shift in (0, 16, 32, 48)]
    return draw_signs(seed, block_values), torch.tensor(weights, dtype=torch.float64)
