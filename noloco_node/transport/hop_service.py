"""PipelineService: hops that come in. Always reads; says BUSY rather than wait (DESIGN 5, one call per hop)."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Any

import grpc

from noloco_node.core import limits
from noloco_node.core.types import PeerId
from noloco_node.errors import HopBusy, HopDropped, RemoteProtocolError
from noloco_node.ports import HopAnswer, PipelineHandler
from noloco_node.transport.door import Context, Door
from noloco_node.transport.frames import join_frame, split_frame
from noloco_node.transport.framing import TensorInbox, frames_of
from noloco_node.transport.meter import Meter
from noloco_node.transport.tensors import HopShape, encode_tensor
from noloco_node.wire.pipeline_pb2 import Admitted, Busy, Dropped, GradientHeader, HopReply, HopRequest, Keep

log = logging.getLogger(__name__)


class CallerGone(Exception):
    """The caller closed its side or vanished."""


class HopService:
    """Receives micro-batches for a PipelineHandler."""

    def __init__(self, door: Door, handler: PipelineHandler, meter: Meter, activation_bytes_max: int) -> None:
        self._door = door
        self._handler = handler
        self._meter = meter
        self._activation_bytes_max = activation_bytes_max
        self._receiving: Counter[PeerId] = Counter()

    async def run_hop(self, _: Any, context: Context) -> None:
        peer = await self._door.admit(context, needs_lease=True)
        try:
            async with self._door.watch(context, peer):
                await HopVisit(self, peer, context).run()
        except CallerGone:
            log.debug("hop: %s is gone", peer)
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "no chunk in time")
        except grpc.aio.InternalError as fault:
            log.debug("hop: the stream to %s broke: %s", peer, fault)

    def check(self, peer: PeerId, shape: HopShape) -> str:
        """Why the caller is not served, "" when it is. Raises RemoteProtocolError."""
        if shape.size_bytes > self._activation_bytes_max:
            raise RemoteProtocolError(
                f"a micro-batch of {shape.size_bytes} bytes, at most {self._activation_bytes_max}"
            )
        return self._handler.announced(peer, shape.announced())

    def reserve(self, peer: PeerId, shape: HopShape) -> bool:
        """Room for one more activation on its way in; give it back with `unreserve`."""
        crowded = self._receiving.total() >= limits.HOPS_RECEIVING_MAX
        crowded = crowded or self._receiving[peer] >= limits.HOPS_RECEIVING_PER_PEER_MAX
        if crowded or not self._handler.admits(shape.announced()):
            return False
        self._receiving[peer] += 1
        return True

    def unreserve(self, peer: PeerId) -> None:
        self._receiving -= Counter([peer])

    def turned_away(self) -> None:
        """BUSY is said at the header."""
        self._handler.turned_away()

    def hand_over(
        self, peer: PeerId, shape: HopShape, data: memoryview, digest: bytes
    ) -> asyncio.Future[HopAnswer] | None:
        return self._handler.receive(peer, shape.micro_batch(data), digest)

    def count(self, *, received: int = 0, sent: int = 0) -> None:
        if received:
            self._meter.received("pipeline", received)
        if sent:
            self._meter.sent("pipeline", sent)


class HopVisit:
    """One call, from header to END."""

    def __init__(self, service: HopService, peer: PeerId, context: Context) -> None:
        self._service = service
        self._peer = peer
        self._context = context
        self._said_at = asyncio.get_running_loop().time()

    async def run(self) -> None:
        answer = await self._receive()
        if answer is not None:
            await self._answer(answer)

    async def _receive(self) -> asyncio.Future[HopAnswer] | None:
        """Read the request whole; the handler's future, or None when BUSY was said."""
        shape = HopShape((await self._read("header"))[0].header)
        await self._admit(shape)
        if not self._service.reserve(self._peer, shape):
            self._service.turned_away()
            await self._say(HopReply(busy=Busy()))
            return None
        try:
            data, digest = await self._read_tensors(shape)
        finally:
            self._service.unreserve(self._peer)
        answer = self._service.hand_over(self._peer, shape, data, digest)
        if answer is None:
            await self._say(HopReply(busy=Busy()))
        return answer

    async def _admit(self, shape: HopShape) -> None:
        """Before memory is reserved: does this hop fit the run, and the caller's seat ours?"""
        reason = self._service.check(self._peer, shape)
        if reason:
            await self._context.abort(grpc.StatusCode.PERMISSION_DENIED, reason)

    async def _read_tensors(self, shape: HopShape) -> tuple[memoryview, bytes]:
        inbox = TensorInbox(shape.size_bytes)
        while True:
            request, payload = await self._read("chunk", "end")
            if request.HasField("end"):
                return inbox.finish(request.end), request.end.digest
            inbox.add(request.chunk, payload)
            self._service.count(received=len(payload))

    async def _read(self, *kinds: str) -> tuple[HopRequest, memoryview]:
        data = await self._next()
        if not isinstance(data, bytes):
            raise CallerGone
        request, payload = split_frame(HopRequest, data)
        if request.WhichOneof("kind") not in kinds:
            raise RemoteProtocolError(f"expected {' or '.join(kinds)}, got {request.WhichOneof('kind') or 'nothing'}")
        return request, payload

    async def _next(self) -> object:
        """The next message, within the chunk deadline; while it takes its time the caller hears that we live."""
        reading = asyncio.ensure_future(self._context.read())
        try:
            async with asyncio.timeout(limits.CHUNK_DEADLINE_S):
                while not reading.done():
                    await asyncio.wait((reading,), timeout=self._keep_due_s())
                    if self._keep_due_s() == 0:
                        await self._say(HopReply(keep=Keep()))
            return reading.result()
        finally:
            reading.cancel()

    def _keep_due_s(self) -> float:
        return max(0.0, self._said_at + limits.KEEP_INTERVAL_S - asyncio.get_running_loop().time())

    async def _answer(self, answer: asyncio.Future[HopAnswer]) -> None:
        """ADMITTED, KEEPs, then the gradient. The future is cancelled whenever the caller is lost."""
        watching = asyncio.create_task(self._caller_leaves())
        try:
            await self._say(HopReply(admitted=Admitted()))
            while not answer.done():
                await asyncio.wait((answer, watching), timeout=self._keep_due_s(), return_when=asyncio.FIRST_COMPLETED)
                if watching.done():
                    watching.result()
                if self._keep_due_s() == 0:
                    await self._say(HopReply(keep=Keep()))
            await self._deliver(answer)
        finally:
            watching.cancel()
            answer.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def _caller_leaves(self) -> None:
        """A caller keeps its side open until it has the answer, and says nothing meanwhile."""
        if isinstance(await self._context.read(), bytes):
            raise RemoteProtocolError("bytes after END")
        raise CallerGone

    async def _deliver(self, answer: asyncio.Future[HopAnswer]) -> None:
        try:
            result = answer.result()
        except HopBusy:  # handed back unbegun
            await self._say(HopReply(busy=Busy()))
        except HopDropped as dropped:
            await self._say(HopReply(dropped=Dropped(reason=str(dropped)[: limits.REASON_CHARS_MAX])))
        except asyncio.CancelledError:
            await self._say(HopReply(dropped=Dropped(reason="given up")))
        else:
            await self._deliver_gradient(result)

    async def _deliver_gradient(self, result: HopAnswer) -> None:
        await self._say(HopReply(gradient=GradientHeader(
            gradient=encode_tensor(result.gradient),
            loss_sum=result.loss_sum,
            tokens=result.tokens,
            replayed=result.replayed,
        )))  # fmt: skip
        for frame, size_bytes in frames_of(HopReply, [result.gradient.data]):
            await self._write(frame)
            self._service.count(sent=size_bytes)

    async def _say(self, reply: HopReply) -> None:
        await self._write(join_frame(reply))

    async def _write(self, data: bytes) -> None:
        async with asyncio.timeout(limits.CHUNK_DEADLINE_S):
            await self._context.write(data)
        self._said_at = asyncio.get_running_loop().time()
