"""A driver on the bench: a machine that answers events as told, and small stand-ins for the ports that keep notes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from noloco_node.core import effects as do
from noloco_node.core import events as ev
from noloco_node.core.flow import MicroBatchFlow
from noloco_node.core.seats import Roster
from noloco_node.core.types import MicroBatchId, OfferAnswer, PeerId, Seat, SeatRecord, SeatState, Settings
from noloco_node.driver.driver import Driver, Surroundings
from noloco_node.errors import PeerLost, RemoteProtocolError
from noloco_node.ports import (
    Boundary,
    FetchedState,
    ForwardResult,
    HopAnswer,
    LoadedState,
    MicroBatch,
    StateParts,
    StepResult,
    TensorBlob,
)
from noloco_node.ports import Verdict as TensorVerdict

ME, PEER, THIRD = PeerId("me"), PeerId("peer"), PeerId("third")
SEAT, THERE = Seat(1, 0), Seat(1, 1)
WALL_MS = 1_000_000
SETTINGS = Settings(
    run="run", seed=1, num_stages=2, num_replicas=2, micro_batches=2, inner_steps=2, total_outer_steps=8
)
Rule = Callable[[Any], list[do.Effect]]


def ints(*values: int) -> TensorBlob:
    data = b"".join(value.to_bytes(4, "little", signed=True) for value in values)
    return TensorBlob("int32", (1, len(values)), data)


def floats(fill: bytes = b"\0") -> TensorBlob:
    return TensorBlob("float32", (1, 2, 2), fill * 16)


def micro_batch(n: int = 0, labels: TensorBlob | None = None) -> MicroBatch:
    return MicroBatch(MicroBatchId(0, n), 0, floats(), ints(0, 1), labels or ints(5, 6))


def record_of(peer: PeerId, *, lives_s: float = 60.0, **changes: Any) -> SeatRecord:
    plain: dict[str, Any] = {"incarnation": 1, "seq": 1, "claim": 1, "state": SeatState.ACTIVE, "seat": THERE}
    return SeatRecord(run="run", peer=peer, expires=WALL_MS + int(lives_s * 1000), **(plain | changes))


class ScriptedMachine:
    """Answers each kind of event by its rule; notes all of them."""

    def __init__(self) -> None:
        self.settings, self.peer, self.incarnation = SETTINGS, ME, 7
        self.membership = SimpleNamespace(roster=Roster(SETTINGS), seat=SEAT, leave=lambda now: [])
        self.rules: dict[type, Rule] = {ev.StopRequested: lambda event: [do.Leave(event.reason)]}
        self.heard: list[ev.Event] = []
        self.flow: MicroBatchFlow | None = None
        self.deadline_s: float | None = None

    def handle(self, event: ev.Event, now: float) -> list[do.Effect]:
        self.heard.append(event)
        if isinstance(event, ev.TimePassed):
            self.deadline_s = None
        rule = self.rules.get(type(event))
        return [] if rule is None else rule(event)

    def next_deadline(self) -> float | None:
        return self.deadline_s

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.heard if isinstance(event, kind)]


@dataclass
class BenchTrainer:
    """`Trainer` port. `answers` holds a result or an error for a method; every call is noted in `did`."""

    answers: dict[str, Any] = field(default_factory=dict)
    did: list[tuple[Any, ...]] = field(default_factory=list)
    tensor_bytes: int = 16
    head_bytes: int = 0

    def _do(self, name: str, *arguments: Any, default: Any = None) -> Any:
        self.did.append((name, *arguments))
        answer = self.answers.get(name, default)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def done(self, name: str) -> list[tuple[Any, ...]]:
        return [call for call in self.did if call[0] == name]

    async def prepare(self) -> None:
        self._do("prepare")

    async def initialise(self) -> LoadedState:
        return self._do("initialise", default=LoadedState(0, 0, 0))

    async def load_checkpoint(self) -> LoadedState:
        return self._do("load_checkpoint", default=LoadedState(3, 1, 9))

    async def load_state_file(self, path: Path) -> LoadedState:
        return self._do("load_state_file", await asyncio.to_thread(path.read_bytes), default=LoadedState(4, 0, 0))

    async def draw(self, n: int) -> MicroBatch:
        return self._do("draw", n, default=micro_batch(n))

    async def forward(self, call: int, batch: MicroBatch, *, count: bool) -> ForwardResult:
        return self._do("forward", call, batch, default=ForwardResult(True, floats(b"\1"), 2.5, floats(b"\2")))

    async def backward(self, call: int, gradient: TensorBlob, *, count: bool, recompute: bool) -> TensorBlob | None:
        return self._do("backward", call, gradient, default=floats(b"\3"))

    async def drop_graph(self, call: int) -> None:
        self._do("drop_graph", call)

    async def forget(self, call: int) -> None:
        self._do("forget", call)

    async def inner_step(self, *, tokens: int, position: int) -> StepResult:
        return self._do("inner_step", tokens, position, default=StepResult(1.0, 0.1, True))

    async def freeze_slow_weights(self, outer_step: int) -> Boundary:
        return self._do("freeze_slow_weights", outer_step, default=Boundary(16, b"id", "shape"))

    async def take_boundary(self, outer_step: int) -> Boundary:
        return self._do("take_boundary", outer_step, default=Boundary(16, b"id", "shape", self.head_bytes))

    def source(self, outer_step: int) -> Any:
        return self._do("source", outer_step, default=f"source of {outer_step}")

    def await_head(self, outer_step: int, tensor_id: bytes) -> None:
        self._do("await_head", outer_step, tensor_id)

    async def meet(self, outer_step: int, tensor_id: bytes, head: memoryview) -> None:
        self._do("meet", outer_step, tensor_id, bytes(head))

    async def verify(self, outer_step: int, tensor: memoryview) -> TensorVerdict:
        return self._do("verify", outer_step, bytes(tensor), default=TensorVerdict("", 2.0, 0.5))

    async def add_correction(self, outer_step: int) -> None:
        self._do("add_correction", outer_step)

    async def drop_correction(self, outer_step: int) -> None:
        self._do("drop_correction", outer_step)

    async def release_exchange(self, outer_step: int) -> None:
        self._do("release_exchange", outer_step)

    async def save_checkpoint(self, **notes: Any) -> Awaitable[Path]:
        return self._do("save_checkpoint", notes, default=finished(Path("checkpoint")))

    async def close(self) -> None:
        self._do("close")


def finished(value: Any) -> asyncio.Future[Any]:
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    future.set_result(value)
    return future


@dataclass
class BenchHub:
    """`ExchangeHub` port: notes what it is told."""

    did: list[tuple[Any, ...]] = field(default_factory=list)

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *arguments, **named: self.did.append((name, *arguments, *named.values()))


@dataclass
class BenchNetwork:
    """`PeerNetwork` port. `hops`, `greetings`, `files` and `offers` say what each peer answers."""

    exchange: BenchHub = field(default_factory=BenchHub)
    hops: dict[PeerId, Any] = field(default_factory=dict)
    greetings: dict[PeerId, Any] = field(default_factory=dict)
    files: dict[PeerId, bytes] = field(default_factory=dict)
    offers: dict[PeerId, OfferAnswer] = field(default_factory=dict)
    greeted: list[PeerId] = field(default_factory=list)
    asked: list[tuple[PeerId, Seat | None, StateParts]] = field(default_factory=list)  # for a state
    bytes_max: int = 0  # of a state
    promised: int = 0  # what donors know of the seat's last promise
    sent: list[MicroBatch] = field(default_factory=list)
    cancelled: list[PeerId] = field(default_factory=list)

    async def hello(self, peer: PeerId) -> dict[str, Any]:
        self.greeted.append(peer)
        return _answer(self.greetings.get(peer, {}))

    async def offer(self, peer: PeerId, offer: Any) -> OfferAnswer:
        return _answer(self.offers.get(peer, PeerLost("away")))

    async def run_hop(self, peer: PeerId, batch: MicroBatch, admitted: Callable[[], None]) -> HopAnswer:
        self.sent.append(batch)
        answer = self.hops.get(peer)
        if answer is None:  # never answers
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled.append(peer)
                raise
        if isinstance(answer, HopAnswer):
            admitted()
        return _answer(answer)

    async def fetch_state(
        self,
        peer: PeerId,
        into: Path,
        seat: Seat | None = None,
        parts: StateParts = StateParts.WHOLE,
        bytes_max: int = 0,
    ) -> FetchedState:
        self.bytes_max = bytes_max
        if peer not in self.files:
            raise PeerLost("away")
        self.asked.append((peer, seat, parts))
        await asyncio.to_thread(into.write_bytes, self.files[peer])
        return FetchedState(4, self.promised)


def _answer(answer: Any) -> Any:
    if isinstance(answer, BaseException):
        raise answer
    return answer


@dataclass
class BenchDiscovery:
    """`Discovery` port. `found` and `held` are what the DHT and this node's own part of it say of a seat."""

    found: dict[Seat, list[SeatRecord]] = field(default_factory=dict)
    held: dict[Seat, list[SeatRecord]] = field(default_factory=dict)
    encoded: dict[bytes, SeatRecord] = field(default_factory=dict)
    published: list[SeatRecord] = field(default_factory=list)
    carried: list[bool] = field(default_factory=list)
    is_up: bool = True
    addresses: tuple[str, ...] = ()

    async def read(self, seat: Seat) -> list[SeatRecord]:
        if not self.is_up:
            raise PeerLost("nobody answers")
        return self.found.get(seat, [])

    def kept(self, seat: Seat) -> list[SeatRecord]:
        return self.held.get(seat, [])

    async def publish(self, record: SeatRecord, *, carried: bool = True) -> tuple[SeatRecord, bytes, bool]:
        self.published.append(record)
        self.carried.append(carried)
        if not self.is_up:
            raise PeerLost("nobody answers")
        return record, b"signed", True

    def decode(self, encoded: bytes) -> SeatRecord:
        if encoded not in self.encoded:
            raise RemoteProtocolError("the signature is wrong")
        return self.encoded[encoded]


