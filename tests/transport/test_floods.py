"""A stranger that floods the tunnel and the gRPC server: what it costs is bounded, and an honest peer is answered
meanwhile."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import grpc
import grpc.aio
import pytest
from loopback_streams import LoopbackStreams
from loopback_swarm import CAROL, Node, Swarm, micro_batch, until

from noloco_node.core import limits
from noloco_node.errors import PeerLost
from noloco_node.telemetry.instruments import resident_bytes
from noloco_node.transport.exchange_hub import METHOD as EXCHANGE
from noloco_node.transport.hop_client import METHOD as RUN_HOP
from noloco_node.transport.tunnel import PROTOCOL

HELLO = "/noloco.v1.NodeService/Hello"
WATCH = "/grpc.health.v1.Health/Watch"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9)
HONEST_CALLS = 5
GROWTH_BYTES_MAX = 96 << 20
CALLS = 400

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Mallory:
    """A peer without a record. Its clients have no limits of their own."""

    def __init__(self, node: Node, wires_of: LoopbackStreams, victim: Node) -> None:
        self.node = node
        self.streams = wires_of
        self.victim = victim
        self.opened: list[Streams] = []

    async def open(self) -> Streams:
        stream = await self.streams.open(self.victim.peer, PROTOCOL)
        self.opened.append(stream)
        return stream

    async def junk(self) -> None:
        """Random bytes, on stream after stream."""
        for _ in range(60):
            _, writer = await self.open()
            with suppress(OSError, RuntimeError):
                writer.write(os.urandom(200_000))
                await writer.drain()
            writer.close()

    async def storm(self) -> None:
        """As many connections as it can get, all at once, all left alone."""
        await asyncio.gather(*(self.open() for _ in range(200)))

    async def slow(self) -> None:
        """One byte now and then on every connection it can get."""
        writers = [(await self.open())[1] for _ in range(30)]
        for byte in PREFACE:
            for writer in writers:
                with suppress(OSError, RuntimeError):
                    writer.write(bytes([byte]))
            await asyncio.sleep(0.02)

    async def huge(self) -> None:
        """Messages far above the limit."""
        async with self.channel() as channel:
            for method in (RUN_HOP, EXCHANGE, HELLO) * 3:
                call = channel.stream_stream(method)()
                with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                    await call.write(bytes(16 << 20))
                    await call.read()

    async def open_calls(self, method: str) -> None:
        """More calls than the server takes at once, none of them ever finished."""
        listener = await self.node.network.tunnel.listen(self.victim.peer)
        channels = [
            grpc.aio.insecure_channel(
                f"unix:{listener.path}",
                options=[("grpc.default_authority", "localhost"), ("grpc.use_local_subchannel_pool", 1)],
            )
            for _ in range(12)
        ]
        calls = [channels[number % 12].stream_stream(method)() for number in range(CALLS)]
        reads = [asyncio.ensure_future(call.read()) for call in calls]
        await asyncio.sleep(1.0)
        self.held = (listener, channels, calls, reads)

    def channel(self) -> grpc.aio.Channel:
        return Unlimited(self)  # type: ignore[return-value]

    async def close(self) -> None:
        for _, writer in self.opened:
            writer.close()
        if hasattr(self, "held"):
            listener, channels, calls, reads = self.held
            for call in calls:
                call.cancel()
            await asyncio.gather(*reads, return_exceptions=True)
            for channel in channels:
                await channel.close()
            await listener.close()
        await self.node.network.tunnel.close()  # gRPC keeps a closed channel's connection while its calls are known


class Unlimited:
    """A channel that sends what it is given."""

    def __init__(self, mallory: Mallory) -> None:
        self._mallory = mallory

    async def __aenter__(self) -> grpc.aio.Channel:
        self._listener = await self._mallory.node.network.tunnel.listen(self._mallory.victim.peer)
        options = [("grpc.max_send_message_length", -1), ("grpc.default_authority", "localhost")]
        self._channel = grpc.aio.insecure_channel(f"unix:{self._listener.path}", options=options)
        return self._channel

    async def __aexit__(self, *error: object) -> None:
        await self._channel.close()
        await self._listener.close()


@pytest.fixture
async def mallory(peers: Swarm, bob: Node) -> AsyncIterator[Mallory]:
    node = await peers.add(CAROL)
    made = Mallory(node, LoopbackStreams(CAROL, peers.wires), bob)
    bob.gate.refused[CAROL] = "no lease"
    yield made
    await made.close()


ATTACKS: list[tuple[str, Callable[[Mallory], Awaitable[None]]]] = [
    ("junk", Mallory.junk),
    ("storm", Mallory.storm),
    ("slow", Mallory.slow),
    ("huge", Mallory.huge),
    ("unread hellos", lambda mallory: mallory.open_calls(HELLO)),
    ("health watches", lambda mallory: mallory.open_calls(WATCH)),
    ("hops", lambda mallory: mallory.open_calls(RUN_HOP)),
]


@pytest.mark.parametrize(("name", "attack"), ATTACKS, ids=[name for name, _ in ATTACKS])
async def test_honest_peer_is_answered_during_the_flood_and_memory_is_bounded(
    name: str, attack: Callable[[Mallory], Awaitable[None]], alice: Node, bob: Node, mallory: Mallory
) -> None:
    await alice.network.hello(bob.peer)
    before = resident_bytes()
    flood = asyncio.ensure_future(attack(mallory))
    for number in range(HONEST_CALLS):
        await asyncio.sleep(0.1)
        await alice.network.hello(bob.peer)
        assert (await alice.network.run_hop(bob.peer, micro_batch(n=number), lambda: None)).tokens == 5
    await asyncio.wait_for(flood, 30)
    assert bob.network.tunnel._inbound[CAROL] <= limits.STREAMS_PER_PEER_MAX
    await alice.network.hello(bob.peer)
    assert (await alice.network.run_hop(bob.peer, micro_batch(), lambda: None)).tokens == 5
    assert resident_bytes() - before < GROWTH_BYTES_MAX
    await mallory.close()
    await until(lambda: bob.network.tunnel._inbound[CAROL] == 0, 20)


async def test_flood_by_many_names_leaves_those_connected_served(
    alice: Node, bob: Node, peers: Swarm, tmp_path: Path
) -> None:
    """New names are free. When all places are taken, whoever has a connection keeps it; nobody new gets in."""
    await alice.network.hello(bob.peer)
    await alice.network.run_hop(bob.peer, micro_batch(), lambda: None)
    opened = []
    for number in range(limits.TUNNEL_STREAMS_MAX + 50):
        name = type(CAROL)(CAROL[:-3] + "".join("123456789"[(number // 9**digit) % 9] for digit in range(3)))
        opened.append(await LoopbackStreams(name, peers.wires).open(bob.peer, PROTOCOL))
    assert bob.network.tunnel.stream_count <= limits.TUNNEL_STREAMS_MAX
    await alice.network.hello(bob.peer)
    assert (await alice.network.run_hop(bob.peer, micro_batch(), lambda: None)).tokens == 5
    for _, writer in opened:
        writer.close()
    with suppress(PeerLost):
        await alice.network.hello(bob.peer)
