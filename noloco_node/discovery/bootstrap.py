"""Getting into the swarm and staying in it: initial peers are tried for ever, with growing, jittered pauses.

Owns the loop and what it found out (joined or not, how far our clock is off). A node never ends because a bootstrap
peer is down. Peers known from records count as well, so a swarm whose bootstrap peer is gone closes up again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from contextlib import suppress
from statistics import median

from tenacity import AsyncRetrying, retry_if_exception_type, wait_exponential_jitter

from noloco_node.core import limits
from noloco_node.core.types import PeerId
from noloco_node.discovery.address_book import AddressBook
from noloco_node.discovery.addresses import Address
from noloco_node.discovery.seat_table import SeatTable
from noloco_node.discovery.streams import Libp2pStreams
from noloco_node.errors import PeerLost

log = logging.getLogger(__name__)

REMEMBERED_PEERS = 4  # peers known from records that are asked beside the initial ones


class Bootstrap:
    """`initial`: peer -> its addresses, ourselves excluded. Empty means alone on purpose: there is nothing to do."""

    def __init__(
        self, initial: dict[PeerId, tuple[Address, ...]], table: SeatTable, streams: Libp2pStreams, book: AddressBook
    ) -> None:
        self._initial = initial
        self._table = table
        self._streams = streams
        self._book = book
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self.clock_offset_s: float | None = None

    @property
    def joined(self) -> bool:
        """At least one peer is known to answer, or none is wanted."""
        return not self._initial or bool(self._table.peers)

    async def start(self) -> None:
        """One try now, all others in the background."""
        if not self._initial:
            return
        try:
            await self._join()
        except PeerLost as error:
            log.warning("no bootstrap peer answers yet (%s); trying on", error)
        except Exception:
            log.exception("the first try to join broke; trying on")
        self._task = asyncio.create_task(self._stay_joined(), name="bootstrap")

    def hurry(self) -> None:
        """The daemon is new: do not wait for the next round."""
        self._wake.set()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _stay_joined(self) -> None:
        while True:
            try:
                await self._join_at_last()
            except Exception:
                log.exception("joining broke; trying on")
            await self._pause(limits.JOIN_CHECK_S)

    async def _pause(self, seconds: float) -> None:
        """Sleep, unless a new daemon makes another try worth while at once.

        Not by wait_for: in Python 3.11 it loses a cancellation that comes as the event does.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        self._wake.clear()

    async def _join_at_last(self) -> None:
        pauses = wait_exponential_jitter(
            initial=limits.BOOTSTRAP_RETRY_S, max=limits.BOOTSTRAP_RETRY_MAX_S, jitter=limits.BOOTSTRAP_RETRY_S
        )
        retrying = AsyncRetrying(wait=pauses, sleep=self._pause, retry=retry_if_exception_type(PeerLost))
        async for attempt in retrying:
            with attempt:
                await self._join()

    async def _join(self) -> None:
        """Greet every initial peer, known or not. Raises PeerLost while there is nobody at all.

        A bootstrap peer that came back from a restart knows nobody: it is met again here, or it stays alone.
        """
        known = self._table.peers
        wanted = list(self._initial)
        if not known:
            wanted += [peer for peer in self._book.recent(REMEMBERED_PEERS) if peer not in self._initial]
        results = await asyncio.gather(*(self._meet(peer) for peer in wanted), return_exceptions=True)
        self._judge(results)
        if self._table.peers - known:
            await self._table.explore()
        if not self._table.peers:
            failures = [str(result) for result in results if isinstance(result, BaseException)]
            raise PeerLost(failures[0] if failures else "no peer is known")

    async def _meet(self, peer: PeerId) -> float:
        """Returns the peer's clock minus ours, seconds. Raises PeerLost."""
        if peer in self._table.peers:
            with suppress(PeerLost):
                return await self._table.greet(peer)
        await self._streams.connect(peer, self._initial.get(peer) or self._book.of(peer))
        return await self._table.greet(peer)

    def _judge(self, results: Iterable[float | BaseException]) -> None:
        offsets = []
        for result in results:
            if isinstance(result, float):
                offsets.append(result)
            elif not isinstance(result, Exception):
                raise result
            elif not isinstance(result, PeerLost):
                log.error("greeting a peer broke: %r", result)
        if offsets:
            self.clock_offset_s = median(offsets)
