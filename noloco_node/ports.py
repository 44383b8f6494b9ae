"""The borders between the driver and the parts that touch the world.

training, transport, discovery and telemetry each implement their port and import none of one another; the driver
sees ports only; `node.py` plugs them together. Tensors cross as `TensorBlob`: host bytes with dtype and shape.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Protocol

from noloco_node.core import limits
from noloco_node.core.types import (
    ExchangeMessage,
    MicroBatchId,
    Offer,
    OfferAnswer,
    PeerId,
    Seat,
    SeatRecord,
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


# --- training -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Boundary:
    """x of the taken boundary is frozen. As it travels it is `tensor_bytes` long; the first `head_bytes` (0 for most
    codecs) are a sketch, and what follows depends on the partner's sketch as well. `tensor_id` names this very x."""

    tensor_bytes: int
    tensor_id: bytes
    shape_hash: str
    head_bytes: int = 0
    is_finite: bool = True


class TensorSource(Protocol):
    """A tensor that is made while it is sent."""

    @property
    def size_bytes(self) -> int: ...

    async def read(self, start: int, stop: int) -> Bytes:
        """At least one byte from `start` on, none beyond `stop`. Waits for what cannot be known yet. Raises
        LocalProtocolError when the tensor was released."""
        ...


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
        """Size of an encoded x, once the stage is built."""
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
    async def take_boundary(self, outer_step: int) -> Boundary: ...
    def source(self, outer_step: int) -> TensorSource:
        """x of that outer step, encoded."""
        ...

    def await_head(self, outer_step: int) -> None:
        """A partner's tensor begins to come (perhaps another than before): its head is still to be met."""
        ...

    async def meet(self, outer_step: int, head: memoryview) -> None:
        """The head of the partner's tensor is here: what follows our own can be encoded. Raises RemoteProtocolError."""
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


# --- transport ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HopHeader:
    """What a caller announces before the bytes: `dtype` and `shape` (B, T, D) of the activation."""

    id: MicroBatchId
    position: int
    dtype: str
    shape: tuple[int, ...]


class PipelineHandler(Protocol):
    """The driver, seen by the transport: hops that come in."""

    def announced(self, caller: PeerId, header: HopHeader) -> str:
        """ "" = go on; else a short reason why the caller is not served. Raises RemoteProtocolError: a strike."""
        ...

    def admits(self, header: HopHeader) -> bool:
        """Whether there is a place for it; else BUSY, before its tensors are sent. Changes nothing."""
        ...

    def turned_away(self) -> None:
        """A hop has heard BUSY before its tensors were sent."""
        ...

    def receive(self, caller: PeerId, batch: MicroBatch, digest: bytes) -> asyncio.Future[HopAnswer] | None:
        """None = BUSY, else ADMITTED. The transport cancels the future when the caller is lost.

        The future may raise HopDropped, or HopBusy when the micro-batch is handed back unbegun.
        """
        ...


class ExchangeHandler(Protocol):
    """The driver, seen by the transport: exchange streams."""

    def offered(self, peer: PeerId, offer: Offer) -> OfferAnswer: ...
    def exchange_opened(self, peer: PeerId, outer_step: int, held_bytes: int, held_id: bytes) -> None: ...
    def exchange_message(self, peer: PeerId, message: ExchangeMessage) -> None: ...
    def tensor_head(self, peer: PeerId, outer_step: int, head: memoryview) -> None:
        """The first `head_bytes` of the partner's tensor are here."""
        ...

    def tensor_received(self, peer: PeerId, outer_step: int, tensor: memoryview) -> None: ...
    def tensor_damaged(self, peer: PeerId, outer_step: int, reason: str) -> None: ...


class StateParts(StrEnum):
    """What of a checkpoint is given away."""

    WHOLE = "whole"
    SLOW = "slow"  # slow weights and momentum
    SLOW_AND_MOMENTS = "slow_and_moments"  # and the inner optimizer's


@dataclass(frozen=True, slots=True)
class StateFile:
    """A complete checkpoint file, or `head` followed by these (offset, size) of it: again such a file, with less."""

    path: Path
    outer_step: int
    head: bytes = b""
    spans: tuple[tuple[int, int], ...] = ()  # none: the whole file
    stamp_ns: int = 0  # the file's mtime when head and spans were made; 0: not known
    stage: int | None = None  # whose state it is


@dataclass(frozen=True, slots=True)
class FetchedState:
    """`data_next`: what the donor knows of the seat's last promise; 0 when nothing."""

    outer_step: int
    data_next: int = 0


class StateHandler(Protocol):
    """The driver, seen by the transport: who we are and what we can give."""

    def status(self) -> dict[str, Any]: ...
    def state_file(self, stage: int | None = None, parts: StateParts = StateParts.WHOLE) -> StateFile | None:
        """Newest complete checkpoint of the stage (None: of the seat at work). The transport opens it at once, which
        pins it."""
        ...

    def promised(self, seat: Seat) -> int:
        """What the seat's holders promised not to pass."""
        ...


