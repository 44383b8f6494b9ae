"""What crosses every border: host bytes with dtype and shape, and micro-batches made of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from noloco_node.core.types import (
    MicroBatchId,
)

Bytes = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class TensorBlob:
    """One dense tensor in host memory, little endian, C order. `dtype` is a torch name: float32, bfloat16, int32."""

    dtype: str
    shape: tuple[int, ...]
    data: Bytes


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """What travels forward along a path. B rows, T tokens, D hidden size.

    `inputs` is int32 token ids (B, T) into stage 0, an activation (B, T, D) into later stages. `position_ids`
    int32 (B, T) restart at each document. `labels` int32 (B, T) are already shifted, -100 where nothing is trained.
    `position` is the origin's place k*H + min(j, H-1) on the learning-rate schedule.
    """

    id: MicroBatchId
    position: int
    inputs: TensorBlob
    position_ids: TensorBlob
    labels: TensorBlob


@dataclass(frozen=True, slots=True)
class HopAnswer:
    """What comes back: gradient of the *summed* loss by the hop's input, and what was trained on."""

    gradient: TensorBlob
    loss_sum: float
    tokens: int
    replayed: bool = False


class TensorSource(Protocol):
    """A tensor that is made while it is sent."""

    @property
    def size_bytes(self) -> int: ...

    async def read(self, start: int, stop: int) -> Bytes:
        """At least one byte from `start` on, none beyond `stop`. Waits for what cannot be known yet. Raises
        TensorReleased when nothing of it is kept any more."""
        ...
