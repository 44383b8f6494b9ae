"""Byte streams between peers over libp2p: the port `PeerStreams`.

Owns the stream handlers (registered again with every new daemon), their tasks and their number. libp2p has
authenticated the peer id that a handler is given. An opened stream proves nothing yet: the protocol is agreed on
lazily, so a peer that does not serve it shows as a closed stream at the first read.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable

from noloco_node.core import limits
from noloco_node.core.types import PeerId
from noloco_node.discovery.address_book import AddressBook
from noloco_node.discovery.addresses import Address
from noloco_node.discovery.control import DaemonControl
from noloco_node.discovery.hivemind_library import P2P, StreamInfo
from noloco_node.errors import PeerLost

log = logging.getLogger(__name__)

Handler = Callable[[PeerId, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Libp2pStreams:
    """Implements `ports.PeerStreams` on whichever daemon is up."""

    def __init__(self, book: AddressBook) -> None:
        self._book = book
        self._handlers: dict[str, Handler] = {}
        self._p2p: P2P | None = None
        self._control: DaemonControl | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._per_peer: Counter[PeerId] = Counter()
        self.refused = 0  # streams beyond the limits
        self.failed = 0  # handlers that raised

    async def attach(self, p2p: P2P, control: DaemonControl) -> None:
        """A new daemon is up: it learns every handler. Raises what hivemind raises when it is gone again."""
        self._p2p, self._control = p2p, control
        for protocol in self._handlers:
            await self._register(p2p, protocol)

    def detach(self) -> None:
        self._p2p = self._control = None

    async def close(self) -> None:
        self.detach()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def serve(self, protocol: str, handler: Handler) -> None:
        """From now on `handler(peer, reader, writer)` runs for each incoming stream, which ends when it returns.

        A second call for the same protocol replaces the handler.
        """
        news = protocol not in self._handlers
        self._handlers[protocol] = handler
        if self._p2p is None or not news:
            return
        try:
            await self._register(self._p2p, protocol)
        except (TimeoutError, OSError, asyncio.IncompleteReadError) as error:
            log.warning("the daemon is down (%s); the next one will serve %s", error, protocol)

    async def open(self, peer: PeerId, protocol: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Dials within DIAL_DEADLINE_S, at the addresses of the peer's record first. Raises PeerLost."""
        control = self._live_control()
        try:
            async with asyncio.timeout(limits.DIAL_DEADLINE_S):
                await self._try_book(control, peer)
                return await control.open_stream(peer, protocol)
        except TimeoutError as error:
            raise PeerLost(f"{peer} was not reached within {limits.DIAL_DEADLINE_S:g} s") from error

    async def connect(self, peer: PeerId, addresses: Iterable[Address]) -> None:
        """Be connected to a peer. Raises PeerLost."""
        try:
            async with asyncio.timeout(limits.DIAL_DEADLINE_S):
                await self._live_control().connect(peer, addresses)
        except TimeoutError as error:
            raise PeerLost(f"{peer} was not reached within {limits.DIAL_DEADLINE_S:g} s") from error

    async def _try_book(self, control: DaemonControl, peer: PeerId) -> None:
        """Tell the daemon the addresses we know; no cost where it is connected. It may know better ones itself."""
        addresses = self._book.of(peer)
        if not addresses:
            return
        try:
            async with asyncio.timeout(limits.DIAL_DEADLINE_S / 2):
                await control.connect(peer, addresses)
        except (TimeoutError, PeerLost) as error:
            log.debug("addresses of %s do not answer: %s", peer, error)

    async def _register(self, p2p: P2P, protocol: str) -> None:
        async def accept(info: StreamInfo, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._accept(PeerId(info.peer_id.to_base58()), self._handlers[protocol], reader, writer)

        async with asyncio.timeout(limits.UNARY_DEADLINE_S):
            await p2p.add_binary_stream_handler(protocol, accept)

    async def _accept(
        self, peer: PeerId, handler: Handler, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if len(self._tasks) >= limits.TUNNEL_STREAMS_MAX or self._per_peer[peer] >= limits.STREAMS_PER_PEER_MAX:
            self.refused += 1
            writer.close()
            return
        task = asyncio.create_task(self._run(peer, handler, reader, writer), name=f"stream from {peer}")
        self._tasks.add(task)
        self._per_peer[peer] += 1
        task.add_done_callback(lambda _: self._forget(task, peer, writer))
        await asyncio.wait({task})  # a task of its own: asyncio's stream server does not expect cancellation

    async def _run(
        self, peer: PeerId, handler: Handler, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            await handler(peer, reader, writer)
        except Exception:
            self.failed += 1
            log.exception("stream handler failed for %s", peer)

    def _forget(self, task: asyncio.Task[None], peer: PeerId, writer: asyncio.StreamWriter) -> None:
        writer.close()
        self._tasks.discard(task)
        self._per_peer[peer] -= 1
        if not self._per_peer[peer]:
            del self._per_peer[peer]

    def _live_control(self) -> DaemonControl:
        if self._control is None:
            raise PeerLost("the libp2p daemon is down")
        return self._control
