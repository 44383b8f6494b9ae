"""A link in mode prefetch: the first part of a tensor comes long before the rest, over real gRPC."""

from __future__ import annotations

import asyncio

import pytest
from loopback_swarm import Held, Node, Swarm, until

from noloco_node.core import limits
from noloco_node.core.types import Begin, ExchangeMessage, PeerId, Reached, Seat
from noloco_node.transport.framing import digest_of

K, KNOWN = 7, 2 * limits.MIB + 99
SIZE = KNOWN + 3 * limits.MIB + 4321
TENSOR = (bytes(range(256)) * (SIZE // 256 + 1))[:SIZE]
NAME = digest_of(TENSOR)


def begin(held_bytes: int = 0, held_id: bytes = b"", *, ahead: bool = True) -> Begin:
    return Begin(K, Seat(0, 0), Seat(0, 1), 5, "float32", "abc", SIZE, NAME, 1.0, held_bytes, held_id, ahead)


class Trader:
    """What the core does in mode prefetch, on one side. Both sides send the same bytes."""

    def __init__(self, node: Node, partner: PeerId) -> None:
        self.node, self.partner = node, partner
        self.source, self.is_ahead = Held(TENSOR, KNOWN), True
        node.driver.on_opened, node.driver.on_message = self.opened, self.message

    def open(self, *, decider: bool) -> None:
        self.node.network.exchange.open(self.partner, K, decider=decider)

    def opened(self, peer: PeerId, outer_step: int, held_bytes: int, held_id: bytes) -> None:
        self.node.network.exchange.send(peer, begin(held_bytes, held_id, ahead=self.is_ahead))

    def message(self, peer: PeerId, message: ExchangeMessage) -> None:
        hub = self.node.network.exchange
        if isinstance(message, Begin):
            hub.expect(peer, K, SIZE, NAME, is_due=not message.ahead)
            hub.stream(peer, K, self.source, message.held_bytes if message.held_id == NAME else 0)
        elif isinstance(message, Reached):
            hub.expect(peer, K, SIZE, NAME)

    def reach(self) -> None:
        self.is_ahead = False
        self.node.network.exchange.send(self.partner, Reached(K))
        self.source.go_on.set()

    def moved(self, service: str) -> int:
        return self.node.moved(service, "received")


@pytest.fixture
async def both(alice: Node, bob: Node, monkeypatch: pytest.MonkeyPatch) -> tuple[Trader, Trader]:
    monkeypatch.setattr(limits, "LINK_REOPEN_S", 0.05)
    traders = Trader(alice, bob.peer), Trader(bob, alice.peer)
    traders[0].open(decider=True)
    traders[1].open(decider=False)
    return traders


def is_ahead(both: tuple[Trader, Trader]) -> bool:
    return all(trader.node.network.exchange._links[trader.partner, K].held[0] == KNOWN for trader in both)


async def traded(both: tuple[Trader, Trader]) -> None:
    await until(lambda: all(trader.node.driver.tensors for trader in both), 20)
    for trader in both:
        assert trader.node.driver.tensors == [(trader.partner, K, TENSOR)]
        assert trader.node.gate.strikes == []


async def test_the_first_part_is_here_before_the_boundary_and_the_rest_after_it(both: tuple[Trader, Trader]) -> None:
    await until(lambda: is_ahead(both))
    assert [trader.moved("exchange") for trader in both] == [0, 0]
    for trader in both:
        trader.reach()
    await traded(both)
    assert [trader.moved("prefetch") for trader in both] == [KNOWN, KNOWN]
    assert [trader.moved("exchange") for trader in both] == [SIZE - KNOWN] * 2
    assert both[0].node.moved("prefetch", "sent") == KNOWN


async def test_a_pause_before_the_boundary_ends_no_stream_and_one_after_it_does(
    both: tuple[Trader, Trader], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "STALL_S", 0.2)
    await until(lambda: is_ahead(both))
    opened = [len(trader.node.driver.opened) for trader in both]
    await asyncio.sleep(1.0)
    assert [len(trader.node.driver.opened) for trader in both] == opened
    both[0].node.network.exchange.send(both[0].partner, Reached(K))  # and nothing follows
    await until(lambda: len(both[1].node.driver.opened) > opened[1])


@pytest.mark.parametrize("part", [KNOWN // 3, KNOWN])
async def test_a_link_cut_ahead_of_the_boundary_is_resumed_at_the_offset(
    both: tuple[Trader, Trader], peers: Swarm, monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    monkeypatch.setattr(limits, "CHUNK_BYTES_MAX", 64 * 1024)
    await until(lambda: both[1].moved("prefetch") >= part)
    peers.wires.cut()
    await until(lambda: is_ahead(both) and len(both[1].node.driver.opened) > 1, 20)
    for trader in both:
        trader.reach()
    await traded(both)
    assert [trader.moved("prefetch") + trader.moved("exchange") for trader in both] == [SIZE, SIZE]


async def test_who_reaches_the_boundary_first_waits_for_no_bytes_of_the_other(
    both: tuple[Trader, Trader], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LEAD_WAIT_S", 60.0)
    monkeypatch.setattr(limits, "LEAD_BYTES_MAX", limits.MIB)
    await until(lambda: is_ahead(both))
    both[0].reach()
    await until(lambda: both[1].node.driver.tensors)
    assert both[0].node.driver.tensors == []
    both[1].reach()
    await traded(both)


async def test_a_release_before_the_boundary_frees_what_came_and_what_follows_is_no_strike(
    both: tuple[Trader, Trader],
) -> None:
    await until(lambda: is_ahead(both))
    alice, bob = both
    bob.node.network.exchange.release(bob.partner, K)
    assert bob.node.network.exchange._links[bob.partner, K].held == (0, b"")
    bob.node.driver.on_message = lambda peer, message: None
    alice.reach()
    await until(lambda: bob.moved("exchange") > 0)
    assert bob.node.gate.strikes == []
    assert bob.node.driver.tensors == []


async def test_a_tensor_wanted_again_in_the_midst_of_its_stream_comes_once_more_from_the_start(
    both: tuple[Trader, Trader],
) -> None:
    """The rest of the first stream is neither taken for the beginning nor held against the partner."""
    await until(lambda: is_ahead(both))
    bob = both[1]
    bob.node.network.exchange.release(bob.partner, K)
    bob.open(decider=False)
    for trader in both:
        trader.reach()
    await traded(both)


async def test_a_partner_that_sends_ahead_more_than_it_announced_is_refused(alice: Node, bob: Node) -> None:
    alice.network.exchange.open(bob.peer, K, decider=True)
    await until(lambda: alice.driver.opened and bob.driver.opened)
    bob.network.exchange.expect(alice.peer, K, KNOWN, NAME, is_due=False)
    alice.network.exchange.stream(bob.peer, K, Held(TENSOR), 0)
    await until(lambda: bob.driver.damaged)
    assert "more than the announced" in bob.driver.damaged[0][2]
    assert bob.gate.strikes[0][0] == alice.peer
