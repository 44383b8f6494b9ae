"""What every outgoing call shares: the record in its metadata, and gRPC's failures turned into PeerLost.

Owns the mapping of status codes to errors. INTERNAL, UNAVAILABLE and CANCELLED all mean that the peer is lost
(DESIGN 6); a refusal means that it will not serve us, which for the caller is the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import grpc
import grpc.aio

from noloco_node.core import limits
from noloco_node.core.types import PeerId
from noloco_node.errors import HopBusy, PeerLost, PeerRefused
from noloco_node.ports import Gatekeeper
from noloco_node.transport.exchange_codec import printable

RECORD_KEY = "noloco-record-bin"
Metadata = tuple[tuple[str, bytes], ...]


def record_metadata(gatekeeper: Gatekeeper) -> Metadata:
    """Our newest record, for a call or an answer."""
    record = gatekeeper.own_record()
    return ((RECORD_KEY, record),) if record else ()


def record_in(metadata: Any) -> bytes:
    """The record a call or an answer carries, b"" when there is none of a fitting size."""
    for key, value in metadata or ():
        if key == RECORD_KEY and isinstance(value, bytes) and len(value) <= limits.RECORD_BYTES_MAX:
            return value
    return b""


async def learn_record(gatekeeper: Gatekeeper, peer: PeerId, call: Any) -> None:
    """Hand the callee's record on. Waits for the first bytes of the answer."""
    record = record_in(await call.initial_metadata())
    if record:
        gatekeeper.learn(peer, record)


async def close_call(call: Any) -> None:
    """All answers are read: take the status that follows. A cancelled call costs gRPC memory (grpc#43360)."""
    with suppress(grpc.aio.AioRpcError, TimeoutError):
        async with asyncio.timeout(limits.KEEP_INTERVAL_S):
            await call.read()


@contextmanager
def peer_errors(peer: PeerId) -> Iterator[None]:
    """Around every use of a call: raises PeerLost in place of gRPC's errors, HopBusy for RESOURCE_EXHAUSTED,
    PeerRefused for PERMISSION_DENIED."""
    try:
        yield
    except grpc.aio.AioRpcError as fault:
        words = f"{fault.code().name.lower()}: {printable(fault.details() or '')}"
        if fault.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
            raise HopBusy(words) from fault
        if fault.code() is grpc.StatusCode.PERMISSION_DENIED:
            raise PeerRefused(f"{peer}: {words}", printable(fault.details() or "")) from fault
        raise PeerLost(f"{peer}: {words}") from fault
    except (grpc.aio.UsageError, asyncio.InvalidStateError, TimeoutError) as fault:
        raise PeerLost(f"{peer}: {str(fault) or 'no answer in time'}") from fault
    except asyncio.CancelledError:
        if cancelled_from_outside():
            raise
        raise PeerLost(f"{peer}: the call was cancelled") from None


def cancelled_from_outside() -> bool:
    """True when this task is to end; False when only the call under it was cancelled."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
