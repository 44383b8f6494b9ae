"""Two (or more) desks on a virtual clock, with a network that loses, doubles, delays and cuts.

Stands for the parent machine, the trainer and the transport, each in a few lines: x, phi and c are Fractions, so the
pair's sum can be checked exactly. After every event the invariants of DESIGN 5a are asserted.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from random import Random

from noloco_node.core import effects as do
from noloco_node.core import events as ev
from noloco_node.core.exchange_desk import ExchangeDesk
from noloco_node.core.exchange_table import ExchangeState
from noloco_node.core.types import Begin, Commit, Outcome, PeerId, Ready, Seat, Settings, Solo

GRACE_S, EXCHANGE_MAX_S, PHASE_S = 3.0, 20.0, 30.0
TENSOR_BYTES = 400
OFFER_TIMEOUT_S = 6.0
CHUNKS = 4


def settings(num_replicas: int = 2, **changes: object) -> Settings:
    base: dict[str, object] = {
        "run": "run",
        "seed": 7,
        "num_stages": 1,
        "num_replicas": num_replicas,
        "micro_batches": 1,
        "inner_steps": 1,
        "total_outer_steps": 0,
        "grace_s": GRACE_S,
        "exchange_max_s": EXCHANGE_MAX_S,
    }
    return Settings(**{**base, **changes})  # type: ignore[arg-type]


@dataclass
class Faults:
    """What goes wrong. `cuts`: (from, to) seconds in which nothing passes. Rates are per message.

    A BEGIN is the first message of a stream and is lost only with it.
    """

    seed: int = 0
    latency_s: float = 0.05
    jitter_s: float = 0.0
    loss: float = 0.0
    double: float = 0.0
    cuts: tuple[tuple[float, float], ...] = ()
    chunk_s: float = 0.1
    verify_s: float = 0.1
    damaged: frozenset[tuple[PeerId, int]] = frozenset()  # (receiver, outer step)
    refused: frozenset[tuple[PeerId, int]] = frozenset()
    shapes: dict[PeerId, str] = field(default_factory=dict)


@dataclass
class Inbox:
    digest: bytes
    held: int = 0


@dataclass
class Step:
    """What one side lived through at one outer step."""

    begun_s: float
    x: Fraction
    digest: bytes
    outcome: Outcome | None = None
    reason: str = ""
    partner: Seat | None = None
    added: int = 0
    c: Fraction | None = None
    c_digests: frozenset[bytes] = frozenset()
    unblocked_s: float | None = None
    ready_s: float | None = None
    next_boundary_s: float | None = None
    incarnation: int = 1


class Side:
    """One node: desk, trainer and exchange hub."""

    def __init__(self, world: World, seat: Seat, peer: PeerId, dues: list[float]) -> None:
        self.world, self.seat, self.peer, self.dues = world, seat, peer, dues
        self.phi = Fraction(seat.replica + 1, 3)
        self.incarnation, self.step, self.alive = 1, 0, True
        self.desk = ExchangeDesk(world.settings, seat, self.incarnation)
        self.steps: dict[int, Step] = {}
        self.lost_steps: list[tuple[int, Step]] = []  # of earlier incarnations, rolled back
        self.opened: set[tuple[int, PeerId]] = set()
        self.inboxes: dict[tuple[int, PeerId], Inbox] = {}
        self.streams: dict[tuple[int, PeerId], int] = {}  # generation of the outgoing tensor
        self.c: dict[int, Fraction] = {}
        self.boundary_due = False
        self.device_busy = False

    # --- the parent machine -----------------------------------------------------------------------

    def start(self) -> None:
        self.run(self.desk.begin_phase(self.step, self.world.view, self.world.now))
        self.world.at(self.dues[self.step], self.guard(self.due)) if self.step < len(self.dues) else None

    def guard(self, action: Callable[[], None]) -> Callable[[], None]:
        """Only in the incarnation that asked for it."""
        incarnation = self.incarnation
        return lambda: action() if self.alive and self.incarnation == incarnation else None

    def due(self) -> None:
        self.boundary_due = True

    def handle(self, event: ev.Event) -> None:
        if self.alive:
            self.run(self.desk.handle(event, self.world.view, self.world.now))

    def plan(self) -> None:
        """The device lane: corrections first, then the boundary when it is due."""
        now = self.world.now
        step = self.steps.get(self.step - 1)
        if step is not None and step.unblocked_s is None and not self.desk.blocks_training(now):
            step.unblocked_s = now
        if self.device_busy or not self.alive:
            return
        if self.desk.correction_due is not None:
            self.add_correction(self.desk.correction_due)
        elif self.boundary_due and not self.desk.blocks_training(now):
            self.run(self.desk.before_boundary(now))
            self.boundary_due, self.device_busy = False, True
            self.world.at(now + 0.01, self.guard(self.take_boundary))

    def add_correction(self, k: int) -> None:
        step = self.steps[k]
        step.added += 1
        self.phi += self.c.pop(k)
        assert step.outcome is Outcome.PAIRED
        self.desk.correction_added(k)

    def take_boundary(self) -> None:
        now, k = self.world.now, self.step
        self.device_busy = False
        if k - 1 in self.steps:
            self.steps[k - 1].next_boundary_s = now
        x = Fraction(self.world.random.randrange(-1000, 1000), 7)
        digest = f"{self.peer}/{self.incarnation}/{k}".encode().ljust(32, b".")
        self.steps[k] = Step(now, x, digest, incarnation=self.incarnation)
        self.phi += x / 5
        self.step = k + 1
        taken = ev.BoundaryTaken(k, TENSOR_BYTES, digest, self.world.faults.shapes.get(self.peer, "shape"))
        self.run(self.desk.boundary(taken, self.world.view, now))
        self.start()

    def kill(self) -> None:
        self.alive = False
        self.opened.clear()
        self.inboxes.clear()
        self.world.cut()

    def restart(self, step: int) -> None:
        """From the checkpoint that says `step` is the one to work on."""
        self.lost_steps += [(k, s) for k, s in self.steps.items() if k >= step]
        self.steps = {k: s for k, s in self.steps.items() if k < step}
        for open_step in (s for s in self.steps.values() if s.outcome is None):
            open_step.outcome, open_step.reason = Outcome.SOLO, "crashed"
        self.alive, self.incarnation, self.step = True, self.incarnation + 1, step
        self.desk = ExchangeDesk(self.world.settings, self.seat, self.incarnation)
        self.boundary_due = self.device_busy = False
        self.c.clear()
        self.start()

    # --- trainer and hub --------------------------------------------------------------------------

    def run(self, effects: list[do.Effect]) -> None:
        for effect in effects:
            self.do(effect)

    def do(self, effect: do.Effect) -> None:
        world = self.world
        match effect:
            case do.SendOffer(offer, peer):
                world.ask(self, offer, peer)
            case do.AnswerOffer(ticket, answer):
                world.answers[ticket] = answer
            case do.OpenExchange(k, peer):
                self.opened.add((k, peer))
                world.open(self, k, peer)
            case do.SendExchange(peer, message):
                if isinstance(message, Ready):
                    self.steps[message.outer_step].ready_s = world.now
                world.say(self, peer, message)
            case do.ReceiveTensor(k, peer, _, digest):
                inbox = self.inboxes.get((k, peer))
                if inbox is None or inbox.digest != digest:
                    self.inboxes[k, peer] = Inbox(digest)
            case do.StreamTensor(k, peer, offset):
                world.stream(self, k, peer, offset)
            case do.VerifyTensor(k):
                world.at(world.now + world.faults.verify_s, self.guard(lambda: self.verify(k)))
            case do.DropCorrection(k):
                self.c.pop(k, None)
            case do.CloseExchange():
                self.close(effect)
            case _:
                raise AssertionError(effect)

    def verify(self, k: int) -> None:
        if (self.peer, k) in self.world.faults.refused:
            self.handle(ev.TensorRefused(k, "norm"))
            return
        theirs = next(inbox.digest for (step, _), inbox in self.inboxes.items() if step == k)
        other = self.world.tensors[theirs]
        mine = self.steps[k]
        if mine.outcome is None:
            self.c[k] = mine.c = (other - mine.x) / 2
            mine.c_digests = frozenset((mine.digest, theirs))
        self.handle(ev.TensorVerified(k))

    def close(self, effect: do.CloseExchange) -> None:
        step = self.steps[effect.outer_step]
        assert step.outcome is None, "a closed step never reopens"
        step.outcome, step.reason, step.partner = effect.outcome, effect.reason, effect.partner
        if effect.peer is not None:
            self.opened.discard((effect.outer_step, effect.peer))


class World:
    """Clock, network and the invariants."""

    def __init__(self, dues: list[list[float]], faults: Faults | None = None, num_replicas: int | None = None) -> None:
        self.faults = faults or Faults()
        self.random = Random(self.faults.seed)
        self.settings = settings(num_replicas or len(dues))
        self.now = 0.0
        self.heap: list[tuple[float, int, Callable[[], None]]] = []
        self.count = 0
        self.epoch = 0  # counts cuts: what was under way is lost
        self.streams: set[tuple[int, PeerId, PeerId]] = set()  # up, and the first of the peers knows
        self.answers: dict[int, do.OfferAnswer] = {}
        self.last_s: dict[tuple[PeerId, PeerId], float] = {}
        self.verdicts: list[tuple[float, PeerId, int]] = []  # COMMIT or SOLO arrived: when, whom, outer step
        self.sides = {
            PeerId(f"p{r}"): Side(self, Seat(0, r), PeerId(f"p{r}"), dues_of) for r, dues_of in enumerate(dues)
        }
        for start, end in self.faults.cuts:
            self.at(start, self.cut)
            self.at(end, self.mend)

    @property
    def tensors(self) -> dict[bytes, Fraction]:
        steps = [s for side in self.sides.values() for s in side.steps.values()]
        steps += [s for side in self.sides.values() for _, s in side.lost_steps]
        return {step.digest: step.x for step in steps}

    def view(self, seat: Seat) -> PeerId | None:
        return next((peer for peer, side in self.sides.items() if side.seat == seat and side.alive), None)

    # --- clock ------------------------------------------------------------------------------------

    def at(self, time: float, action: Callable[[], None]) -> None:
        self.count += 1
        heapq.heappush(self.heap, (max(time, self.now), self.count, action))

    def run(self, until: float) -> World:
        if self.now == 0.0:
            for side in self.sides.values():
                side.start()
        while True:
            timers = [
                (t, s) for s in self.sides.values() if s.alive and (t := s.desk.next_deadline(self.now)) is not None
            ]
            timer = min(timers, key=lambda pair: pair[0], default=None)
            event_s = self.heap[0][0] if self.heap else float("inf")
            if min(event_s, timer[0] if timer else event_s) > until:
                return self
            if timer is not None and timer[0] < event_s:
                self.now = max(self.now, timer[0])
                timer[1].handle(ev.TimePassed())
            else:
                self.now, _, action = heapq.heappop(self.heap)
                action()
            for side in self.sides.values():
                side.plan()
            self.check()

    # --- network ----------------------------------------------------------------------------------

    @property
    def is_cut(self) -> bool:
        return any(start <= self.now < end for start, end in self.faults.cuts)

    def cut(self) -> None:
        self.epoch += 1
        self.streams.clear()

    def mend(self) -> None:
        for side in self.sides.values():
            for k, peer in sorted(side.opened):
                self.open(side, k, peer)

    def open(self, side: Side, k: int, peer: PeerId) -> None:
        """Either side opens; each side is told once per stream, as soon as it wants it too."""
        other = self.sides[peer]
        if self.is_cut or not other.alive:
            self.at(self.now + 0.5, side.guard(lambda: self.open(side, k, peer) if (k, peer) in side.opened else None))
            return
        for end, far in ((side, other), (other, side)):
            if (k, far.peer) in end.opened and (k, end.peer, far.peer) not in self.streams:
                self.streams.add((k, end.peer, far.peer))
                self.told_open(end, k, far.peer)

    def told_open(self, side: Side, k: int, peer: PeerId) -> None:
        def tell() -> None:
            inbox = side.inboxes.get((k, peer), Inbox(b""))
            side.handle(ev.ExchangeOpened(k, peer, inbox.held, inbox.digest))

        self.at(self.now, side.guard(tell))

    def carry(self, sender: Side, receiver: Side, action: Callable[[], None], extra_s: float = 0.0) -> None:
        """In order on the stream, unless the link is cut meanwhile."""
        if self.is_cut:
            return
        epoch = self.epoch
        key = (sender.peer, receiver.peer)
        delay = self.faults.latency_s + self.random.uniform(0, self.faults.jitter_s) + extra_s
        arrives = max(self.last_s.get(key, 0.0), self.now + delay)
        self.last_s[key] = arrives
        self.at(arrives, lambda: action() if epoch == self.epoch and receiver.alive else None)

    def say(self, side: Side, peer: PeerId, message: do.ExchangeMessage) -> None:
        other = self.sides[peer]
        event = ev.ExchangeMessageReceived(side.peer, message)

        def deliver() -> None:
            if isinstance(message, Commit | Solo):
                self.verdicts.append((self.now, other.peer, message.outer_step))
            other.handle(event)

        copies = 1 + (self.random.random() < self.faults.double)
        for _ in range(copies):
            if isinstance(message, Begin) or self.random.random() >= self.faults.loss:
                self.carry(side, other, deliver)

    def ask(self, side: Side, offer: do.Offer, peer: PeerId) -> None:
        other = self.sides[peer]
        ticket = self.count

        def deliver() -> None:
            other.handle(ev.OfferReceived(ticket, offer, side.peer))
            answer = self.answers.pop(ticket)
            if self.random.random() >= self.faults.loss:
                self.carry(other, side, lambda: reply(answer))

        def reply(answer: do.OfferAnswer | None) -> None:
            if not told:
                told.append(answer)
                side.handle(ev.OfferAnswered(offer, answer))

        told: list[do.OfferAnswer | None] = []
        self.at(self.now + OFFER_TIMEOUT_S, side.guard(lambda: reply(None)))
        if self.random.random() >= self.faults.loss:
            self.carry(side, other, deliver)

    def stream(self, side: Side, k: int, peer: PeerId, offset: int) -> None:
        generation = side.streams[k, peer] = side.streams.get((k, peer), 0) + 1
        other, digest = self.sides[peer], side.steps[k].digest
        size = TENSOR_BYTES // CHUNKS

        def chunk(start: int) -> None:
            if side.streams[k, peer] != generation or self.is_cut or not side.alive:
                return
            end = min(start + size, TENSOR_BYTES)
            self.carry(side, other, lambda: arrive(start, end))
            if end < TENSOR_BYTES:
                self.at(self.now + self.faults.chunk_s, lambda: chunk(end) if epoch == self.epoch else None)

        def arrive(start: int, end: int) -> None:
            inbox = other.inboxes.get((k, side.peer))
            if inbox is None or inbox.digest != digest or start > inbox.held:
                return
            inbox.held = max(inbox.held, end)
            if inbox.held == TENSOR_BYTES:
                damaged = (other.peer, k) in self.faults.damaged
                other.handle(ev.TensorDamaged(k, "digest") if damaged else ev.TensorReceived(k))

        epoch = self.epoch
        chunk(offset)

    # --- invariants -------------------------------------------------------------------------------

    def check(self) -> None:
        for side in self.sides.values():
            for k, step in side.steps.items():
                assert step.added <= 1, "c is added at most once"
                assert not (step.added and step.outcome is not Outcome.PAIRED)
                self.check_waiting(side, k, step)

    def check_waiting(self, side: Side, k: int, step: Step) -> None:
        if not side.alive:
            return
        if step.unblocked_s is None:
            assert self.now <= step.begun_s + EXCHANGE_MAX_S + 1e-9, "blocked for too long"
        exchange = side.desk._exchange
        if exchange is not None and exchange.outer_step == k:
            if exchange.state is ExchangeState.TRADING:
                assert self.now <= exchange.deadline + 1e-9
            if not exchange._theirs.has_begun:
                assert exchange.deadline == step.begun_s + GRACE_S
        elif k < side.step - 1 or side.desk.state is ExchangeState.CLOSED:
            assert step.outcome is not None, "no state outlives its deadline"

    def pair(self, k: int) -> tuple[Step, Step]:
        first, second = list(self.sides.values())[:2]
        return first.steps[k], second.steps[k]

    def check_pairs(self, *, is_crash_free: bool = True) -> list[int]:
        """Both paired or both solo; returns the outer steps that ended unlike, which only DOUBT may do."""
        unlike = []
        first, second = list(self.sides.values())[:2]
        for k in sorted(first.steps.keys() & second.steps.keys()):
            a, b = first.steps[k], second.steps[k]
            if a.outcome is None or b.outcome is None:
                continue
            if a.outcome is b.outcome is Outcome.PAIRED:
                assert a.c is not None
                assert b.c is not None
                if is_crash_free:
                    assert a.c == -b.c
                    assert a.c_digests == b.c_digests
                continue
            if a.outcome is not b.outcome:
                assert a.outcome is Outcome.PAIRED or not is_crash_free, "only the decider may be alone in its pair"
                assert b.reason == "doubt" or not is_crash_free
                unlike.append(k)
        return unlike
