"""One logical link: a partner and an outer step, over whatever stream is live now.

Owns the inbox of the partner's tensor (which survives a reopened stream), what is to be sent, and the watch over a
silent stream. Decides nothing of the protocol: messages go to the ExchangeHandler and come from the hub.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import suppress
from dataclasses import dataclass

from noloco_node.core import limits
from noloco_node.core.types import Begin, ExchangeMessage, PeerId, Reached
from noloco_node.errors import PeerLost, RemoteProtocolError
from noloco_node.ports import ExchangeHandler, Gatekeeper, TensorSource
from noloco_node.transport.exchange_codec import decode_message, encode_message
from noloco_node.transport.exchange_stream import ExchangeStream
from noloco_node.transport.frames import join_frame, split_frame
from noloco_node.transport.framing import TensorInbox
from noloco_node.transport.lead import Lead
from noloco_node.transport.meter import Meter
from noloco_node.transport.outgoing import Frame, Outgoing
from noloco_node.wire.exchange_pb2 import ExchangeFrame

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LinkPorts:
    """Whom every link tells."""

    handler: ExchangeHandler
    gatekeeper: Gatekeeper
    meter: Meter


class Link:
    """`serve` runs one stream at a time; `replace` ends the one that runs."""

    def __init__(self, ports: LinkPorts, peer: PeerId, outer_step: int) -> None:
        self._ports = ports
        self.peer = peer
        self.outer_step = outer_step
        self.wanted = False  # opened by our own side and not yet released
        self.ever_wanted = False
        self.decider: bool | None = None
        self.stream: ExchangeStream | None = None
        self.last_inbound_id = 0
        self.unsolicited_bytes = 0  # on the live stream
        self._inbox: TensorInbox | None = None
        self._inbox_made = asyncio.Event()
        self._messages: deque[ExchangeMessage] = deque(maxlen=limits.LINK_QUEUE_MAX)
        self._tensor: Outgoing | None = None
        self._lead = Lead()
        self._head_bytes = 0  # of the partner's tensor, told as soon as they are here
        self._is_due = False  # all of it
        self._is_ahead = False  # our own boundary is not taken: what we send is counted as prefetched
        self._work = asyncio.Event()
        self._vacant = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None
        self._heard_at = self._chunk_at = self._sent_at = 0.0

    @property
    def key(self) -> tuple[PeerId, int]:
        return self.peer, self.outer_step

    # --- what our own side asks for ---------------------------------------------------------------

    def want(self, *, decider: bool) -> None:
        self.wanted = self.ever_wanted = True
        self.decider = decider

    def send(self, message: ExchangeMessage) -> None:
        if self.stream is not None:
            if isinstance(message, Begin | Reached):
                self._is_ahead = isinstance(message, Begin) and message.ahead
            self._messages.append(message)
            self._work.set()

    def expect(self, tensor_bytes: int, tensor_id: bytes, head_bytes: int, *, is_due: bool = True) -> None:
        """Make the inbox, or keep the one of the same tensor with what it holds. Not due: some of it may come much
        later, so that a pause says nothing."""
        inbox = self._inbox
        if inbox is None or (inbox.size_bytes, inbox.tensor_id) != (tensor_bytes, tensor_id):
            inbox = self._inbox = TensorInbox(tensor_bytes, tensor_id)
        if is_due and not self._is_due:  # what came before, and the pause after it, tells no rate
            self._lead = Lead(0.0 if self.stream is None else self.stream.round_trip_s)
        self._head_bytes, self._is_due = head_bytes, is_due
        self._tell_head(inbox)
        self._heard_at = self._chunk_at = self._now()
        self._inbox_made.set()

    def send_tensor(self, source: TensorSource, offset: int) -> None:
        self._drop_tensor()
        if self.stream is not None:
            self._tensor = Outgoing(source, offset, self._work.set, lambda: self._lead.chunk_bytes)

    def release(self) -> None:
        self.wanted = False
        self._drop_tensor()
        if self._inbox is not None and not self._inbox.complete:
            self.unsolicited_bytes += 1  # whatever of it still comes on this stream
        self._drop_inbox()

    @property
    def released(self) -> bool:
        return self.ever_wanted and not self.wanted

    @property
    def held(self) -> tuple[int, bytes]:
        """(bytes, id) of the partner's tensor received so far."""
        return (self._inbox.held_bytes, self._inbox.tensor_id) if self._inbox else (0, b"")

    def announce(self) -> None:
        """Tell the handler that the stream is up."""
        self._ports.handler.exchange_opened(self.peer, self.outer_step, *self.held)

    # --- one stream's life ------------------------------------------------------------------------

    async def serve(self, stream: ExchangeStream, greeting: bytes = b"") -> None:
        """Until the stream ends, breaks, stalls or is replaced. Raises PeerLost, RemoteProtocolError."""
        await self.replace()
        self._begin(stream)
        serving = self._serving = asyncio.create_task(self._serve(stream, greeting))
        try:
            await asyncio.wait((serving,))
        finally:
            serving.cancel()
            try:
                await asyncio.wait((serving,))
            finally:  # also when cancelled twice: a link with a dead stream would stay for ever
                self._end(stream)
        if not serving.cancelled():
            serving.result()

    async def replace(self) -> None:
        """End the stream that runs now, if any."""
        while self._serving is not None and not self._serving.done():
            self._serving.cancel()
            await asyncio.wait((self._serving,))

    def stop(self) -> None:
        """End it without waiting."""
        self.release()
        if self._serving is not None:
            self._serving.cancel()

    async def wait_vacant(self) -> bool:
        """Until no stream is live."""
        return await self._vacant.wait()

    def _begin(self, stream: ExchangeStream) -> None:
        self.stream = stream
        self._vacant.clear()
        if not stream.outbound:
            self.last_inbound_id = stream.stream_id
        self._messages.clear()
        self._drop_tensor()
        self._lead = Lead(stream.round_trip_s)
        self.unsolicited_bytes = 0
        self._heard_at = self._chunk_at = self._now()
        if self._inbox is not None:
            self._inbox.restart()
        self.announce()

    async def _serve(self, stream: ExchangeStream, greeting: bytes) -> None:
        parts = (self._read(stream), self._write(stream, greeting), self._watch())
        tasks = [asyncio.create_task(part) for part in parts]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _end(self, stream: ExchangeStream) -> None:
        """Unless another stream has taken its place already."""
        if self.stream is stream:
            self.stream = None
            self._drop_tensor()
            self._vacant.set()

    async def _read(self, stream: ExchangeStream) -> None:
        while data := await stream.read():
            self._heard_at = self._now()
            frame, payload = split_frame(ExchangeFrame, data)
            kind = frame.WhichOneof("kind")
            if kind == "chunk":
                await self._take_chunk(frame, payload)
            elif kind == "end":
                self._take_end(frame)
            else:
                self._take_message(decode_message(frame))

    def _take_message(self, message: ExchangeMessage) -> None:
        if message.outer_step != self.outer_step:
            raise RemoteProtocolError(
                f"a message of outer step {message.outer_step} on the stream of {self.outer_step}"
            )
        self._ports.handler.exchange_message(self.peer, message)

    async def _take_chunk(self, frame: ExchangeFrame, payload: memoryview) -> None:
        ahead = self._inbox is not None and not self._is_due
        self._ports.meter.received("prefetch" if ahead else "exchange", len(payload))
        if self._inbox is None and self.unsolicited_bytes == 0 and not self.released:
            await self._wait_for_inbox()
        if self._inbox is None:
            self._discard(len(payload))
            return
        self._chunk_at, inbox = self._now(), self._inbox
        if self.unsolicited_bytes:
            if frame.chunk.offset != inbox.held_bytes:
                raise PeerLost("the tensor began before it was expected: once more from the start")
            self.unsolicited_bytes = 0
        try:
            inbox.add(frame.chunk, payload)
        except RemoteProtocolError as fault:
            self._damaged(fault)
        else:
            self._lead.arrived(len(payload), self._chunk_at)
            self._work.set()  # ours may have waited for these
            self._tell_head(inbox)

    def _tell_head(self, inbox: TensorInbox) -> None:
        if self._head_bytes and inbox.held_bytes >= self._head_bytes:
            self._ports.handler.tensor_head(self.peer, self.outer_step, inbox.tensor_id, inbox.head(self._head_bytes))
            self._head_bytes = 0

    async def _wait_for_inbox(self) -> None:
        """The partner's BEGIN was handed on; its tensor may come a moment before `expect` does."""
        try:
            async with asyncio.timeout(limits.UNSOLICITED_GRACE_S):
                await self._inbox_made.wait()
        except TimeoutError:
            return

    def _discard(self, size_bytes: int) -> None:
        """Chunks nobody asked for; innocent when our side has just released the link."""
        if self.unsolicited_bytes == 0 and not self.ever_wanted:
            self._ports.gatekeeper.strike(self.peer, "chunks that nobody asked for")
        self.unsolicited_bytes += size_bytes

    def _take_end(self, frame: ExchangeFrame) -> None:
        inbox = self._inbox
        if inbox is None or inbox.complete:
            return
        try:
            tensor = inbox.finish(frame.end)
        except RemoteProtocolError as fault:
            self._damaged(fault)
            return
        self._ports.handler.tensor_received(self.peer, self.outer_step, tensor)

    def _damaged(self, fault: RemoteProtocolError) -> None:
        self._drop_inbox()
        self._ports.gatekeeper.strike(self.peer, str(fault))
        self._ports.handler.tensor_damaged(self.peer, self.outer_step, str(fault))

    def _drop_inbox(self) -> None:
        self._inbox = None
        self._inbox_made.clear()

    async def _write(self, stream: ExchangeStream, greeting: bytes) -> None:
        """Messages first; between two of them one chunk at a time, so that none waits behind a tensor."""
        if greeting:
            await stream.write(greeting)
        while True:
            while self._messages:
                await stream.write(join_frame(encode_message(self._messages.popleft())))
            frame = self._next_frame()
            if frame is not None:
                await stream.write(frame[0])
                self._ports.meter.sent("prefetch" if self._is_ahead else "exchange", frame[1])
            elif not self._messages:
                await self._wait_for_work()

    def _next_frame(self) -> Frame | None:
        """None: there is none yet, or the partner's bytes come first."""
        tensor, inbox, now = self._tensor, self._inbox, self._now()
        if tensor is None:
            return None
        is_alone = inbox is None or not (self._is_due or self._is_ahead)  # the partner has not reached the boundary
        partners_left = 0 if inbox is None or is_alone else inbox.size_bytes - inbox.held_bytes
        if self._lead.is_spent(tensor.left_bytes, partners_left) and now < self._sent_at + limits.LEAD_WAIT_S:
            return None
        frame = tensor.take()
        if frame is not None:
            self._sent_at = now
        return frame

    async def _wait_for_work(self) -> None:
        """With a tensor to send no longer than who is ahead of the partner waits."""
        self._work.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(None if self._tensor is None else limits.LEAD_WAIT_S):
                await self._work.wait()

    def _drop_tensor(self) -> None:
        if self._tensor is not None:
            self._tensor.close()
            self._tensor = None

    async def _watch(self) -> None:
        """Raises PeerLost when bytes are owed and none come; ends when nobody needs the stream any more."""
        while True:
            await asyncio.sleep(limits.STALL_S / 10)
            silent_s, chunkless_s = self._now() - self._heard_at, self._now() - self._chunk_at
            owed = self._is_due and self._inbox is not None and not self._inbox.complete
            if owed and (silent_s > limits.STALL_S or chunkless_s > limits.CHUNK_DEADLINE_S):
                raise PeerLost(f"nothing from {self.peer} for {silent_s:.0f} s")
            if not self.wanted and silent_s > limits.LINK_IDLE_S:
                return

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
