"""float32: x as it is, 32 bits a value, nothing lost."""

from __future__ import annotations

import torch
from torch import Tensor

from noloco_node.training.codec.blocks import ValueBlocks, check_received, check_sendable


class Float32(ValueBlocks):
    """A block is one value, little endian."""

    def _encode_rows(self, rows: Tensor, scales: Tensor, out: Tensor) -> None:
        check_sendable(rows.abs())
        out.copy_(rows.contiguous().view(torch.uint8))

    def _decode_rows(self, encoded: Tensor) -> Tensor:
        rows = torch.empty(len(encoded), 1, device=encoded.device)
        rows.view(torch.uint8).copy_(encoded)  # wherever the bytes begin in memory
        return check_received(rows)
