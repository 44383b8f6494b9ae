"""StateService: gives the newest checkpoint, or parts of it, to newcomers."""

from __future__ import annotations

import asyncio

import grpc

from noloco_node.core import limits
from noloco_node.core.types import PeerId
from noloco_node.errors import RemoteProtocolError
from noloco_node.ports import StateParts
from noloco_node.transport.door import Context, Door
from noloco_node.transport.exchange_codec import decode_seat
from noloco_node.transport.framing import chunk_frame, end_frame
from noloco_node.transport.meter import Meter
from noloco_node.transport.pace import Pace
from noloco_node.transport.state_shelf import PinnedFile, ShelfBusy, StateShelf
from noloco_node.wire import state_pb2
from noloco_node.wire.state_pb2 import DescribeRequest, FetchRequest, StateDescription, StateFrame

PARTS = {
    StateParts.WHOLE: state_pb2.STATE_PARTS_WHOLE,
    StateParts.SLOW: state_pb2.STATE_PARTS_SLOW,
    StateParts.SLOW_AND_MOMENTS: state_pb2.STATE_PARTS_SLOW_AND_MOMENTS,
}
PARTS_BY_NUMBER = {number: parts for parts, number in PARTS.items()}


def parts_of(request: DescribeRequest) -> StateParts:
    """What a stranger asks for. Raises RemoteProtocolError."""
    if request.parts not in PARTS_BY_NUMBER:
        raise RemoteProtocolError(f"unknown parts {request.parts} of a state")
    return PARTS_BY_NUMBER[request.parts]


class StateService:
    def __init__(self, door: Door, shelf: StateShelf, meter: Meter) -> None:
        self._door = door
        self._shelf = shelf
        self._meter = meter

    async def describe(self, request: DescribeRequest, context: Context) -> StateDescription:
        peer = await self._door.admit(context, needs_lease=False)
        seat = decode_seat(request.seat) if request.HasField("seat") else None
        leased = self._door.leased_stage(peer)
        is_guest = leased is None or (seat is not None and seat.stage != leased)
        try:
            self._shelf.check_room(peer, is_guest=is_guest)  # said before a file is read for it
        except ShelfBusy:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "busy")
        file = await self._shelf.newest(None if seat is None else seat.stage, parts_of(request))
        if file is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no checkpoint yet")
        assert file is not None
        return StateDescription(
            name=file.name,
            outer_step=file.outer_step,
            size_bytes=file.size_bytes,
            digest=file.digest,
            data_next=0 if seat is None else self._shelf.promised(seat),
        )

    async def fetch(self, request: FetchRequest, context: Context) -> None:
        peer = await self._door.admit(context, needs_lease=False)
        try:
            async with asyncio.timeout(None) as lasting:
                stage = self._door.leased_stage(peer)
                with self._shelf.upload(request.digest, peer, stage, lambda: lasting.reschedule(0.0)) as file:
                    if file is None:
                        await context.abort(grpc.StatusCode.NOT_FOUND, "that checkpoint is gone")
                    assert file is not None
                    async with self._door.watch(context, peer):
                        await self._send(file, request.offset, peer, context)
        except ShelfBusy:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "busy")
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "too little was read for too long")

    async def _send(self, file: PinnedFile, offset: int, peer: PeerId, context: Context) -> None:
        if offset > file.size_bytes:
            raise RemoteProtocolError("an offset behind the end of the file")
        chunks, pace = 0, Pace(asyncio.get_running_loop().time)
        while offset < file.size_bytes:
            piece = await asyncio.to_thread(file.read, offset, limits.CHUNK_BYTES_MAX)
            await self._write(context, chunk_frame(StateFrame, offset, memoryview(piece)))
            self._meter.sent("state", len(piece))
            offset, chunks = offset + len(piece), chunks + 1
            self._check_pace(pace, len(piece), peer)
        await self._write(context, end_frame(StateFrame, file.size_bytes, chunks, file.digest))

    def _check_pace(self, pace: Pace, size_bytes: int, peer: PeerId) -> None:
        """Raises TimeoutError: the peer reads too slowly while others are turned away."""
        began_s = pace.began_s
        pace.moved(size_bytes)
        if pace.is_too_slow() and self._shelf.refused_since(began_s, peer):
            raise TimeoutError

    async def _write(self, context: Context, data: bytes) -> None:
        async with asyncio.timeout(limits.CHUNK_DEADLINE_S):
            await context.write(data)
