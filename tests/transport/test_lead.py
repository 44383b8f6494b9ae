"""Both directions of an exchange keep step: who is ahead waits for the partner's bytes, but not for ever."""

from __future__ import annotations

import asyncio

import pytest
from loopback_swarm import Held, Node, until
from test_exchange_link import ALICES, BOBS, SIZE, K, live, open_both, traded

from noloco_node.core import limits
from noloco_node.transport.framing import digest_of
from noloco_node.transport.lead import CHUNKS_PER_LEAD, Lead

RATE = 1_000_000_000 // 8  # bytes/s
KNOWN = 64 * 1024


def fed(lead: Lead, rate: float, seconds: float = 1.0, pieces: int = 100) -> Lead:
    for number in range(pieces + 1):
        lead.arrived(int(rate * seconds / pieces), number * seconds / pieces)
    return lead


async def begin_both(alice: Node, bob: Node, bobs: Held) -> None:
    open_both(alice, bob)
    await until(lambda: live(alice, bob) and live(bob, alice))
    for node, partner, own, theirs in ((alice, bob, Held(ALICES), bobs), (bob, alice, bobs, Held(ALICES))):
        node.network.exchange.expect(partner.peer, K, SIZE, digest_of(theirs.data))
        node.network.exchange.stream(partner.peer, K, own, 0)


async def test_who_is_ahead_waits_for_the_partners_bytes(
    alice: Node, bob: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LEAD_WAIT_S", 60.0)
    bobs, lead = Held(BOBS, KNOWN), Lead()
    await begin_both(alice, bob, bobs)
    await until(lambda: bob.moved("exchange", "received") >= lead.size_bytes)
    await asyncio.sleep(0.3)  # in which all of it would arrive
    assert bob.moved("exchange", "received") <= KNOWN + lead.size_bytes + lead.chunk_bytes
    bobs.go_on.set()
    await traded(alice, bob)


async def test_partner_that_sends_nothing_is_not_waited_for_long(
    alice: Node, bob: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LEAD_WAIT_S", 0.02)
    await begin_both(alice, bob, Held(BOBS, 0))
    await until(lambda: bob.driver.tensors == [(alice.peer, K, ALICES)])
    assert alice.moved("exchange", "received") == 0


def test_slow_link_has_the_least_lead_in_small_chunks() -> None:
    lead = fed(Lead(), RATE / 20)
    assert lead.size_bytes == limits.LEAD_BYTES_MIN
    assert lead.chunk_bytes == limits.LEAD_BYTES_MIN // CHUNKS_PER_LEAD


def test_fast_link_has_a_lead_of_its_time_in_large_chunks() -> None:
    lead = fed(Lead(), RATE)
    assert lead.size_bytes == pytest.approx(RATE * limits.LEAD_S, rel=0.01)
    assert lead.chunk_bytes == limits.CHUNK_BYTES_MAX


def test_long_way_has_a_lead_that_fills_it() -> None:
    round_trip_s = 2 * limits.LEAD_S
    assert fed(Lead(round_trip_s), RATE / 2).size_bytes == pytest.approx(RATE / 2 * round_trip_s, rel=0.01)
    assert fed(Lead(600.0), RATE).size_bytes == limits.LEAD_BYTES_MAX


def test_burst_at_the_beginning_tells_no_rate() -> None:
    assert fed(Lead(), RATE, seconds=0.001, pieces=2).size_bytes == limits.LEAD_BYTES_MIN


@pytest.mark.parametrize(
    ("left", "partners_left", "is_spent"),
    [
        (SIZE, SIZE + limits.LEAD_BYTES_MIN, False),
        (SIZE, SIZE + limits.LEAD_BYTES_MIN + 1, True),
        (SIZE, 0, False),  # the partner's tensor is here, or there is none
        (0, SIZE, False),  # END waits for nobody
    ],
)
def test_lead_is_spent_with_so_much_less_left_than_the_partner(left: int, partners_left: int, is_spent: bool) -> None:
    assert Lead().is_spent(left, partners_left) is is_spent
