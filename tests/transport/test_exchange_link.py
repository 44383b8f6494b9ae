"""Exchange links (DESIGN 5a): both ways at once, crossings, cuts, resumes, release; over real gRPC."""

from __future__ import annotations

import asyncio

import pytest
from loopback_swarm import Held, Node, Swarm, until

from noloco_node.core import limits
from noloco_node.core.types import Ask, Begin, Commit, ExchangeMessage, Have, PeerId, Reached, Ready, Seat, Solo, Wait
from noloco_node.transport.framing import digest_of

K = 7
SIZE = 3 * limits.MIB + 4321
TENSORS = {"a": bytes(range(256)) * (SIZE // 256 + 1), "b": bytes(reversed(range(256))) * (SIZE // 256 + 1)}
ALICES, BOBS = TENSORS["a"][:SIZE], TENSORS["b"][:SIZE]


def begin(tensor: bytes, held_bytes: int = 0, held_id: bytes = b"", outer_step: int = K) -> Begin:
    return Begin(
        outer_step=outer_step,
        sender=Seat(0, 0),
        receiver=Seat(0, 1),
        incarnation=5,
        codec="float32",
        shape_hash="abc",
        tensor_bytes=len(tensor),
        tensor_id=digest_of(tensor),
        held_bytes=held_bytes,
        held_id=held_id,
    )


def trade(node: Node, tensor: bytes) -> None:
    """What the core does: BEGIN on an open link, make an inbox and stream when the partner's BEGIN fits."""
    hub, digest = node.network.exchange, digest_of(tensor)

    def opened(peer: PeerId, outer_step: int, held_bytes: int, held_id: bytes) -> None:
        hub.send(peer, begin(tensor, held_bytes, held_id, outer_step))

    def message(peer: PeerId, message: ExchangeMessage) -> None:
        if isinstance(message, Begin):
            hub.expect(peer, message.outer_step, message.tensor_bytes, message.tensor_id)
            offset = message.held_bytes if message.held_id == digest else 0
            hub.stream(peer, message.outer_step, Held(tensor), offset)

    node.driver.on_opened, node.driver.on_message = opened, message


def open_both(alice: Node, bob: Node) -> None:
    alice.network.exchange.open(bob.peer, K, decider=True)
    bob.network.exchange.open(alice.peer, K, decider=False)


async def traded(alice: Node, bob: Node) -> None:
    await until(lambda: alice.driver.tensors and bob.driver.tensors, 20)
    assert alice.driver.tensors == [(bob.peer, K, BOBS)]
    assert bob.driver.tensors == [(alice.peer, K, ALICES)]
    assert (alice.gate.strikes, bob.gate.strikes) == ([], [])


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LINK_REOPEN_S", 0.05)


async def test_partners_trade_both_ways_when_one_opens(alice: Node, bob: Node) -> None:
    trade(alice, ALICES)
    trade(bob, BOBS)
    bob.network.exchange.open(alice.peer, K, decider=False)
    await traded(alice, bob)
    assert alice.moved("exchange", "sent") == bob.moved("exchange", "received") == SIZE
    assert bob.moved("exchange", "sent") == alice.moved("exchange", "received") == SIZE


@pytest.mark.parametrize("round_", range(5))
async def test_crossing_streams_become_one(alice: Node, bob: Node, round_: int) -> None:
    trade(alice, ALICES)
    trade(bob, BOBS)
    open_both(alice, bob)
    await traded(alice, bob)
    links = [node.network.exchange._links[peer.peer, K] for node, peer in ((alice, bob), (bob, alice))]
    assert links[0].stream is not None
    assert links[1].stream is not None
    assert links[0].stream.stream_id == links[1].stream.stream_id
    assert links[0].stream.outbound  # the decider's stays


async def test_late_opener_is_told_that_the_link_is_up(alice: Node, bob: Node) -> None:
    bob.network.exchange.open(alice.peer, K, decider=False)
    await until(lambda: alice.driver.opened and bob.driver.opened)
    alice.network.exchange.open(bob.peer, K, decider=True)
    await until(lambda: len(alice.driver.opened) == 2)
    assert alice.driver.opened == [(bob.peer, K, 0, b"")] * 2


async def test_every_message_arrives_as_it_was_sent(alice: Node, bob: Node) -> None:
    sent: list[ExchangeMessage] = [
        begin(ALICES),
        Have(K),
        Ready(K),
        Commit(K),
        Solo(K, "late"),
        Ask(K),
        Wait(K),
        Reached(K),
    ]
    alice.network.exchange.open(bob.peer, K, decider=True)
    await until(lambda: alice.driver.opened)
    for message in sent:
        alice.network.exchange.send(bob.peer, message)
    await until(lambda: len(bob.driver.messages) == len(sent))
    assert [message for _, message in bob.driver.messages] == sent
    bob.network.exchange.send(alice.peer, Wait(K))  # on the stream the other side opened
    await until(lambda: alice.driver.messages)


async def test_cut_stream_is_resumed_at_the_offset(
    alice: Node, bob: Node, peers: Swarm, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CHUNK_BYTES_MAX", 64 * 1024)
    trade(alice, ALICES)
    trade(bob, BOBS)
    open_both(alice, bob)
    await until(lambda: bob.moved("exchange", "received") > SIZE // 3)
    peers.wires.cut()
    await traded(alice, bob)
    assert bob.moved("exchange", "received") == SIZE  # not a byte twice
    assert alice.moved("exchange", "received") == SIZE
    resumed = [opened for opened in bob.driver.opened if opened[2] > 0]
    assert resumed[0][3] == digest_of(ALICES)


async def test_link_is_reopened_again_and_again_until_release(
    alice: Node, bob: Node, peers: Swarm, quick: None
) -> None:
    open_both(alice, bob)
    for round_ in range(1, 4):
        await until(lambda: live(alice, bob) and live(bob, alice))
        assert len(alice.driver.opened) >= round_
        peers.wires.cut()
        await until(lambda round_=round_: not live(alice, bob) or len(alice.driver.opened) > round_)
    alice.network.exchange.release(bob.peer, K)
    bob.network.exchange.release(alice.peer, K)
    peers.wires.cut()
    await until(lambda: alice.network.exchange.link_count == bob.network.exchange.link_count == 0)


def live(node: Node, peer: Node) -> bool:
    link = node.network.exchange._links.get((peer.peer, K))
    return link is not None and link.stream is not None


async def test_link_opened_right_after_its_release_comes_up(alice: Node, bob: Node, peers: Swarm, quick: None) -> None:
    peers.wires.unreachable.add(bob.peer)
    hub = alice.network.exchange
    hub.open(bob.peer, K, decider=True)
    await asyncio.sleep(0.1)
    hub.release(bob.peer, K)
    hub.open(bob.peer, K, decider=True)
    peers.wires.unreachable.clear()
    await until(lambda: alice.driver.opened)


async def test_unreachable_partner_is_tried_until_it_is_back(alice: Node, bob: Node, peers: Swarm, quick: None) -> None:
    peers.wires.unreachable.add(bob.peer)
    alice.network.exchange.open(bob.peer, K, decider=True)
    await asyncio.sleep(0.5)
    assert alice.driver.opened == []
    peers.wires.unreachable.clear()
    await until(lambda: alice.driver.opened)


async def test_decider_that_cannot_dial_takes_the_followers_stream(
    alice: Node, bob: Node, peers: Swarm, quick: None
) -> None:
    peers.wires.unreachable.add(bob.peer)  # NAT: only the follower can dial
    trade(alice, ALICES)
    trade(bob, BOBS)
    open_both(alice, bob)
    await traded(alice, bob)


async def test_released_link_still_answers_late_questions(alice: Node, bob: Node) -> None:
    open_both(alice, bob)
    await until(lambda: live(alice, bob) and live(bob, alice))
    alice.network.exchange.release(bob.peer, K)
    bob.network.exchange.send(alice.peer, Ask(K))
    await until(lambda: alice.driver.messages == [(bob.peer, Ask(K))])
    alice.network.exchange.send(bob.peer, Commit(K))
    await until(lambda: bob.driver.messages == [(alice.peer, Commit(K))])


async def test_idle_released_link_is_forgotten(alice: Node, bob: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LINK_IDLE_S", 0.2)
    monkeypatch.setattr(limits, "STALL_S", 0.5)
    open_both(alice, bob)
    await until(lambda: live(alice, bob) and live(bob, alice))
    alice.network.exchange.release(bob.peer, K)
    bob.network.exchange.release(alice.peer, K)
    await until(lambda: alice.network.exchange.link_count == bob.network.exchange.link_count == 0)


async def test_stream_for_a_step_nobody_opened_is_delivered(alice: Node, bob: Node) -> None:
    alice.network.exchange.open(bob.peer, 99, decider=True)
    await until(lambda: alice.driver.opened)
    alice.network.exchange.send(bob.peer, Ask(99))
    await until(lambda: bob.driver.messages == [(alice.peer, Ask(99))])
    bob.network.exchange.send(alice.peer, Solo(99, "passed"))
    await until(lambda: alice.driver.messages == [(bob.peer, Solo(99, "passed"))])


async def test_chunks_nobody_asked_for_are_discarded_with_one_strike(
    alice: Node, bob: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "UNSOLICITED_GRACE_S", 0.1)
    alice.network.exchange.open(bob.peer, K, decider=True)
    await until(lambda: alice.driver.opened)
    alice.network.exchange.stream(bob.peer, K, Held(ALICES), 0)
    await until(lambda: bob.moved("exchange", "received") == SIZE)
    alice.network.exchange.send(bob.peer, Have(K))
    await until(lambda: bob.driver.messages)
    assert bob.gate.strikes == [(alice.peer, "chunks that nobody asked for")]
    assert (bob.driver.tensors, bob.driver.damaged) == ([], [])


async def test_head_is_told_before_the_rest_of_the_tensor_can_be_made(alice: Node, bob: Node) -> None:
    """What follows a sketch depends on the partner's sketch: each side waits for the other's, neither for ever."""
    head, tensors = 1000, (Held(ALICES, 1000), Held(BOBS, 1000))
    open_both(alice, bob)
    await until(lambda: live(alice, bob) and live(bob, alice))
    for node, partner, own, theirs in ((alice, bob, *tensors), (bob, alice, *tensors[::-1])):
        node.network.exchange.expect(partner.peer, K, SIZE, digest_of(theirs.data), head)
        node.network.exchange.stream(partner.peer, K, own, 0)
    await until(lambda: alice.driver.heads and bob.driver.heads)
    assert bob.driver.heads == [(alice.peer, K, ALICES[:head])]
    assert (alice.driver.tensors, bob.driver.tensors) == ([], [])
    for held in tensors:
        held.go_on.set()
    await traded(alice, bob)
    assert len(bob.driver.heads) == 1


async def test_inbox_made_a_moment_late_loses_nothing(alice: Node, bob: Node) -> None:
    alice.network.exchange.open(bob.peer, K, decider=True)
    await until(lambda: alice.driver.opened and bob.driver.opened)
    alice.network.exchange.stream(bob.peer, K, Held(ALICES), 0)
    await asyncio.sleep(0.2)
    bob.network.exchange.expect(alice.peer, K, SIZE, digest_of(ALICES))
    await until(lambda: bob.driver.tensors == [(alice.peer, K, ALICES)])


@pytest.mark.parametrize(
    ("announced_bytes", "announced_digest", "offset", "reason"),
    [
        (SIZE - 1, digest_of(ALICES), 0, "more than the announced"),
        (SIZE + 1, digest_of(ALICES), 0, "ended after"),
        (SIZE, digest_of(ALICES), 5, "at offset"),
    ],
)
async def test_tensor_unlike_its_announcement_is_damaged(
    alice: Node, bob: Node, announced_bytes: int, announced_digest: bytes, offset: int, reason: str
) -> None:
    alice.network.exchange.open(bob.peer, K, decider=True)
    await until(lambda: alice.driver.opened and bob.driver.opened)
    bob.network.exchange.expect(alice.peer, K, announced_bytes, announced_digest)
    alice.network.exchange.stream(bob.peer, K, Held(ALICES), offset)
    await until(lambda: bob.driver.damaged)
    peer, outer_step, words = bob.driver.damaged[0]
    assert (peer, outer_step, reason in words) == (alice.peer, K, True)
    assert bob.gate.strikes[0][0] == alice.peer
    assert bob.driver.tensors == []


async def test_silent_partner_is_cut_and_the_link_reopened(
    alice: Node, bob: Node, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "STALL_S", 0.3)
    open_both(alice, bob)
    await until(lambda: live(alice, bob) and live(bob, alice))
    opened = len(bob.driver.opened)
    bob.network.exchange.expect(alice.peer, K, SIZE, digest_of(ALICES))  # never sent
    await until(lambda: len(bob.driver.opened) > opened)


async def test_messages_overtake_a_tensor(alice: Node, bob: Node) -> None:
    size = 64 * limits.MIB
    tensor = bytes(size)
    alice.network.exchange.open(bob.peer, K, decider=True)
    await until(lambda: alice.driver.opened and bob.driver.opened)
    bob.network.exchange.expect(alice.peer, K, size, digest_of(tensor))
    alice.network.exchange.stream(bob.peer, K, Held(tensor), 0)
    await until(lambda: bob.moved("exchange", "received") > 0)
    alice.network.exchange.send(bob.peer, Have(K))
    await until(lambda: bob.driver.messages)
    assert bob.moved("exchange", "received") < size


async def test_message_of_another_step_ends_the_stream_with_a_strike(alice: Node, bob: Node) -> None:
    alice.network.exchange.open(bob.peer, K, decider=True)
    await until(lambda: alice.driver.opened)
    alice.network.exchange._links[bob.peer, K].send(Have(K + 1))
    await until(lambda: bob.gate.strikes)
    assert "outer step" in bob.gate.strikes[0][1]


async def test_stranger_cannot_hold_more_links_than_allowed(alice: Node, bob: Node) -> None:
    for outer_step in range(2 * limits.LINKS_PER_PEER_MAX):
        alice.network.exchange.open(bob.peer, outer_step, decider=True)
    await until(lambda: len(bob.driver.opened) >= limits.LINKS_PER_PEER_MAX)
    assert bob.network.exchange.link_count <= limits.LINKS_PER_PEER_MAX


async def test_refused_partner_gets_no_link(alice: Node, bob: Node, quick: None) -> None:
    bob.gate.refused[alice.peer] = "outranked"
    alice.network.exchange.open(bob.peer, K, decider=True)
    await until(lambda: bob.gate.seen)
    await asyncio.sleep(0.2)
    assert bob.network.exchange.link_count == 0
    assert alice.driver.opened == []


async def test_partner_of_another_run_gets_no_link(peers: Swarm, bob: Node, quick: None) -> None:
    from loopback_swarm import CAROL

    carol = await peers.add(CAROL, run="another")
    carol.network.exchange.open(bob.peer, K, decider=True)
    await until(lambda: bob.gate.seen)
    await asyncio.sleep(0.2)
    assert bob.network.exchange.link_count == 0
    assert carol.driver.opened == []
