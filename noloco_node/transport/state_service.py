"""StateService: gives the newest checkpoint file to newcomers."""

from __future__ import annotations

import asyncio

import grpc

from noloco_node.core import limits
from noloco_node.errors import RemoteProtocolError
from noloco_node.transport.door import Context, Door
from noloco_node.transport.framing import chunk_frame, end_frame
from noloco_node.transport.meter import Meter
from noloco_node.transport.state_shelf import PinnedFile, ShelfBusy, StateShelf
from noloco_node.wire.state_pb2 import DescribeRequest, FetchRequest, StateDescription, StateFrame


class StateService:
    def __init__(self, door: Door, shelf: StateShelf, meter: Meter) -> None:
        self._door = door
        self._shelf = shelf
        self._meter = meter

    async def describe(self, _: DescribeRequest, context: Context) -> StateDescription:
        await self._door.admit(context, needs_lease=False)
        file = await self._shelf.newest()
        if file is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no checkpoint yet")
        assert file is not None
        return StateDescription(
            name=file.name, outer_step=file.outer_step, size_bytes=file.size_bytes, digest=file.digest
        )

    async def fetch(self, request: FetchRequest, context: Context) -> None:
        peer = await self._door.admit(context, needs_lease=False)
        try:
            with self._shelf.upload(request.digest) as file:
                if file is None:
                    await context.abort(grpc.StatusCode.NOT_FOUND, "that checkpoint is gone")
                assert file is not None
                async with self._door.watch(context, peer):
                    await self._send(file, request.offset, context)
        except ShelfBusy:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "busy")
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "nothing was read for too long")

    async def _send(self, file: PinnedFile, offset: int, context: Context) -> None:
        if offset > file.size_bytes:
            raise RemoteProtocolError("an offset behind the end of the file")
        chunks = 0
        while offset < file.size_bytes:
            piece = await asyncio.to_thread(file.read, offset, limits.CHUNK_BYTES_MAX)
            await self._write(context, chunk_frame(StateFrame, offset, memoryview(piece)))
            self._meter.sent("state", len(piece))
            offset, chunks = offset + len(piece), chunks + 1
        await self._write(context, end_frame(StateFrame, file.size_bytes, chunks, file.digest))

    async def _write(self, context: Context, data: bytes) -> None:
        async with asyncio.timeout(limits.CHUNK_DEADLINE_S):
            await context.write(data)
