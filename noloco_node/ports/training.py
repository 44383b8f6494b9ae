"""The border to training: what the driver asks of the device."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from noloco_node.ports.tensors import MicroBatch, TensorBlob, TensorSource


@dataclass(frozen=True, slots=True)
class Boundary:
    """x of the taken boundary is frozen. As it travels it is `tensor_bytes` long; the first `head_bytes` (0 for most
    codecs) are met before the rest is there: a sketch, on which what follows depends as well, or phi in mode prefetch.
    `tensor_id` names this very x."""

    tensor_bytes: int
    tensor_id: bytes
    shape_hash: str
    head_bytes: int = 0
    is_finite: bool = True


@dataclass(frozen=True, slots=True)
class ForwardResult:
    """`activation` on all stages but the last; there `loss_sum` and, when the stage is not also the first,
    `gradient` by the input."""

    finite: bool
    activation: TensorBlob | None = None
    loss_sum: float | None = None
    gradient: TensorBlob | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    gradient_norm: float
    learning_rate: float
    applied: bool


@dataclass(frozen=True, slots=True)
class Verdict:
    """On a partner's tensor. `reason` empty = fine and c is computed. `norm` is that of c. `spread` = rms(x_b - x_a) /
    gamma: with gamma = beta the distance of the partners' fast weights at the boundary."""

    reason: str
    norm: float
    spread: float


@dataclass(frozen=True, slots=True)
class LoadedState:
    outer_step: int
    inner_step: int
    data_next: int
    notes: dict[str, Any] = field(default_factory=dict)  # as given to `save_checkpoint`; empty for a donor's state
    drawn_again: int = 0  # micro-batches drawn after the checkpoint, before a crash


class Trainer(Protocol):
    """Owns the device. Every coroutine is one job on the one training thread, run in call order (FIFO)."""

    @property
    def tensor_bytes(self) -> int:
        """Of the stage's parameters in float32, once it is built: a state is a few times as large."""
        ...

    async def prepare(self) -> None:
        """Build the stage without weights, where it is not. Raises BadModel, BadData, DeviceFailed."""
        ...

    @property
    def job(self) -> int | None:
        """Number of the job that the device is at; None when it is free."""
        ...

    async def initialise(self) -> LoadedState: ...
    async def load_checkpoint(self) -> LoadedState: ...
    async def load_state_file(self, path: Path) -> LoadedState:
        """Slow weights (and momentum) that another replica of the stage saved. Raises BadCheckpoint."""
        ...

    async def draw(self, n: int) -> MicroBatch:
        """Read micro-batch `n` of the seat's own data order; runs on a reader thread, not the training thread."""
        ...

    async def forward(self, call: int, batch: MicroBatch, *, count: bool) -> ForwardResult: ...
    async def backward(self, call: int, gradient: TensorBlob, *, count: bool, recompute: bool) -> TensorBlob | None:
        """Gradient by the stage's input (None on stage 0). Raises FloatingPointError when it is not finite."""
        ...

    async def drop_graph(self, call: int) -> None: ...
    async def forget(self, call: int) -> None: ...
    async def inner_step(self, *, tokens: int, position: int) -> StepResult: ...
    async def freeze_slow_weights(self, outer_step: int) -> Boundary:
        """Mode prefetch: copy phi as the first part of the tensor of that outer step. Its boundary adds the rest."""
        ...

    async def take_boundary(self, outer_step: int) -> Boundary: ...
    def source(self, outer_step: int) -> TensorSource:
        """x of that outer step, encoded."""
        ...

    def await_head(self, outer_step: int, tensor_id: bytes) -> None:
        """That tensor of the partner begins to come, perhaps in place of another: its head is still to be met."""
        ...

    async def meet(self, outer_step: int, tensor_id: bytes, head: memoryview) -> None:
        """The head of that tensor is here: what follows our own can be encoded, or phi^ compared. Nothing is done when
        another is awaited by now, or the step was released. Raises RemoteProtocolError for a head that no partner
        sends."""
        ...

    async def verify(self, outer_step: int, tensor: memoryview) -> Verdict:
        """Beside the device's own jobs. When fine, c is kept for `add_correction`."""
        ...

    async def add_correction(self, outer_step: int) -> None: ...
    async def drop_correction(self, outer_step: int) -> None: ...
    async def release_exchange(self, outer_step: int) -> None: ...
    async def save_checkpoint(
        self, *, outer_step: int, inner_step: int, data_next: int, notes: dict[str, Any]
    ) -> Awaitable[Path]:
        """Returns when the state is copied; the awaitable it returns ends when it is on disk. Raises DiskFailed."""
        ...

    async def close(self) -> None: ...
