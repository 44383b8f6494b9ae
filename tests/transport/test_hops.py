"""One call per hop (DESIGN 5), over real gRPC."""

from __future__ import annotations

import asyncio

import pytest
from loopback_swarm import Node, Swarm, echo, micro_batch, until

from noloco_node.core import limits
from noloco_node.errors import HopBusy, HopDropped, PeerLost, RemoteProtocolError
from noloco_node.ports import HopAnswer, HopHeader


async def test_hop_brings_the_micro_batch_there_and_the_gradient_back(alice: Node, bob: Node) -> None:
    batch, admitted = micro_batch(), []
    answer = await alice.network.run_hop(bob.peer, batch, lambda: admitted.append(True))
    caller, arrived, digest = bob.driver.hops[0]
    assert (caller, arrived.id, arrived.position) == (alice.peer, batch.id, 42)
    for sent, got in ((batch.inputs, arrived.inputs), (batch.labels, arrived.labels)):
        assert (got.dtype, got.shape, bytes(got.data)) == (sent.dtype, sent.shape, bytes(sent.data))
    assert bytes(arrived.position_ids.data) == bytes(batch.position_ids.data)
    assert len(digest) == limits.DIGEST_BYTES
    assert bytes(answer.gradient.data) == bytes(batch.inputs.data)
    assert (answer.loss_sum, answer.tokens, answer.replayed, admitted) == (2.5, 5, False, [True])


async def test_big_activation_travels_in_pieces_and_is_counted(alice: Node, bob: Node) -> None:
    batch = micro_batch(rows=4, length=256, width=700)
    answer = await alice.network.run_hop(bob.peer, batch, lambda: None)
    assert bytes(answer.gradient.data) == bytes(batch.inputs.data)
    size = len(batch.inputs.data) + 2 * len(batch.labels.data)
    assert alice.moved("pipeline", "sent") == bob.moved("pipeline", "received") == size
    assert alice.moved("pipeline", "received") == len(batch.inputs.data)


async def test_many_hops_at_once_keep_their_answers_apart(alice: Node, bob: Node) -> None:
    batches = [micro_batch(width=4 + n, n=n) for n in range(30)]
    answers = await asyncio.gather(*(alice.network.run_hop(bob.peer, batch, lambda: None) for batch in batches))
    for batch, answer in zip(batches, answers, strict=True):
        assert bytes(answer.gradient.data) == bytes(batch.inputs.data)


async def test_no_place_is_said_at_once(alice: Node, bob: Node) -> None:
    bob.driver.reply = lambda batch: None
    with pytest.raises(HopBusy):
        await alice.network.run_hop(bob.peer, micro_batch(), lambda: pytest.fail("was not admitted"))


async def test_no_place_is_said_before_the_activation_is_sent(alice: Node, bob: Node) -> None:
    bob.driver.on_admits = lambda header: False
    batch = micro_batch(rows=8, length=1024, width=1024)
    with pytest.raises(HopBusy):
        await alice.network.run_hop(bob.peer, batch, lambda: pytest.fail("was not admitted"))
    assert (bob.driver.hops, bob.driver.busy_said) == ([], 1)
    assert alice.moved("pipeline", "sent") < len(batch.inputs.data) / 2
    bob.driver.on_admits = lambda header: True
    answer = await alice.network.run_hop(bob.peer, micro_batch(), lambda: None)
    assert answer.tokens == 5


