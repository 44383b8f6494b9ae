"""The PeerNetwork port over every kind of PeerStreams: one call of each service."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from loopback_swarm import Held, Node, micro_batch, until

from noloco_node.core import limits
from noloco_node.core.types import Have, Offer, OfferAnswer, Seat
from noloco_node.errors import HopBusy
from noloco_node.ports import ExchangeHub, PeerNetwork
from noloco_node.transport.framing import digest_of

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_network_is_the_port(nodes: tuple[Node, Node]) -> None:
    network: PeerNetwork = nodes[0].network
    hub: ExchangeHub = network.exchange
    for method in ("open", "send", "expect", "stream", "release"):
        assert callable(getattr(hub, method))


async def test_short_calls_are_answered(nodes: tuple[Node, Node]) -> None:
    one, other = nodes
    assert (await one.network.hello(other.peer))["peer"] == other.peer
    assert await other.network.offer(one.peer, Offer(1, Seat(0, 1), Seat(0, 0))) is OfferAnswer.LATER
    assert other.gate.seen[0][:2] == (one.peer, one.gate.record)


async def test_hop_goes_there_and_back(nodes: tuple[Node, Node]) -> None:
    one, other = nodes
    batch = micro_batch(rows=4, length=128, width=600)
    answer = await one.network.run_hop(other.peer, batch, lambda: None)
    assert bytes(answer.gradient.data) == bytes(batch.inputs.data)
    assert other.driver.hops[0][0] == one.peer
    other.driver.reply = lambda batch: None
    with pytest.raises(HopBusy):
        await one.network.run_hop(other.peer, batch, lambda: None)


async def test_tensors_are_exchanged_both_ways(nodes: tuple[Node, Node]) -> None:
    tensors = [bytes([fill]) * (5 * limits.MIB) for fill in (1, 2)]
    for node, partner in (nodes, nodes[::-1]):
        node.network.exchange.open(partner.peer, 4, decider=node is nodes[0])
    await until(lambda: all(live(node) for node in nodes), 20)
    await asyncio.sleep(0.2)
    for node, partner, theirs in ((nodes[0], nodes[1], tensors[1]), (nodes[1], nodes[0], tensors[0])):
        node.network.exchange.expect(partner.peer, 4, len(theirs), digest_of(theirs))
    for node, partner, own in ((nodes[0], nodes[1], tensors[0]), (nodes[1], nodes[0], tensors[1])):
        node.network.exchange.stream(partner.peer, 4, Held(own), 0)
        node.network.exchange.send(partner.peer, Have(4))
    await until(lambda: all(node.driver.tensors for node in nodes), 20)
    assert [node.driver.tensors[0][2] for node in nodes] == tensors[::-1]
    assert all(node.driver.messages[0][1] == Have(4) for node in nodes)


def live(node: Node) -> bool:
    return any(link.stream for link in node.network.exchange._links.values())


async def test_state_is_fetched(nodes: tuple[Node, Node], tmp_path: Path) -> None:
    one, other = nodes
    path = tmp_path / "saved"
    path.write_bytes(bytes(range(256)) * 10_000)
    other.driver.file = (path, 9)
    assert (await one.network.fetch_state(other.peer, tmp_path / "fetched")).outer_step == 9
    assert (tmp_path / "fetched").read_bytes() == path.read_bytes()
