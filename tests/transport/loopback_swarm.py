"""A few networks in one process over LoopbackStreams, with handlers that write down what they were told."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loopback_streams import LoopbackStreams, Wires

from noloco_node.core.types import ExchangeMessage, MicroBatchId, Offer, OfferAnswer, PeerId, Seat
from noloco_node.ports import HopAnswer, HopHeader, MicroBatch, PeerStreams, StateFile, StateParts, TensorBlob
from noloco_node.transport.identity import RunIdentity
from noloco_node.transport.network import GrpcNetwork, Handlers

ALICE = PeerId("12D3KooWAaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa")
BOB = PeerId("12D3KooWBbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb")
CAROL = PeerId("12D3KooWCcccccccccccccccccccccccccccccccccccccccccccc")
RUN = "run-of-the-tests"


@dataclass(frozen=True)
class Held:
    """TensorSource of bytes that are all there. What lies beyond `known` bytes waits for `go_on`."""

    data: bytes
    known: int | None = None
    go_on: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def size_bytes(self) -> int:
        return len(self.data)

    async def read(self, start: int, stop: int) -> memoryview:
        if self.known is not None:
            if start >= self.known:
                await self.go_on.wait()
            else:
                stop = min(stop, self.known)
        return memoryview(self.data)[start:stop]


@dataclass
class Gate:
    """Gatekeeper that serves all but `refused` and writes the rest down."""

    record: bytes = b"own-record"
    refused: dict[PeerId, str] = field(default_factory=dict)
    seen: list[tuple[PeerId, bytes, bool]] = field(default_factory=list)
    learnt: list[tuple[PeerId, bytes]] = field(default_factory=list)
    strikes: list[tuple[PeerId, str]] = field(default_factory=list)
    seats: dict[PeerId, Seat] = field(default_factory=dict)  # leased

    def own_record(self) -> bytes:
        return self.record

    def admit(self, peer: PeerId, record: bytes, *, needs_lease: bool) -> str:
        self.seen.append((peer, record, needs_lease))
        return self.refused.get(peer, "")

    def learn(self, peer: PeerId, record: bytes) -> None:
        self.learnt.append((peer, record))

    def strike(self, peer: PeerId, reason: str) -> None:
        self.strikes.append((peer, reason))

    def leased_seat(self, peer: PeerId) -> Seat | None:
        return self.seats.get(peer)


@dataclass
class Driver:
    """All three handlers. `reply` decides on hops; None in it means BUSY."""

    reply: Callable[[MicroBatch], asyncio.Future[HopAnswer] | None] | None = None
    hops: list[tuple[PeerId, MicroBatch, bytes]] = field(default_factory=list)
    headers: list[HopHeader] = field(default_factory=list)
    on_announced: Callable[[HopHeader], str] = lambda header: ""
    on_admits: Callable[[HopHeader], bool] = lambda header: True
    busy_said: int = 0  # before the tensors were sent
    offers: list[tuple[PeerId, Offer]] = field(default_factory=list)
    opened: list[tuple[PeerId, int, int, bytes]] = field(default_factory=list)
    messages: list[tuple[PeerId, ExchangeMessage]] = field(default_factory=list)
    tensors: list[tuple[PeerId, int, bytes]] = field(default_factory=list)
    heads: list[tuple[PeerId, int, bytes]] = field(default_factory=list)
    damaged: list[tuple[PeerId, int, str]] = field(default_factory=list)
    file: tuple[Path, int] | None = None
    stage: int = 0  # of it
    excerpt: tuple[bytes, tuple[tuple[int, int], ...]] = (b"", ())  # head and spans, when parts of it are asked for
    asked: list[tuple[int | None, StateParts]] = field(default_factory=list)
    promises: dict[Seat, int] = field(default_factory=dict)
    on_message: Callable[[PeerId, ExchangeMessage], None] = lambda peer, message: None
    on_opened: Callable[[PeerId, int, int, bytes], None] = lambda *opened: None

    def announced(self, caller: PeerId, header: HopHeader) -> str:
        self.headers.append(header)
        return self.on_announced(header)

    def admits(self, header: HopHeader) -> bool:
        return self.on_admits(header)

    def turned_away(self) -> None:
        self.busy_said += 1

    def receive(self, caller: PeerId, batch: MicroBatch, digest: bytes) -> asyncio.Future[HopAnswer] | None:
        self.hops.append((caller, batch, digest))
        return self.reply(batch) if self.reply else done(echo(batch))

    def offered(self, peer: PeerId, offer: Offer) -> OfferAnswer:
        self.offers.append((peer, offer))
        return OfferAnswer.LATER

    def exchange_opened(self, peer: PeerId, outer_step: int, held_bytes: int, held_id: bytes) -> None:
        self.opened.append((peer, outer_step, held_bytes, held_id))
        self.on_opened(peer, outer_step, held_bytes, held_id)

    def exchange_message(self, peer: PeerId, message: ExchangeMessage) -> None:
        self.messages.append((peer, message))
        self.on_message(peer, message)

    def tensor_head(self, peer: PeerId, outer_step: int, tensor_id: bytes, head: memoryview) -> None:
        self.heads.append((peer, outer_step, bytes(head)))

    def tensor_received(self, peer: PeerId, outer_step: int, tensor: memoryview) -> None:
        self.tensors.append((peer, outer_step, bytes(tensor)))

    def tensor_damaged(self, peer: PeerId, outer_step: int, reason: str) -> None:
        self.damaged.append((peer, outer_step, reason))

    def status(self) -> dict[str, Any]:
        return {"phase": "training", "hops": len(self.hops)}

    def state_file(self, stage: int | None = None, parts: StateParts = StateParts.WHOLE) -> StateFile | None:
        self.asked.append((stage, parts))
        if self.file is None:
            return None
        head, spans = (b"", ()) if parts is StateParts.WHOLE else self.excerpt
        return StateFile(*self.file, head, spans, stage=self.stage)

    def promised(self, seat: Seat) -> int:
        return self.promises.get(seat, 0)


def done(answer: HopAnswer) -> asyncio.Future[HopAnswer]:
    future: asyncio.Future[HopAnswer] = asyncio.get_running_loop().create_future()
    future.set_result(answer)
    return future


def echo(batch: MicroBatch) -> HopAnswer:
    """A "gradient" that is the activation itself."""
    return HopAnswer(TensorBlob(batch.inputs.dtype, batch.inputs.shape, bytes(batch.inputs.data)), 2.5, 5)


def micro_batch(rows: int = 2, length: int = 3, width: int = 4, n: int = 11) -> MicroBatch:
    ids = struct.pack(f"<{rows * length}i", *range(rows * length))
    activation = bytes(index % 251 for index in range(rows * length * width * 4))
    return MicroBatch(
        id=MicroBatchId(1, n),
        position=42,
        inputs=TensorBlob("float32", (rows, length, width), activation),
        position_ids=TensorBlob("int32", (rows, length), ids),
        labels=TensorBlob("int32", (rows, length), ids[::-1]),
    )


@dataclass
class Node:
    peer: PeerId
    network: GrpcNetwork
    gate: Gate
    driver: Driver
    streams: PeerStreams
    traffic: list[tuple[str, str, int]]

    def moved(self, service: str, direction: str) -> int:
        return sum(size for name, way, size in self.traffic if (name, way) == (service, direction))

    def forget(self) -> None:
        """As new, for the next test on the same network."""
        self.gate.__init__(self.gate.record)  # type: ignore[misc]
        self.driver.__init__()  # type: ignore[misc]
        self.traffic.clear()


async def started(streams: PeerStreams, peer: PeerId, directory: Path, run: str = RUN, **options: Any) -> Node:
    gate, driver, traffic = Gate(record=f"record of {peer}".encode()), Driver(), []
    protocol = options.pop("protocol", 1)
    network = GrpcNetwork(
        streams,
        gate,
        RunIdentity(run, protocol, "0.1.0"),
        directory,
        traffic=lambda *seen: traffic.append(seen),
        **options,
    )
    await network.start(Handlers(driver, driver, driver))
    return Node(peer, network, gate, driver, streams, traffic)


@dataclass
class Swarm:
    """Nodes by peer id on common wires."""

    directory: Path
    wires: Wires = field(default_factory=Wires)
    nodes: list[Node] = field(default_factory=list)

    async def add(self, peer: PeerId, **options: Any) -> Node:
        node = await started(LoopbackStreams(peer, self.wires), peer, self.directory / peer[-4:], **options)
        self.nodes.append(node)
        return node

    async def close(self) -> None:
        for node in self.nodes:
            await node.network.close()
            await node.streams.close()  # type: ignore[attr-defined]


@asynccontextmanager
async def swarm(directory: Path) -> AsyncIterator[Swarm]:
    made = Swarm(directory)
    try:
        yield made
    finally:
        await made.close()


async def until(condition: Callable[[], object], limit_s: float = 10.0) -> None:
    """Wait until `condition()` holds."""
    async with asyncio.timeout(limit_s):
        while not condition():  # noqa: ASYNC110 - the condition is whatever a test looks at
            await asyncio.sleep(0.01)