class ExchangeHub(Protocol):
    """One logical link per (peer, outer step): opened by either side, crossings resolved, reopened when lost."""

    def open(self, peer: PeerId, outer_step: int, *, decider: bool) -> None: ...
    def send(self, peer: PeerId, message: ExchangeMessage) -> None:
        """Queue on the link; without a live stream the message is lost (the protocol repeats what matters)."""
        ...

    def expect(
        self, peer: PeerId, outer_step: int, tensor_bytes: int, tensor_id: bytes, head_bytes: int = 0
    ) -> None: ...
    def stream(self, peer: PeerId, outer_step: int, source: TensorSource, offset: int) -> None: ...
    def release(self, peer: PeerId, outer_step: int) -> None:
        """Forget buffers and stop reopening; the stream, if any, stays up for late questions until idle."""
        ...


class PeerNetwork(Protocol):
    """Calls to other nodes. Every method raises PeerLost, or RemoteProtocolError when the answer breaks a rule."""

    exchange: ExchangeHub

    async def hello(self, peer: PeerId) -> dict[str, Any]:
        """Mutual check of run id, protocol version and shapes. Raises VersionMismatch, WrongRun."""
        ...

    async def offer(self, peer: PeerId, offer: Offer) -> OfferAnswer: ...
    async def run_hop(self, peer: PeerId, batch: MicroBatch, admitted: Callable[[], None]) -> HopAnswer:
        """Raises HopBusy, HopDropped, PeerLost. Cancelling the task cancels the call."""
        ...

    async def fetch_state(
        self,
        peer: PeerId,
        into: Path,
        seat: Seat | None = None,
        parts: StateParts = StateParts.WHOLE,
        bytes_max: int = limits.TENSOR_BYTES_MAX,
    ) -> FetchedState:
        """Download the peer's newest checkpoint (resumed at an offset): for `seat` any of its stage, else its own.

        One that is announced with more than `bytes_max` is refused before a byte is written.
        """
        ...

    async def close(self) -> None: ...


# The words by which a list of peers excludes; any other refusal passes with time.
DENIED: Final = "denied"
NOT_ALLOWED: Final = "not allowed"
EXCLUSIONS: Final = (DENIED, NOT_ALLOWED)


class Gatekeeper(Protocol):
    """Whom to serve. Carries records both ways on every call (DESIGN 4)."""

    def own_record(self) -> bytes:
        """Our newest signed record, encoded; b"" before the first."""
        ...

    def admit(self, peer: PeerId, record: bytes, *, needs_lease: bool) -> str:
        """ "" = served; else a short reason (ban, no lease, outranked, other run, forged record ...)."""
        ...

    def learn(self, peer: PeerId, record: bytes) -> None:
        """The record that came with an answer."""
        ...

    def strike(self, peer: PeerId, reason: str) -> None: ...
    def leased_seat(self, peer: PeerId) -> Seat | None:
        """The seat of which it holds a live lease, joining or active, by what it showed itself; None: of none."""
        ...


class ClockBook(Protocol):
    """Wall clocks, measured peer to peer by every Hello."""

    def wall_s(self) -> float:
        """Our own, unix seconds."""
        ...

    def measured(self, peer: PeerId, ahead_s: float, error_s: float, *, asked: bool) -> None:
        """Ours is `ahead_s` ahead of the peer's, give or take `error_s`. `asked`: the answer to a Hello of ours; else
        what a caller said of itself."""
        ...


class PeerStreams(Protocol):
    """Authenticated byte streams between peers: libp2p, behind discovery's door."""

    async def open(self, peer: PeerId, protocol: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]: ...
    async def serve(
        self,
        protocol: str,
        handler: Callable[[PeerId, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    ) -> None: ...


# --- discovery ------------------------------------------------------------------------------------


class Discovery(Protocol):
    """Finds peers and publishes seats. Holds the node's key; the only door to hivemind and libp2p."""

    @property
    def peer_id(self) -> PeerId: ...
    @property
    def streams(self) -> PeerStreams: ...
    @property
    def addresses(self) -> tuple[str, ...]: ...

    async def read(self, seat: Seat) -> list[SeatRecord]:
        """Verified live records of the seat. Raises PeerLost when the DHT does not answer."""
        ...

    def kept(self, seat: Seat) -> list[SeatRecord]:
        """What this node's own part of the DHT holds of the seat: all there is when nobody else answers."""
        ...

    async def publish(self, record: SeatRecord, *, carried: bool = True) -> tuple[SeatRecord, bytes, bool]:
        """Fill seq, expires and addresses, sign, store. Returns (record, encoded, confirmed elsewhere).

        `carried`: shown on calls from now on.
        """
        ...

    def decode(self, encoded: bytes) -> SeatRecord:
        """Check size, signature and expiry of a record that came on a call. Raises RemoteProtocolError."""
        ...

    async def close(self) -> None: ...


# --- telemetry ------------------------------------------------------------------------------------


class Observer(Protocol):
    """Told of every event and effect in order; makes metrics and log lines of them, decides nothing."""

    def event(self, event: object) -> None: ...
    def effect(self, effect: object) -> None: ...
    def traffic(self, service: str, direction: str, size_bytes: int) -> None: ...
