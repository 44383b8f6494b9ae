"""One live exchange stream, whoever opened it: read, write, close."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

import grpc
import grpc.aio

from noloco_node.core import limits
from noloco_node.core.types import PeerId
from noloco_node.errors import PeerLost
from noloco_node.transport.calls import peer_errors


class Refused(Exception):
    """This inbound stream is not wanted; the opener is told why."""

    def __init__(self, code: grpc.StatusCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class ExchangeStream(Protocol):
    """`read` gives b"" at the end; both raise PeerLost when the stream is broken."""

    stream_id: int
    outbound: bool
    round_trip_s: float
    """Of OPEN and its answer; 0 with who did not ask."""

    async def read(self) -> bytes: ...
    async def write(self, data: bytes) -> None: ...


class OutboundStream:
    """A call of ours."""

    outbound = True

    def __init__(self, call: Any, peer: PeerId, stream_id: int) -> None:
        self._call = call
        self._peer = peer
        self.stream_id = stream_id
        self.round_trip_s = 0.0

    async def read(self) -> bytes:
        with peer_errors(self._peer):
            data = await self._call.read()
        return data if isinstance(data, bytes) else b""

    async def write(self, data: bytes) -> None:
        with peer_errors(self._peer):
            async with asyncio.timeout(limits.CHUNK_DEADLINE_S):
                await self._call.write(data)


class InboundStream:
    """A call of the peer's; it ends when the service's handler returns."""

    outbound = False
    round_trip_s = 0.0

    def __init__(self, context: Any, stream_id: int) -> None:
        self._context = context
        self.stream_id = stream_id

    async def read(self) -> bytes:
        try:
            data = await self._context.read()
        except grpc.aio.BaseError as fault:
            raise PeerLost("the exchange stream broke") from fault
        return data if isinstance(data, bytes) else b""

    async def write(self, data: bytes) -> None:
        try:
            async with asyncio.timeout(limits.CHUNK_DEADLINE_S):
                await self._context.write(data)
        except (grpc.aio.BaseError, TimeoutError) as fault:
            raise PeerLost("the exchange stream broke") from fault
