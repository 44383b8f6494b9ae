"""Hello, Offer, Status, health and reflection."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from loopback_streams import LoopbackStreams, Wires
from loopback_swarm import ALICE, CAROL, Gate, Node, Swarm

from noloco_node.core.types import Offer, OfferAnswer, Seat
from noloco_node.errors import LocalProtocolError, PeerLost, VersionMismatch, WrongRun
from noloco_node.transport.channels import Lane
from noloco_node.transport.identity import RunIdentity
from noloco_node.transport.network import GrpcNetwork

OFFER = Offer(3, Seat(1, 0), Seat(1, 2))


async def test_hello_tells_run_and_versions(alice: Node, bob: Node) -> None:
    told = await alice.network.hello(bob.peer)
    assert told == {"peer": bob.peer, "run": "run-of-the-tests", "protocol": 1, "version": "0.1.0"}
    assert alice.gate.learnt == [(bob.peer, bob.gate.record)]
    assert bob.gate.seen == [(alice.peer, alice.gate.record, False)]


async def test_other_protocol_version_is_named_both_ways(alice: Node, peers: Swarm) -> None:
    newer = await peers.add(CAROL, protocol=2)
    with pytest.raises(VersionMismatch) as mine:
        await alice.network.hello(newer.peer)
    assert mine.value.advice == "upgrade this node"
    with pytest.raises(VersionMismatch) as theirs:
        await newer.network.hello(alice.peer)
    assert "protocol 1" in theirs.value.cause
    assert theirs.value.advice == "upgrade that node"


async def test_other_run_is_named_both_ways(alice: Node, peers: Swarm) -> None:
    other = await peers.add(CAROL, run="another-run")
    for caller, callee in ((alice, other), (other, alice)):
        with pytest.raises(WrongRun, match="run-of-the-tests"):
            await caller.network.hello(callee.peer)
    assert alice.gate.seen == []  # the gate's own answer would hide the reason


async def test_offer_is_answered(alice: Node, bob: Node) -> None:
    assert await alice.network.offer(bob.peer, OFFER) is OfferAnswer.LATER
    assert bob.driver.offers == [(alice.peer, OFFER)]
    assert bob.gate.seen[-1][2] is True


async def test_status_is_the_peers_own(alice: Node, bob: Node) -> None:
    assert await alice.network.status(bob.peer) == {"phase": "training", "hops": 0}


async def test_banned_caller_is_refused_everywhere(alice: Node, bob: Node, tmp_path: Path) -> None:
    bob.gate.refused[alice.peer] = "banned"
    for call in (
        alice.network.hello(bob.peer),
        alice.network.offer(bob.peer, OFFER),
        alice.network.status(bob.peer),
        alice.network.fetch_state(bob.peer, tmp_path / "state"),
    ):
        with pytest.raises(PeerLost, match="banned"):
            await call
    assert bob.driver.offers == []


async def test_network_without_handlers_only_calls(bob: Node, peers: Swarm, tmp_path: Path) -> None:
    asker = GrpcNetwork(LoopbackStreams(CAROL, peers.wires), Gate(b""), RunIdentity("run-of-the-tests"), tmp_path)
    await asker.start()
    try:
        assert (await asker.status(bob.peer))["phase"] == "training"
        assert bob.gate.seen == [(CAROL, b"", False)]
    finally:
        await asker.close()


async def test_health_and_reflection_answer(alice: Node, bob: Node) -> None:
    async with alice.network.channels.use(bob.peer, Lane.CONTROL) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for name in ("", "noloco.v1.PipelineService", "noloco.v1.ExchangeService"):
            answer = await health.Check(health_pb2.HealthCheckRequest(service=name))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo()
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        listed = {service.name for service in (await call.read()).list_services_response.service}
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
    services = {"NodeService", "PipelineService", "ExchangeService", "StateService"}
    assert {f"noloco.v1.{name}" for name in services} | {"grpc.health.v1.Health"} <= listed


async def test_second_event_loop_is_refused(alice: Node, tmp_path: Path) -> None:
    caught: list[BaseException] = []

    def elsewhere() -> None:
        async def start() -> None:
            await GrpcNetwork(LoopbackStreams(ALICE, Wires()), Gate(), RunIdentity("x"), tmp_path).start()

        try:
            asyncio.run(start())
        except LocalProtocolError as refused:
            caught.append(refused)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    await asyncio.to_thread(thread.join)
    assert len(caught) == 1
