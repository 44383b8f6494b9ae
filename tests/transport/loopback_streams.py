"""PeerStreams over loopback TCP in one process: a preamble line names the caller, so that a test knows who dials.

Counts bytes, and can cut, delay or choke what is live, which no real network does on demand.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from noloco_node.core.types import PeerId
from noloco_node.errors import PeerLost

Handler = Callable[[PeerId, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Wires:
    """All streams between the peers of one test."""

    def __init__(self) -> None:
        self.ports: dict[PeerId, int] = {}
        self.live: set[asyncio.StreamWriter] = set()
        self.unreachable: set[PeerId] = set()
        self.opened = 0

    def cut(self) -> None:
        """Break every live stream."""
        for writer in list(self.live):
            writer.transport.abort()
        self.live.clear()


class LoopbackStreams:
    def __init__(self, peer: PeerId, wires: Wires) -> None:
        self.peer = peer
        self.wires = wires
        self._handlers: dict[str, Handler] = {}
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self, peer: PeerId, protocol: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if peer in self.wires.unreachable or peer not in self.wires.ports:
            raise PeerLost(f"no way to {peer}")
        reader, writer = await asyncio.open_connection("127.0.0.1", self.wires.ports[peer])
        writer.write(f"{self.peer} {protocol}\n".encode())
        self.wires.opened += 1
        self.wires.live.add(writer)
        return reader, writer

    async def serve(self, protocol: str, handler: Handler) -> None:
        self._handlers[protocol] = handler
        if self._server is None:
            self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
            self.wires.ports[self.peer] = self._server.sockets[0].getsockname()[1]

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        caller, _, protocol = (await reader.readline()).decode().strip().partition(" ")
        handler = self._handlers.get(protocol)
        if handler is None:
            writer.close()
            return
        await handler(PeerId(caller), reader, writer)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
