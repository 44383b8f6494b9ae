"""A swarm of real state machines on a virtual clock: no sockets, no tensors, every effect ends after a set delay.

The weights of a replica are two Fractions (phi, delta), so that sums over a pair can be checked exactly.
"""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from noloco_node.core import effects as do
from noloco_node.core import events as ev
from noloco_node.core.machine import Machine
from noloco_node.core.types import Outcome, PeerId, Phase, Seat, SeatRecord, Settings

HOP_S = 0.002
DHT_S = 0.01
START_S = 1005.0  # of outer step 0 on the time clock; the nodes come at 1000


@dataclass
class VirtualNode:
    swarm: VirtualSwarm
    machine: Machine
    compute_s: float = 0.1
    alive: bool = True
    timer: int = 0
    calls: dict[int, tuple[VirtualNode, int] | None] = field(
        default_factory=dict
    )  # own call -> (caller node, its call)
    meta: dict[int, tuple[Any, int, int]] = field(default_factory=dict)  # call -> (id, tokens, position)
    answers: dict[int, Any] = field(default_factory=dict)
    refused: set[int] = field(default_factory=set)
    arriving: int | None = None  # the hop that the machine is asked about now
    hops: dict[int, tuple[VirtualNode, int]] = field(default_factory=dict)
    log: list[tuple[float, object]] = field(default_factory=list)
    x: Fraction = Fraction(0)
    closed: list[do.CloseExchange] = field(default_factory=list)
    corrections: list[int] = field(default_factory=list)
    left: do.Leave | None = None
    steps: list[do.RunInnerStep] = field(default_factory=list)
    in_flight_at_change: list[int] = field(default_factory=list)
    seq: int = 0
    record: SeatRecord | None = None

    def meet(self, caller: VirtualNode) -> None:
        """Every call carries the caller's record and every answer the callee's."""
        for one, other in ((self, caller), (caller, self)):
            if other.record is not None and other.record.expires / 1000 > self.swarm.now:
                one.feed(ev.RecordLearnt(other.record, other.record.expires / 1000 - self.swarm.now))

    @property
    def peer(self) -> PeerId:
        return self.machine.peer

    def feed(self, event: ev.Event) -> None:
        if not self.alive or self.left is not None:
            return
        now = self.swarm.now
        for effect in self.machine.handle(event, now):
            self.log.append((now, effect))
            getattr(self, f"do_{type(effect).__name__}", lambda e: None)(effect)
        deadline = self.machine.next_deadline()
        self.timer += 1
        stamp = self.timer
        if deadline is not None:
            self.swarm.at(
                max(deadline, now + 1e-4), lambda: self.feed(ev.TimePassed()) if stamp == self.timer else None
            )

    def later(self, delay_s: float, event: ev.Event) -> None:
        self.swarm.at(self.swarm.now + delay_s, lambda: self.feed(event))

    # --- seats ---
    def do_ReadSeats(self, e: do.ReadSeats) -> None:
        def read() -> None:
            for seat in e.seats:
                for record in self.swarm.dht[seat].values():
                    lives = record.expires / 1000 - self.swarm.now
                    if lives > 0:
                        self.feed(ev.RecordLearnt(record, lives))
            self.feed(ev.SeatsRead(e.seats, reached=len(self.swarm.nodes) > 1))

        self.swarm.at(self.swarm.now + DHT_S, read)

    def do_PublishRecord(self, e: do.PublishRecord) -> None:
        self.seq += 1
        now_ms = int(self.swarm.now * 1000)
        record = SeatRecord(
            run=self.machine.settings.run,
            seat=e.seat,
            peer=self.peer,
            incarnation=self.machine.incarnation,
            seq=now_ms * 100 + self.seq,
            claim=now_ms if e.claim is None else e.claim,
            expires=now_ms + int(self.machine.settings.lease_s * 1000) + self.seq,
            state=e.state,
            outer_step=e.outer_step,
            data_next=e.data_next,
            checkpoint_step=e.checkpoint_step,
        )

        def store() -> None:
            self.swarm.dht[e.seat][self.peer] = self.record = record
            self.feed(ev.RecordPublished(record, self.machine.settings.lease_s, confirmed=len(self.swarm.nodes) > 1))

        self.swarm.at(self.swarm.now + DHT_S, store)

    # --- state ---
    def do_InitialiseState(self, e: do.InitialiseState) -> None:
        self.later(0.05, ev.StateLoaded(0, 0, 0, "seed", seat=e.seat))

    def do_FetchState(self, e: do.FetchState) -> None:
        donor = next((n for n in self.swarm.nodes if n.peer in e.donors and n.alive), None)
        if donor is None:
            self.later(0.05, ev.StateUnavailable("no donor", e.seat))
        else:
            self.later(0.2, ev.StateLoaded(donor.machine.outer_step, 0, 0, "peer", seat=e.seat))

    def do_SaveCheckpoint(self, e: do.SaveCheckpoint) -> None:
        self.later(0.01, ev.StateCopied())
        self.later(0.05, ev.CheckpointSaved(e.outer_step))

    def do_Leave(self, e: do.Leave) -> None:
        self.left = e

    # --- micro-batches ---
    def do_DrawMicroBatch(self, e: do.DrawMicroBatch) -> None:
        call = next(self.swarm.calls)
        self.calls[call] = None
        self.later(0.001, ev.MicroBatchDrawn(call, e.n, 10))

    def do_AnswerBusy(self, e: do.AnswerBusy) -> None:
        """At once, or later: handed back unbegun."""
        self.refused.add(e.call)
        caller = self.calls.pop(e.call, None)
        if caller is not None and self.arriving != e.call:
            node, call = caller
            node.later(HOP_S, ev.HopRefused(call, self.machine.membership.seat or Seat(0, 0)))

    def do_RunForward(self, e: do.RunForward) -> None:
        last = self.machine.flow is not None and self.machine.flow.is_last
        self.later(self.compute_s, ev.ForwardDone(e.call, loss_sum=20.0 if last else None))

    def do_RunBackward(self, e: do.RunBackward) -> None:
        self.later(2 * self.compute_s, ev.BackwardDone(e.call))

    def do_CallNextStage(self, e: do.CallNextStage) -> None:
        target = self.swarm.by_peer(e.peer)

        def arrive() -> None:
            if not target.alive or target.left is not None:
                self.later(HOP_S, ev.HopBroken(e.call, e.seat, "lost"))
                return
            target.meet(self)
            call = next(self.swarm.calls)
            target.calls[call] = (self, e.call)
            self.hops[e.call] = (target, call)
            target.arriving = call
            target.arriving = call
            target.feed(ev.MicroBatchArrived(call, e.id, b"", 10, e.position))
            target.arriving = None
            target.arriving = None
            if call in target.refused:
                self.later(HOP_S, ev.HopRefused(e.call, e.seat))
            else:
                self.later(HOP_S, ev.HopAdmitted(e.call, e.seat))

        self.swarm.at(self.swarm.now + HOP_S, arrive)

    def do_CancelHop(self, e: do.CancelHop) -> None:
        if e.call in self.hops:
            target, call = self.hops.pop(e.call)
            target.later(HOP_S, ev.CallerLost(call))

    def do_ReturnGradient(self, e: do.ReturnGradient) -> None:
        caller = self.calls.pop(e.call, None)
        if caller is not None:
            node, call = caller
            node.later(HOP_S, ev.GradientArrived(call, e.loss_sum, e.tokens, replayed=e.replayed))

    def do_ForgetMicroBatch(self, e: do.ForgetMicroBatch) -> None:
        caller = self.calls.pop(e.call, None)
        if caller is not None and e.answer_dropped:
            node, call = caller
            node.later(HOP_S, ev.HopBroken(call, self.machine.membership.seat or Seat(0, 0), "dropped"))

    def do_RunInnerStep(self, e: do.RunInnerStep) -> None:
        self.steps.append(e)
        self._note_change()
        self.later(self.compute_s, ev.InnerStepDone(1.0))

    def _note_change(self) -> None:
        assert self.machine.flow is not None
        self.in_flight_at_change.append(self.machine.flow.in_flight)

    # --- outer steps ---
    def do_TakeBoundary(self, e: do.TakeBoundary) -> None:
        self._note_change()
        digest = f"{self.peer}/{e.outer_step}".encode()
        self.later(0.01, ev.BoundaryTaken(e.outer_step, 1000, digest, "shape"))

    def do_SendOffer(self, e: do.SendOffer) -> None:
        target = self.swarm.by_peer(e.peer)

        def ask() -> None:
            if not target.alive or target.left is not None:
                self.later(HOP_S, ev.OfferAnswered(e.offer, None))
                return
            target.meet(self)
            ticket = next(self.swarm.calls)
            target.feed(ev.OfferReceived(ticket, e.offer, self.peer))
            self.later(HOP_S, ev.OfferAnswered(e.offer, target.answers.pop(ticket, None)))

        self.swarm.at(self.swarm.now + HOP_S, ask)

    def do_AnswerOffer(self, e: do.AnswerOffer) -> None:
        self.answers[e.ticket] = e.answer

    def do_OpenExchange(self, e: do.OpenExchange) -> None:
        self.later(HOP_S, ev.ExchangeOpened(e.outer_step, e.peer))

    def do_SendExchange(self, e: do.SendExchange) -> None:
        target = self.swarm.by_peer(e.peer)
        if target.alive:
            target.later(HOP_S, ev.ExchangeMessageReceived(self.peer, e.message))

    def do_StreamTensor(self, e: do.StreamTensor) -> None:
        self.swarm.by_peer(e.peer).later(0.1, ev.TensorReceived(e.outer_step))

    def do_VerifyTensor(self, e: do.VerifyTensor) -> None:
        self.later(0.01, ev.TensorVerified(e.outer_step))

    def do_AddCorrection(self, e: do.AddCorrection) -> None:
        self._note_change()
        self.corrections.append(e.outer_step)
        self.later(0.01, ev.CorrectionAdded(e.outer_step))

    def do_CloseExchange(self, e: do.CloseExchange) -> None:
        self.closed.append(e)