async def test_one_peer_cannot_take_every_place_for_hops_on_their_way_in(
    alice: Node, bob: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HOPS_RECEIVING_PER_PEER_MAX", 0)
    with pytest.raises(HopBusy):
        await alice.network.run_hop(bob.peer, micro_batch(), lambda: None)
    assert (bob.driver.hops, bob.driver.busy_said) == ([], 1)


async def test_more_activations_under_way_than_allowed_are_busy(
    alice: Node, bob: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HOPS_RECEIVING_MAX", 0)
    with pytest.raises(HopBusy):
        await alice.network.run_hop(bob.peer, micro_batch(), lambda: None)
    assert bob.driver.hops == []


@pytest.mark.parametrize("how", ["raised", "cancelled"])
async def test_dropped_micro_batch_is_told(alice: Node, bob: Node, how: str) -> None:
    future: asyncio.Future[HopAnswer] = asyncio.get_running_loop().create_future()
    bob.driver.reply = lambda batch: future
    hop = asyncio.create_task(alice.network.run_hop(bob.peer, micro_batch(), lambda: None))
    await until(lambda: bob.driver.hops)
    if how == "raised":
        future.set_exception(HopDropped("stopping"))
    else:
        future.cancel()
    with pytest.raises(HopDropped):
        await hop


async def test_cancelled_hop_cancels_the_receivers_future(alice: Node, bob: Node) -> None:
    future: asyncio.Future[HopAnswer] = asyncio.get_running_loop().create_future()
    bob.driver.reply = lambda batch: future
    hop = asyncio.create_task(alice.network.run_hop(bob.peer, micro_batch(), lambda: None))
    await until(lambda: bob.driver.hops)
    hop.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hop
    await until(future.cancelled)


async def test_lost_caller_cancels_the_receivers_future(alice: Node, bob: Node, peers: Swarm) -> None:
    future: asyncio.Future[HopAnswer] = asyncio.get_running_loop().create_future()
    bob.driver.reply = lambda batch: future
    hop = asyncio.create_task(alice.network.run_hop(bob.peer, micro_batch(), lambda: None))
    await until(lambda: bob.driver.hops)
    peers.wires.cut()
    with pytest.raises(PeerLost):
        await hop
    await until(future.cancelled)


async def test_next_hop_after_a_cut_goes_through(alice: Node, bob: Node, peers: Swarm) -> None:
    await alice.network.run_hop(bob.peer, micro_batch(), lambda: None)
    peers.wires.cut()
    async with asyncio.timeout(10):
        while True:
            try:
                answer = await alice.network.run_hop(bob.peer, micro_batch(), lambda: None)
                break
            except PeerLost:
                await asyncio.sleep(0.1)
    assert answer.tokens == 5


async def test_keeps_hold_a_slow_hop_up(alice: Node, bob: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "KEEP_INTERVAL_S", 0.1)
    future: asyncio.Future[HopAnswer] = asyncio.get_running_loop().create_future()
    bob.driver.reply = lambda batch: future
    batch = micro_batch()
    hop = asyncio.create_task(alice.network.run_hop(bob.peer, batch, lambda: None))
    await asyncio.sleep(1.0)
    future.set_result(echo(batch))
    assert (await hop).tokens == 5


async def test_unreachable_peer_is_lost(alice: Node, bob: Node, peers: Swarm) -> None:
    peers.wires.unreachable.add(bob.peer)
    with pytest.raises(PeerLost):
        await alice.network.run_hop(bob.peer, micro_batch(), lambda: None)


async def test_refused_caller_is_told_why(alice: Node, bob: Node) -> None:
    bob.gate.refused[alice.peer] = "no lease"
    with pytest.raises(PeerLost, match="permission_denied: no lease"):
        await alice.network.run_hop(bob.peer, micro_batch(), lambda: None)
    assert bob.driver.hops == []


async def test_hop_that_does_not_fit_is_refused_at_its_header(alice: Node, bob: Node) -> None:
    bob.driver.on_announced = lambda header: "seat 1.0 is not of the stage before 1.1"
    with pytest.raises(PeerLost, match=r"permission_denied: seat 1\.0"):
        await alice.network.run_hop(bob.peer, micro_batch(), lambda: None)
    batch = micro_batch()
    (header,) = bob.driver.headers
    assert (header.id, header.position, header.dtype, header.shape) == (batch.id, 42, "float32", (2, 3, 4))
    assert (bob.driver.hops, bob.gate.strikes) == ([], [])


async def test_header_that_breaks_a_rule_of_the_run_is_a_strike(alice: Node, bob: Node) -> None:
    def broken(header: HopHeader) -> str:
        raise RemoteProtocolError("shape of another run")

    bob.driver.on_announced = broken
    with pytest.raises(PeerLost, match="shape of another run"):
        await alice.network.run_hop(bob.peer, micro_batch(), lambda: None)
    assert bob.gate.strikes == [(alice.peer, "shape of another run")]
    assert bob.driver.hops == []


async def test_records_travel_both_ways_on_a_hop(alice: Node, bob: Node) -> None:
    await alice.network.run_hop(bob.peer, micro_batch(), lambda: None)
    assert bob.gate.seen == [(alice.peer, alice.gate.record, True)]
    assert alice.gate.learnt == [(bob.peer, bob.gate.record)]
