"""bfloat16: the upper half of a float32, rounded to nearest even; 16 bits a value, error at most 2^-8 of it."""

from __future__ import annotations

import torch
from torch import Tensor

from noloco_node.training.codec.blocks import ValueBlocks, check_received, check_sendable


class BFloat16(ValueBlocks):
    """A block is one value, little endian. torch's own conversion is used: IEEE rounding, the same everywhere."""

    def _encode_rows(self, rows: Tensor, scales: Tensor, out: Tensor) -> None:
        check_sendable(rows.abs())
        out.copy_(rows.to(torch.bfloat16).view(torch.uint8))

    def _decode_rows(self, encoded: Tensor) -> Tensor:
        rows = torch.empty(len(encoded), 1, dtype=torch.bfloat16, device=encoded.device)
        rows.view(torch.uint8).copy_(encoded)
        return check_received(rows.float())