class VirtualSwarm:
    def __init__(self, settings: Settings, seats: list[Seat] | None = None) -> None:
        self.settings = settings
        self.now = 1000.0
        self.calls = itertools.count(1)
        self.nodes: list[VirtualNode] = []
        self.dht: dict[Seat, dict[PeerId, SeatRecord]] = defaultdict(dict)
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        table = [Seat(s, r) for s in range(settings.num_stages) for r in range(settings.num_replicas)]
        for seat in table if seats is None else seats:
            self.add(seat)

    def add(self, seat: Seat | None, **changes: Any) -> VirtualNode:
        index = len(self.nodes)
        machine = Machine(replace(self.settings, **changes), PeerId(f"peer{index}"), 100 + index, seat, start_s=START_S)
        node = VirtualNode(self, machine)
        self.nodes.append(node)
        self.at(self.now, lambda: node.feed(ev.Started(has_initial_peers=index > 0)))
        return node

    def by_peer(self, peer: PeerId) -> VirtualNode:
        return next(node for node in self.nodes if node.peer == peer)

    def node(self, stage: int, replica: int) -> VirtualNode:
        return next(n for n in self.nodes if n.machine.wanted == Seat(stage, replica))

    def at(self, when: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (when, next(self._order), action))

    def run(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        end = self.now + seconds
        while self._heap and self._heap[0][0] <= end and not until():
            self.now, _, action = heapq.heappop(self._heap)
            action()
        if not until():
            self.now = end

    def run_to_end(self, seconds: float = 600.0) -> None:
        self.run(seconds, until=lambda: all(n.left is not None or not n.alive for n in self.nodes))

    def outcomes(self) -> dict[Outcome, int]:
        return {o: sum(c.outcome is o for n in self.nodes for c in n.closed) for o in Outcome}

    def phases(self) -> list[Phase]:
        return [n.machine.phase for n in self.nodes]
