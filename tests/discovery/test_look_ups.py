"""Look-ups that set out together: fewer questions, the same answers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from noloco_node.core import limits
from noloco_node.discovery.hivemind_library import DHTID
from noloco_node.discovery.look_ups import LookUp, LookUps
from noloco_node.errors import PeerLost

PEERS, KEYS = 40, 24


class Shunned(set[int]):
    """Peers that did not answer, as hivemind keeps them."""

    register_failure = set.add

    def register_success(self, peer: int) -> None:
        self.discard(peer)


class Web:
    """A DHT of peers that all know one another; each holds of every key its own name. Counts what it is asked."""

    def __init__(self, silent: frozenset[int] = frozenset()) -> None:
        draw = random.Random(5)
        self.ids = {DHTID(draw.getrandbits(160)): number for number in range(PEERS)}
        self.keys = [DHTID(draw.getrandbits(160)) for _ in range(KEYS)]
        self.questions: list[tuple[int, tuple[DHTID, ...]]] = []
        self._silent = silent

    def look_ups(self) -> LookUps:
        table = SimpleNamespace(get_nearest_neighbors=lambda key, most, exclude: self.nearest(key)[:most])
        protocol = SimpleNamespace(routing_table=table, call_find=self._find)
        node: Any = SimpleNamespace(protocol=protocol, blacklist=Shunned())
        return LookUps(node, DHTID(0))

    def nearest(self, key: DHTID) -> list[tuple[DHTID, int]]:
        return sorted(self.ids.items(), key=lambda item: key.xor_distance(item[0]))

    async def _find(self, peer: int, keys: Sequence[DHTID]) -> Any:
        self.questions.append((peer, tuple(keys)))
        await asyncio.sleep(0)
        if peer in self._silent:
            return None
        named = {key: dict(self.nearest(key)[: limits.DHT_BUCKET]) for key in keys}
        return {key: (SimpleNamespace(value=peer), named[key]) for key in keys}


async def test_keys_asked_for_together_find_what_each_finds_alone() -> None:
    web = Web(silent=frozenset({3, 7}))
    together = await asyncio.gather(*map(web.look_ups().of, web.keys))
    asked_together, web.questions = web.questions, []
    alone = [await web.look_ups().of(key) for key in web.keys]
    for one, other in zip(together, alone, strict=True):
        assert (one.answered, sorted(one.found), one.nearest) == (other.answered, sorted(other.found), other.nearest)
    assert sum(len(keys) for _, keys in asked_together) == len(
        web.questions
    )  # nobody is asked what was not asked before
    assert len(asked_together) <= 2 * PEERS < len(web.questions) / 2


async def test_one_that_no_longer_waits_costs_the_others_nothing() -> None:
    web = Web()
    look_ups = web.look_ups()
    first, second = (asyncio.create_task(look_ups.of(key)) for key in web.keys[:2])
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).answered == limits.DHT_BEAM
    assert first.cancelled()


async def test_a_stop_is_told_to_whoever_waits() -> None:
    web = Web()
    look_ups = web.look_ups()
    waiting = asyncio.create_task(look_ups.of(web.keys[0]))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    look_ups.stop()
    with pytest.raises(PeerLost):
        await waiting


async def test_a_fault_is_told_to_whoever_asked_and_the_next_look_up_works(monkeypatch: pytest.MonkeyPatch) -> None:
    web = Web()
    look_ups = web.look_ups()
    monkeypatch.setattr(look_ups, "_traverse", lambda keys: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        await look_ups.of(web.keys[0])
    monkeypatch.undo()
    assert (await look_ups.of(web.keys[0])).answered == limits.DHT_BEAM


async def test_a_stop_is_told_to_whoever_has_just_asked() -> None:
    web = Web()
    look_ups = web.look_ups()
    waiting = asyncio.create_task(look_ups.of(web.keys[0]))
    await asyncio.sleep(0)
    look_ups.stop()
    with pytest.raises(PeerLost):
        await waiting
    assert not web.questions


async def test_of_a_slow_dht_each_key_learns_what_came_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """One peer answers at once, the others never: that one's word is not lost with the rest."""
    web = Web()
    quick = web.nearest(web.keys[0])[0][1]
    answer = web._find

    async def find(peer: int, keys: Sequence[DHTID]) -> Any:
        if peer != quick:
            await asyncio.sleep(3600)
        return await answer(peer, keys)

    monkeypatch.setattr(web, "_find", find)
    monkeypatch.setattr(limits, "DHT_DEADLINE_S", 0.3)
    look_ups = web.look_ups()
    known, far = web.keys[0], max(web.keys, key=lambda key: [peer for _, peer in web.nearest(key)].index(quick))
    found, lost = await asyncio.gather(look_ups.of(known), look_ups.of(far), return_exceptions=True)
    assert isinstance(found, LookUp)
    assert (found.answered, found.found) == (1, [quick])
    assert isinstance(lost, PeerLost)


async def test_one_alone_does_not_wait_for_those_asked_for_together() -> None:
    web = Web()
    look_ups = web.look_ups()
    await asyncio.gather(*(look_ups.of(key, alone=number == 1) for number, key in enumerate(web.keys[:3])))
    assert {keys for _, keys in web.questions} >= {(web.keys[1],)}
    assert not [keys for _, keys in web.questions if len(keys) > 1 and web.keys[1] in keys]


async def test_a_strangers_answer_does_not_rebind_a_known_node(monkeypatch: pytest.MonkeyPatch) -> None:
    web = Web()
    liar, answer = web.nearest(web.keys[0])[0][1], web._find

    async def find(peer: int, keys: Sequence[DHTID]) -> Any:
        found = await answer(peer, keys)
        if peer == liar:  # the last word
            await asyncio.sleep(0.1)
            found = {key: (value, dict.fromkeys(names, liar)) for key, (value, names) in found.items()}
        return found

    monkeypatch.setattr(web, "_find", find)
    look_up = await web.look_ups().of(web.keys[0])
    assert look_up.nearest == [peer for _, peer in web.nearest(web.keys[0])[: len(look_up.nearest)]]
