"""ExchangeService: streams that partners open. Checks the first message, then hands the stream to the hub."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import grpc

from noloco_node.core import limits
from noloco_node.core.types import PeerId
from noloco_node.errors import RemoteProtocolError
from noloco_node.transport.door import Context, Door
from noloco_node.transport.exchange_hub import GrpcExchangeHub
from noloco_node.transport.exchange_stream import InboundStream, Refused
from noloco_node.transport.frames import split_frame
from noloco_node.wire.exchange_pb2 import ExchangeFrame, Open

log = logging.getLogger(__name__)


class ExchangeService:
    def __init__(self, door: Door, hub: GrpcExchangeHub) -> None:
        self._door = door
        self._hub = hub

    async def exchange(self, _: Any, context: Context) -> None:
        peer = await self._door.admit(context, needs_lease=True)
        try:
            async with self._door.watch(context, peer):
                opening = await self._opening(context)
                await self._serve(peer, opening, context)
        except Refused as refusal:
            await context.abort(refusal.code, str(refusal))
        except (TimeoutError, grpc.aio.InternalError) as fault:
            log.debug("exchange stream of %s broke: %s", peer, fault)

    async def _opening(self, context: Context) -> Open:
        async with asyncio.timeout(limits.CHUNK_DEADLINE_S):
            data = await context.read()
        if not isinstance(data, bytes):
            raise TimeoutError("closed before its first message")
        frame, _ = split_frame(ExchangeFrame, data)
        if frame.WhichOneof("kind") != "open" or frame.open.stream_id == 0:
            raise RemoteProtocolError("an exchange must begin with OPEN")
        if frame.open.run != self._hub.run:
            raise Refused(grpc.StatusCode.FAILED_PRECONDITION, "another run")
        return frame.open

    async def _serve(self, peer: PeerId, opening: Open, context: Context) -> None:
        await self._hub.accept(peer, opening, InboundStream(context, opening.stream_id))
