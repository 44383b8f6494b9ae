"""The border to the peers: calls and streams in both directions, who is served, whose clock is how far off."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
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
)
from noloco_node.ports.tensors import HopAnswer, MicroBatch, TensorSource


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
    def tensor_head(self, peer: PeerId, outer_step: int, tensor_id: bytes, head: memoryview) -> None:
        """The first `head_bytes` of that tensor of the partner are here."""
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
        self,
        peer: PeerId,
        outer_step: int,
        tensor_bytes: int,
        tensor_id: bytes,
        head_bytes: int = 0,
        *,
        is_due: bool = True,
    ) -> None:
        """Make room for the partner's tensor, or keep what came of it. Not due: a pause in it means nothing."""
        ...

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
