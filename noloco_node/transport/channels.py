"""Per peer two gRPC channels, control and bulk: a small call on a busy channel would wait 175-350 ms (DESIGN 6).

Owns the channels and their local listeners: made on first use, made anew after failures in a row, closed when idle.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import StrEnum

import grpc.aio

from noloco_node.core import limits
from noloco_node.core.types import PeerId
from noloco_node.errors import PeerLost
from noloco_node.transport.options import CLIENT
from noloco_node.transport.tunnel import Listener, Tunnel


class Lane(StrEnum):
    CONTROL = "control"
    BULK = "bulk"


class Entry:
    """One channel with its listener and what is known of its health."""

    def __init__(self, listener: Listener, channel: grpc.aio.Channel) -> None:
        self.listener = listener
        self.channel = channel
        self.calls = 0
        self.failures = 0
        self.used_at = asyncio.get_running_loop().time()

    @property
    def spent(self) -> bool:
        return self.calls == 0 and self.failures >= limits.CHANNEL_FAILURES_MAX

    def idle(self, now: float) -> bool:
        return self.calls == 0 and now - self.used_at >= limits.CHANNEL_IDLE_S

    async def close(self) -> None:
        await self.channel.close()
        await self.listener.close()


class Channels:
    """`async with channels.use(peer, lane) as channel:` around the whole life of a call."""

    def __init__(self, tunnel: Tunnel) -> None:
        self._tunnel = tunnel
        self._entries: dict[tuple[PeerId, Lane], Entry] = {}
        self._making = asyncio.Lock()
        self._sweeper: asyncio.Task[None] | None = None
        self._closed = False

    def __len__(self) -> int:
        return len(self._entries)

    def start(self) -> None:
        self._sweeper = asyncio.create_task(self._sweep())

    @asynccontextmanager
    async def use(self, peer: PeerId, lane: Lane) -> AsyncIterator[grpc.aio.Channel]:
        """A PeerLost that leaves the block counts against the channel."""
        entry = await self._entry(peer, lane)
        entry.calls += 1
        try:
            yield entry.channel
            entry.failures = 0
        except PeerLost:
            entry.failures += 1
            raise
        finally:
            entry.calls -= 1
            entry.used_at = asyncio.get_running_loop().time()
            if entry.spent:
                await self._drop(peer, lane, entry)

    async def _entry(self, peer: PeerId, lane: Lane) -> Entry:
        async with self._making:
            if self._closed:
                raise PeerLost("the network is closed")
            entry = self._entries.get((peer, lane))
            if entry is None:
                await self._make_room()
                entry = self._entries[peer, lane] = await self._make(peer)
            return entry

    async def _make(self, peer: PeerId) -> Entry:
        listener = await self._tunnel.listen(peer)
        return Entry(listener, grpc.aio.insecure_channel(f"unix:{listener.path}", options=CLIENT))

    async def _make_room(self) -> None:
        if len(self._entries) < limits.CHANNELS_MAX:
            return
        unused = [(entry.used_at, key) for key, entry in self._entries.items() if entry.calls == 0]
        if not unused:
            raise PeerLost(f"all {limits.CHANNELS_MAX} channels are in use")
        _, (peer, lane) = min(unused)
        await self._drop(peer, lane, self._entries[peer, lane])

    async def _drop(self, peer: PeerId, lane: Lane, entry: Entry) -> None:
        if self._entries.get((peer, lane)) is entry:
            del self._entries[peer, lane]
            await entry.close()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(limits.CHANNEL_IDLE_S / 4)
            now = asyncio.get_running_loop().time()
            for (peer, lane), entry in list(self._entries.items()):
                if entry.idle(now):
                    await self._drop(peer, lane, entry)

    async def close(self) -> None:
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
        entries = list(self._entries.values())
        self._entries.clear()
        for entry in entries:
            await entry.close()
