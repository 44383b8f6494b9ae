"""One hop, seen by the earlier stage: the micro-batch goes out, the gradient comes back.

The call's life is the micro-batch's life at that hop (DESIGN 5): cancelling the task cancels the call.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

from noloco_node.core import limits
from noloco_node.core.types import PeerId
from noloco_node.errors import HopBusy, HopDropped, PeerLost, RemoteProtocolError
from noloco_node.ports import Gatekeeper, HopAnswer, MicroBatch, TensorBlob
from noloco_node.transport.calls import close_call, learn_record, peer_errors, record_metadata
from noloco_node.transport.channels import Channels, Lane
from noloco_node.transport.exchange_codec import printable
from noloco_node.transport.frames import join_frame, split_frame
from noloco_node.transport.framing import TensorInbox, frames_of
from noloco_node.transport.meter import Meter
from noloco_node.transport.tensors import FLOATS, decode_tensor, encode_hop, size_of
from noloco_node.wire.pipeline_pb2 import GradientHeader, HopReply, HopRequest

METHOD = "/noloco.v1.PipelineService/RunHop"


class HopClient:
    def __init__(self, channels: Channels, gatekeeper: Gatekeeper, meter: Meter) -> None:
        self._channels = channels
        self._gatekeeper = gatekeeper
        self._meter = meter

    async def run_hop(self, peer: PeerId, batch: MicroBatch, admitted: Callable[[], None]) -> HopAnswer:
        """Raises HopBusy, HopDropped, PeerLost, RemoteProtocolError (with a strike)."""
        async with self._channels.use(peer, Lane.BULK) as channel:
            with peer_errors(peer):
                call = channel.stream_stream(METHOD)(metadata=record_metadata(self._gatekeeper))
                sending = asyncio.create_task(send_batch(call, batch, self._meter))
                try:
                    return await self._answer(peer, call, batch, admitted)
                except RemoteProtocolError as fault:
                    self._gatekeeper.strike(peer, str(fault))
                    raise
                finally:
                    sending.cancel()
                    await asyncio.gather(sending, return_exceptions=True)
                    call.cancel()

    async def _answer(self, peer: PeerId, call: Any, batch: MicroBatch, admitted: Callable[[], None]) -> HopAnswer:
        reading = HopReading(batch, admitted, self._meter)
        async with asyncio.timeout(limits.DIAL_DEADLINE_S):
            await learn_record(self._gatekeeper, peer, call)
        while True:
            async with asyncio.timeout(limits.KEEP_INTERVAL_S * limits.KEEPS_MISSED_MAX):
                data = await call.read()
            if not isinstance(data, bytes):
                raise PeerLost(f"{peer}: the stream ended before the gradient")
            answer = reading.take(data)
            if answer is not None:
                await call.done_writing()
                await close_call(call)
                return answer


async def send_batch(call: Any, batch: MicroBatch, meter: Meter) -> None:
    """Header, chunks, END. A chunk that is not taken in time cancels the call, which the reader then sees."""
    await write(call, join_frame(HopRequest(header=encode_hop(batch))))
    for frame, size_bytes in frames_of(HopRequest, [batch.inputs.data, batch.position_ids.data, batch.labels.data]):
        await write(call, frame)
        meter.sent("pipeline", size_bytes)


async def write(call: Any, data: bytes) -> None:
    """Write one frame within the chunk deadline (cancelling a write cancels its call)."""
    async with asyncio.timeout(limits.CHUNK_DEADLINE_S):
        await call.write(data)


class HopReading:
    """The answer's frames, one after the other, into a HopAnswer."""

    def __init__(self, batch: MicroBatch, admitted: Callable[[], None], meter: Meter) -> None:
        self._shape = batch.inputs.shape
        self._tokens_max = math.prod(batch.labels.shape)
        self._dtype = ""
        self._admitted = admitted
        self._meter = meter
        self._was_admitted = False
        self._header: GradientHeader | None = None
        self._inbox: TensorInbox | None = None

    def take(self, data: bytes) -> HopAnswer | None:
        """None: more is to come. Raises HopBusy, HopDropped, RemoteProtocolError."""
        reply, payload = split_frame(HopReply, data)
        kind = reply.WhichOneof("kind")
        if kind == "busy":
            raise HopBusy("no place")
        if kind == "dropped":
            raise HopDropped(printable(reply.dropped.reason))
        if kind == "admitted":
            self._admit()
        elif kind == "gradient":
            self._begin(reply.gradient)
        elif kind == "chunk":
            self._open_inbox().add(reply.chunk, payload)
            self._meter.received("pipeline", len(payload))
        elif kind == "end":
            return self._finish(self._open_inbox().finish(reply.end))
        elif kind != "keep":
            raise RemoteProtocolError("an empty answer to a hop")
        return None

    def _admit(self) -> None:
        if self._was_admitted:
            raise RemoteProtocolError("admitted twice")
        self._was_admitted = True
        self._admitted()

    def _begin(self, header: GradientHeader) -> None:
        if not self._was_admitted or self._header is not None:
            raise RemoteProtocolError("a gradient out of order")
        dtype, shape = decode_tensor(header.gradient)
        if dtype not in FLOATS or shape != self._shape:
            raise RemoteProtocolError(f"gradient is {dtype} {shape}, expected {self._shape}")
        if not math.isfinite(header.loss_sum) or not 0 <= header.tokens <= self._tokens_max:
            raise RemoteProtocolError(f"loss {header.loss_sum} of {header.tokens} tokens is impossible")
        self._header, self._dtype = header, dtype
        self._inbox = TensorInbox(size_of(dtype, shape))

    def _open_inbox(self) -> TensorInbox:
        if self._inbox is None:
            raise RemoteProtocolError("bytes before their header")
        return self._inbox

    def _finish(self, data: memoryview) -> HopAnswer:
        assert self._header is not None
        gradient = TensorBlob(self._dtype, self._shape, data)
        return HopAnswer(gradient, self._header.loss_sum, self._header.tokens, self._header.replayed)