class Quiet:
    """`Observer` port."""

    def event(self, event: object) -> None: ...
    def effect(self, effect: object) -> None: ...
    def traffic(self, service: str, direction: str, size_bytes: int) -> None: ...


class Bench:
    """A driver with all of it. `start` runs it in the background, `end` stops it and returns what `run` returned."""

    def __init__(self, folder: Path) -> None:
        self.machine, self.trainer, self.network = ScriptedMachine(), BenchTrainer(), BenchNetwork()
        self.discovery = BenchDiscovery()
        self.kept: dict[Seat, tuple[Path, int]] = {}
        self.now_s = 0.0
        around = Surroundings(
            discovery=self.discovery,  # type: ignore[arg-type]
            observer=Quiet(),
            make_trainer=lambda seat: self.trainer,
            checkpoints=lambda seat: self.kept.get(seat),
            seats_on_disk=lambda: list(self.kept),
            excerpt=lambda path, parts: (str(parts).encode(), ((0, 1),)),
            state_dir=folder,
            version="1",
            clock=lambda: self.now_s,
            wall_ms=lambda: WALL_MS,
        )
        self.driver = Driver(self.machine, around)  # type: ignore[arg-type]
        self.driver.plug(self.network)  # type: ignore[arg-type]
        self.driver.trainer = self.trainer
        self._running: asyncio.Task[do.Leave] | None = None

    async def start(self) -> None:
        self._running = asyncio.create_task(self.driver.run(ev.Started()))
        await self.settle()

    async def settle(self) -> None:
        """Let everything run that can run now."""
        for _ in range(30):
            await asyncio.sleep(0)

    async def tell(self, *effects: do.Effect) -> None:
        """Have the machine answer an event with `effects`, and let them run."""
        queue = [list(effects)]
        self.machine.rules[ev.StateUnavailable] = lambda event: queue.pop() if queue else []
        self.driver.feed(ev.StateUnavailable("go"))
        self.machine.rules.pop(ev.StateUnavailable)
        await self.settle()

    async def end(self) -> do.Leave:
        """What `run` returns or raises."""
        if self._running is None:
            raise RuntimeError("not started")
        running, self._running = self._running, None
        self.driver.stop("test over")
        async with asyncio.timeout(5):
            return await running

    async def ended(self) -> do.Leave:
        """The same for a driver that ends by itself."""
        assert self._running is not None
        running, self._running = self._running, None
        async with asyncio.timeout(5):
            return await running

    async def close(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
