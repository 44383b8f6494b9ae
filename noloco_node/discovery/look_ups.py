"""Questions to the DHT: which peers are nearest to a key, and what they hold under it.

Keys that are asked for in the same turn of the event loop travel together: a peer near to several of them is asked once
for all of those. Who is asked of a key is who would be asked if it went alone; a sweep over the seats just takes fewer
questions. Of a DHT that is slow a batch learns what came in time.
Owns the traversals under way. hivemind's traversal and wire protocol are used. Must not know records or seats.
"""

from __future__ import annotations

import asyncio
from bisect import insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from noloco_node.core import limits
from noloco_node.discovery.hivemind_library import DHTID, DHTNode, PeerID, traverse_dht
from noloco_node.errors import PeerLost

Answer = tuple[Any, dict[DHTID, PeerID]]  # what a peer holds under a key, and the neighbours it names


@dataclass(slots=True)
class LookUp:
    """Of one key: how many peers answered, who is nearest to it (nearest first), what they hold."""

    answered: int = 0
    nearest: list[PeerID] = field(default_factory=list)
    found: list[Any] = field(default_factory=list)


GONE = "the libp2p daemon is down"
Waiting = list[tuple[DHTID, asyncio.Future[LookUp]]]


class Nearest:
    """Which nodes a look-up of `key` alone would ask: the DHT_BEAM nearest of the known ones."""

    def __init__(self, key: DHTID, known: Iterable[DHTID]) -> None:
        self._key = int(key)
        self._known: set[DHTID] = set()
        self._distances: list[int] = []  # of the nearest ones, in order
        self.learn(known)

    def learn(self, node_ids: Iterable[DHTID]) -> None:
        for node_id in node_ids:
            if node_id not in self._known:
                self._known.add(node_id)
                insort(self._distances, int(node_id) ^ self._key)
                del self._distances[limits.DHT_BEAM :]

    def has(self, node_id: DHTID) -> bool:
        return len(self._known) <= limits.DHT_BEAM or int(node_id) ^ self._key <= self._distances[-1]


class LookUps:
    """Those of one DHT node, whose own id is `node_id`."""

    def __init__(self, node: DHTNode, node_id: DHTID) -> None:
        self._node = node
        self._node_id = node_id
        self._asked: Waiting = []
        self._tasks: set[asyncio.Task[dict[DHTID, LookUp]]] = set()

    async def of(self, key: DHTID, *, alone: bool = False) -> LookUp:
        """Ask the peers nearest to `key`, nearer ones as they become known. `alone`: whatever becomes of other keys.

        Raises PeerLost when nobody answered until the deadline.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[LookUp] = loop.create_future()
        if alone:
            self._send([(key, answer)])
            return await answer
        if not self._asked:
            loop.call_soon(self._set_out)
        self._asked.append((key, answer))
        return await answer

    def stop(self) -> None:
        """Whoever waits is told PeerLost."""
        for task in self._tasks:
            task.cancel()
        asked, self._asked = self._asked, []
        for _, answer in asked:
            if not answer.done():
                answer.set_exception(PeerLost(GONE))

    def _set_out(self) -> None:
        asked, self._asked = self._asked, []
        for first in range(0, len(asked), limits.DHT_KEYS_TOGETHER):
            self._send(asked[first : first + limits.DHT_KEYS_TOGETHER])

    def _send(self, waiting: Waiting) -> None:
        keys = [key for key, _ in waiting]
        task = asyncio.get_running_loop().create_task(self._traverse_in_time(keys), name="look-ups")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(partial(self._answer, waiting))

    def _answer(self, waiting: Waiting, task: asyncio.Task[dict[DHTID, LookUp]]) -> None:
        fault = PeerLost(GONE) if task.cancelled() else task.exception()
        for key, answer in waiting:
            if answer.done():
                continue
            if fault is not None:
                answer.set_exception(fault)
            elif key in task.result():
                answer.set_result(task.result()[key])
            else:
                answer.set_exception(PeerLost("the DHT did not answer in time"))

    async def _traverse_in_time(self, keys: Sequence[DHTID]) -> dict[DHTID, LookUp]:
        """What was found until the deadline; a key that nobody answered by then is missing."""
        look_ups = {key: LookUp() for key in keys}
        try:
            async with asyncio.timeout(limits.DHT_DEADLINE_S):
                await self._traverse(look_ups)
        except TimeoutError:
            return {key: look_up for key, look_up in look_ups.items() if look_up.answered}
        return look_ups

    async def _traverse(self, look_ups: dict[DHTID, LookUp]) -> None:
        node, table, keys = self._node, self._node.protocol.routing_table, list(look_ups)
        peers: dict[DHTID, PeerID] = {}
        for key in keys:
            peers.update(table.get_nearest_neighbors(key, limits.DHT_BEAM, exclude=self._node_id))

        nearby = {key: Nearest(key, peers) for key in keys}

        async def ask(node_id: DHTID, wanted: list[DHTID]) -> dict[DHTID, tuple[tuple[DHTID, ...], bool]]:
            near = [key for key in wanted if nearby[key].has(node_id)]
            answers = await self._ask(peers[node_id], near) if near else {}
            for key, (value, neighbours) in answers.items():
                look_ups[key].answered += 1
                look_ups[key].found += [] if value is None else [value]
                nearby[key].learn(neighbours)
                peers.update({node_id: name for node_id, name in neighbours.items() if node_id not in peers})
            return {key: (tuple(answers[key][1]) if key in answers else (), False) for key in wanted}

        nearest, _ = await traverse_dht(
            keys,
            initial_nodes=list(peers),
            beam_size=limits.DHT_BEAM,
            num_workers=min(limits.DHT_WORKERS * len(keys), limits.DHT_WORKERS_MAX),
            queries_per_call=len(keys),
            get_neighbors=ask,
            visited_nodes={key: {self._node_id} for key in keys},
        )
        for key, look_up in look_ups.items():
            look_up.nearest = [peers[node_id] for node_id in nearest[key] if peers[node_id] not in node.blacklist]

    async def _ask(self, peer: PeerID, keys: Sequence[DHTID]) -> dict[DHTID, Answer]:
        """What one peer says of each key; nothing when it is silent."""
        blacklist = self._node.blacklist
        if peer in blacklist:
            return {}
        answer = await self._node.protocol.call_find(peer, keys)
        if not answer:
            blacklist.register_failure(peer)
            return {}
        blacklist.register_success(peer)
        return {key: (None if found is None else found.value, names) for key, (found, names) in answer.items()}
