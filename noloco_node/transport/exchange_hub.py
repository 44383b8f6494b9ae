"""ExchangeHub of the ports: one link per (peer, outer step), opened by either side, reopened when lost.

Owns the set of links and who dials. Of two crossing streams the decider's stays (DESIGN 5a): the decider lets an
inbound stream wait while its own is under way and refuses it once its own is confirmed; the follower takes the
decider's and gives its own up. A stream that names the lost one it replaces is never taken for a crossing one.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Iterable
from typing import Any

import grpc

from noloco_node.core import limits
from noloco_node.core.types import ExchangeMessage, PeerId
from noloco_node.errors import HopBusy, LocalProtocolError, PeerLost, RemoteProtocolError
from noloco_node.ports import ExchangeHandler, Gatekeeper, TensorSource
from noloco_node.transport.calls import learn_record, peer_errors, record_metadata
from noloco_node.transport.channels import Channels, Lane
from noloco_node.transport.exchange_link import Link, LinkPorts
from noloco_node.transport.exchange_stream import InboundStream, OutboundStream, Refused
from noloco_node.transport.frames import join_frame, split_frame
from noloco_node.transport.meter import Meter
from noloco_node.wire.exchange_pb2 import ExchangeFrame, Open

METHOD = "/noloco.v1.ExchangeService/Exchange"
Key = tuple[PeerId, int]

log = logging.getLogger(__name__)


class Dial:
    """One attempt to open a stream, until it is confirmed or has failed."""

    def __init__(self) -> None:
        self.resolved = asyncio.Event()
        self.confirmed = False
        self.task: asyncio.Task[None] | None = None

    def confirm(self) -> None:
        self.confirmed = True
        self.resolved.set()

    def give_up(self) -> None:
        if self.task is not None:
            self.task.cancel()


class GrpcExchangeHub:
    """Constructed at once, usable after `bind`."""

    def __init__(self, channels: Channels, gatekeeper: Gatekeeper, meter: Meter, run: str) -> None:
        self.run = run
        self._channels = channels
        self._gatekeeper = gatekeeper
        self._meter = meter
        self._ports: LinkPorts | None = None
        self._links: dict[Key, Link] = {}
        self._keepers: dict[Key, asyncio.Task[None]] = {}
        self._dials: dict[Key, Dial] = {}

    def bind(self, handler: ExchangeHandler) -> None:
        self._ports = LinkPorts(handler, self._gatekeeper, self._meter)

    @property
    def link_count(self) -> int:
        return len(self._links)

    # --- the port ---------------------------------------------------------------------------------

    def open(self, peer: PeerId, outer_step: int, *, decider: bool) -> None:
        link = self._links.get((peer, outer_step)) or self._own_link(peer, outer_step)
        link.want(decider=decider)
        if link.stream is not None:
            asyncio.get_running_loop().call_soon(link.announce)
        if (peer, outer_step) not in self._keepers:
            self._keepers[peer, outer_step] = asyncio.create_task(self._keep_up(link))

    def send(self, peer: PeerId, message: ExchangeMessage) -> None:
        if link := self._links.get((peer, message.outer_step)):
            link.send(message)

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
        if link := self._links.get((peer, outer_step)):
            link.expect(tensor_bytes, tensor_id, head_bytes, is_due=is_due)

    def stream(self, peer: PeerId, outer_step: int, source: TensorSource, offset: int) -> None:
        if link := self._links.get((peer, outer_step)):
            link.send_tensor(source, offset)

    def release(self, peer: PeerId, outer_step: int) -> None:
        link = self._links.get((peer, outer_step))
        if link is None:
            return
        link.release()
        if link.stream is None and (keeper := self._keepers.pop(link.key, None)):
            keeper.cancel()
        self._forget(link)

    # --- links ------------------------------------------------------------------------------------

    def _own_link(self, peer: PeerId, outer_step: int) -> Link:
        if len(self._links) >= limits.LINKS_MAX and not self._evict(self._links.values()):
            raise LocalProtocolError(f"{limits.LINKS_MAX} exchanges are open")
        return self._new_link(peer, outer_step)

    def _inbound_link(self, peer: PeerId, outer_step: int) -> Link:
        """Strangers' steps are bounded per peer; their oldest link makes room for their newest."""
        if link := self._links.get((peer, outer_step)):
            return link
        same_peer = [link for link in self._links.values() if link.peer == peer]
        crowded = len(same_peer) >= limits.LINKS_PER_PEER_MAX or len(self._links) >= limits.LINKS_MAX
        if crowded and not self._evict(same_peer):
            raise Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many exchanges")
        return self._new_link(peer, outer_step)

    def _new_link(self, peer: PeerId, outer_step: int) -> Link:
        if self._ports is None:
            raise LocalProtocolError("the hub is not bound to a handler yet")
        link = self._links[peer, outer_step] = Link(self._ports, peer, outer_step)
        return link

    def _evict(self, candidates: Iterable[Link]) -> bool:
        for link in candidates:  # oldest first
            if not link.wanted:
                link.stop()
                del self._links[link.key]
                return True
        return False

    def _forget(self, link: Link) -> None:
        unused = not link.wanted and link.stream is None and link.key not in self._keepers
        if unused and self._links.get(link.key) is link:
            del self._links[link.key]

    # --- streams that come in ---------------------------------------------------------------------

    async def accept(self, peer: PeerId, opening: Open, stream: InboundStream) -> None:
        """Serve a partner's stream until it ends. Raises Refused, RemoteProtocolError."""
        link = self._inbound_link(peer, opening.outer_step)
        try:
            await self._settle_crossing(link, opening)
            await link.serve(stream, greeting=self._opening(link, stream.stream_id))
        except PeerLost as fault:
            log.debug("exchange %s/%d: %s", peer, opening.outer_step, fault)
        finally:
            self._forget(link)

    async def _settle_crossing(self, link: Link, opening: Open) -> None:
        dial = self._dials.get(link.key)
        if dial is not None and not dial.resolved.is_set():
            if link.decider:
                await dial.resolved.wait()
            else:
                dial.give_up()
        live = link.stream
        if live is not None and live.outbound and link.decider and opening.lost_stream_id != live.stream_id:
            raise Refused(grpc.StatusCode.ALREADY_EXISTS, "crossed: the decider's stream stays")

    def _opening(self, link: Link, stream_id: int) -> bytes:
        opening = Open(
            run=self.run, outer_step=link.outer_step, stream_id=stream_id, lost_stream_id=link.last_inbound_id
        )
        return join_frame(ExchangeFrame(open=opening))

    # --- streams that go out ----------------------------------------------------------------------

    async def _keep_up(self, link: Link) -> None:
        """While the link is wanted: have a stream, whoever opened it."""
        pause_s = limits.LINK_REOPEN_S
        try:
            while link.wanted:
                lived = await self._attempt(link) if link.stream is None else await link.wait_vacant()
                pause_s = limits.LINK_REOPEN_S if lived else min(2 * pause_s, limits.LINK_REOPEN_MAX_S)
                if link.wanted:
                    await asyncio.sleep(pause_s)
        finally:
            if self._keepers.get(link.key) is asyncio.current_task():
                del self._keepers[link.key]
            self._forget(link)

    async def _attempt(self, link: Link) -> bool:
        """Dial and serve once, in a task of its own; True when the stream had been up."""
        dial = self._dials[link.key] = Dial()
        dial.task = asyncio.create_task(self._dial(link, dial))
        try:
            await asyncio.wait((dial.task,))
            self._judge(link, dial.task)
        finally:
            dial.task.cancel()
            dial.resolved.set()
            if self._dials.get(link.key) is dial:
                del self._dials[link.key]
        return dial.confirmed

    def _judge(self, link: Link, task: asyncio.Task[None]) -> None:
        fault = None if task.cancelled() else task.exception()
        if isinstance(fault, RemoteProtocolError):
            self._gatekeeper.strike(link.peer, str(fault))
        elif fault is not None and not isinstance(fault, PeerLost | HopBusy):
            log.error("exchange %s/%d failed", link.peer, link.outer_step, exc_info=fault)
        if fault is not None:
            log.debug("exchange %s/%d: %s", link.peer, link.outer_step, fault)

    async def _dial(self, link: Link, dial: Dial) -> None:
        async with self._channels.use(link.peer, Lane.BULK) as channel:
            with peer_errors(link.peer):
                call = channel.stream_stream(METHOD)(metadata=record_metadata(self._gatekeeper))
                try:
                    stream = await self._handshake(link, call)
                    dial.confirm()
                    await link.serve(stream)
                finally:
                    call.cancel()

    async def _handshake(self, link: Link, call: Any) -> OutboundStream:
        """OPEN out, OPEN back: only then is the stream known to be up."""
        stream = OutboundStream(call, link.peer, secrets.randbits(63) | 1)
        async with asyncio.timeout(limits.DIAL_DEADLINE_S):
            await call.wait_for_connection()
            asked_s = asyncio.get_running_loop().time()
            await stream.write(self._opening(link, stream.stream_id))
            await learn_record(self._gatekeeper, link.peer, call)
            data = await stream.read()
            stream.round_trip_s = asyncio.get_running_loop().time() - asked_s
        if not data:
            raise PeerLost(f"{link.peer} closed the exchange at once")
        frame, _ = split_frame(ExchangeFrame, data)
        if frame.open.stream_id != stream.stream_id or frame.open.run != self.run:
            raise RemoteProtocolError("an exchange was not answered with OPEN")
        return stream

    async def close(self) -> None:
        keepers = list(self._keepers.values())
        for keeper in keepers:
            keeper.cancel()
        await asyncio.gather(*keepers, return_exceptions=True)
        for link in list(self._links.values()):
            link.release()
            await link.replace()
        self._links.clear()
