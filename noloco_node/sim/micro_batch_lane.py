"""Carries out the effects about micro-batches: data, device, hops to the next stage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from noloco_node.core import effects as do
from noloco_node.core import events as ev
from noloco_node.core.types import MicroBatchId
from noloco_node.sim.device import Device
from noloco_node.sim.hop_call import SILENT_S, HopCall

if TYPE_CHECKING:
    from noloco_node.sim.virtual_node import VirtualNode

READ_S = 0.01  # one micro-batch from the data
TOKENS = 10
LOSS_SUM = 20.0
BACKWARD_FACTOR = 2  # of the forward's time


@dataclass(slots=True)
class Visit:
    """One micro-batch while it is here. `hop` is the call it came by, None for own data."""

    id: MicroBatchId
    hop: HopCall | None = None
    count: bool = True
    position: int = 0


class MicroBatchLane:
    """Visits by call handle. A handle that is gone means a micro-batch dropped meanwhile: its results end here."""

    def __init__(self, node: VirtualNode) -> None:
        self._node = node
        self.device = Device(node)
        self._visits: dict[int, Visit] = {}
        self._hops: dict[int, HopCall] = {}  # ours, by our call
        self._calls = 0
        self._arriving: int | None = None
        self._generation = 0

    def executors(self) -> dict[type, Callable[[Any], None]]:
        return {
            do.DrawMicroBatch: self._draw,
            do.AnswerAdmitted: self._answer_admitted,
            do.AnswerBusy: self._answer_busy,
            do.RunForward: self._forward,
            do.CallNextStage: self._call_next_stage,
            do.CancelHop: self._cancel_hop,
            do.RunBackward: self._backward,
            do.DropGraph: lambda effect: self._drop_graph(effect.call),
            do.ReturnGradient: self._return_gradient,
            do.ForgetMicroBatch: self._forget,
            do.RunInnerStep: self._inner_step,
        }

    def forget_all(self) -> None:
        """A state is loaded anew: nothing of before is answered, kept or told to the machine."""
        self._generation += 1
        self.device.forget_all()
        self._break_calls()

    def process_ended(self) -> None:
        """Peers notice: at once where they can, else when KEEPs stay away."""
        self.forget_all()

    def _break_calls(self) -> None:
        ours = [*self._hops.values(), *(visit.hop for visit in self._visits.values() if visit.hop is not None)]
        self._hops.clear()
        self._visits.clear()
        for hop in ours:
            far = hop.callee if hop.caller is self._node else hop.caller
            if self._node.weather.links(self._node.number, far.number):
                self._node.clock.after(self._node.weather.delay_s(), hop.break_off)
            else:
                self._node.clock.after(SILENT_S, hop.break_off)

    def watch_calls(self) -> None:
        """This node went silent, or out of somebody's reach."""
        for hop in (*self._hops.values(), *(v.hop for v in self._visits.values() if v.hop is not None)):
            hop.watch()

    # --- in ---------------------------------------------------------------------------------------

    def _new_call(self, visit: Visit) -> int:
        self._calls += 1
        self._visits[self._calls] = visit
        return self._calls

    def _draw(self, effect: do.DrawMicroBatch) -> None:
        node, generation = self._node, self._generation
        assert node.replica is not None
        visit = Visit(MicroBatchId(node.replica.seat.replica, effect.n))

        def here() -> None:
            if generation == self._generation:
                node.feed(ev.MicroBatchDrawn(self._new_call(visit), effect.n, TOKENS))

        node.after(READ_S, here)

    def arrive(self, hop: HopCall, micro_batch: MicroBatchId, position: int) -> None:
        """A hop came in; BUSY or ADMITTED goes back at once."""
        node, caller = self._node, hop.caller
        seat = None if node.machine is None else node.machine.membership.seat
        record = caller.record
        is_fit = seat is not None and record is not None and record.seat.stage == seat.stage - 1
        if not node.admits(caller, record) or not is_fit:
            hop.carry(node, caller, hop.break_off)
            return
        machine = node.machine
        if machine is None or not machine.admits(micro_batch, node.clock.now):  # BUSY before the activation is sent
            busy = ev.HopRefused(hop.call, hop.seat)
            self._reply(hop, lambda: caller.micro_batches.hop_ended(hop, busy))
            return
        call = hop.their_call = self._new_call(Visit(micro_batch, hop, position=position))
        self._arriving = call
        node.feed(ev.MicroBatchArrived(call, micro_batch, b"", TOKENS, position))
        self._arriving = None

    def caller_lost(self, call: int) -> None:
        if call in self._visits:
            self._node.feed(ev.CallerLost(call))

    def _answer_admitted(self, effect: do.AnswerAdmitted) -> None:
        hop = self._visits[effect.call].hop
        assert hop is not None
        self._reply(hop, lambda: hop.caller.feed(ev.HopAdmitted(hop.call, hop.seat)))

    def _answer_busy(self, effect: do.AnswerBusy) -> None:
        """At once, or later: handed back unbegun."""
        hop = self._visits.pop(effect.call).hop
        assert hop is not None
        self._reply(hop, lambda: hop.caller.micro_batches.hop_ended(hop, ev.HopRefused(hop.call, hop.seat)))

    def _reply(self, hop: HopCall, action: Callable[[], None]) -> None:
        """Answers carry our record."""
        node, record = self._node, self._node.record

        def heard() -> None:
            hop.caller.meet(node, record)
            action()

        hop.carry(node, hop.caller, heard)

    # --- on the device ----------------------------------------------------------------------------

    def _forward(self, effect: do.RunForward) -> None:
        node, visit = self._node, self._visits.get(effect.call)
        replica, tenure = node.replica, node.ledger.tenure
        assert replica is not None
        assert tenure is not None
        is_last = replica.seat.stage == node.swarm.settings.num_stages - 1
        if visit is not None:
            visit.count = effect.count
            if visit.hop is None:
                tenure.open.add(effect.call)
        replica.graphs.add(effect.call)
        duration_s = self.device.compute_s * (1 + BACKWARD_FACTOR * is_last)

        def end() -> ev.Event:
            if is_last:
                replica.graphs.discard(effect.call)
                self._note_added(visit, effect.count)
            return ev.ForwardDone(effect.call, loss_sum=LOSS_SUM if is_last else None)

        self.device.run("forward", duration_s, end)

    def _backward(self, effect: do.RunBackward) -> None:
        node, visit = self._node, self._visits.get(effect.call)
        replica = node.replica
        assert replica is not None
        replica.graphs.add(effect.call)  # computed again when it was dropped as late
        duration_s = self.device.compute_s * (BACKWARD_FACTOR + effect.recompute)

        def end() -> ev.Event:
            replica.graphs.discard(effect.call)
            self._note_added(visit, effect.count)
            return ev.BackwardDone(effect.call)

        self.device.run("backward", duration_s, end)

    def _note_added(self, visit: Visit | None, count: bool) -> None:
        tenure = self._node.ledger.tenure
        if visit is not None and count and tenure is not None:
            tenure.added.append((visit.id, tenure.inner_steps))

    def _drop_graph(self, call: int) -> None:
        if self._node.replica is not None:
            self._node.replica.graphs.discard(call)

    def _inner_step(self, effect: do.RunInnerStep) -> None:
        node = self._node
        replica, tenure = node.replica, node.ledger.tenure
        assert replica is not None
        assert tenure is not None
        gradient = Fraction(node.weather.random.randrange(-64, 65))
        tenure.inner_steps += 1

        def end() -> ev.Event:
            replica.inner_step(gradient)
            return ev.InnerStepDone(1.0)

        self.device.run("inner step", 0.1 * self.device.compute_s, end, changes=True)

    # --- to the next stage ------------------------------------------------------------------------

    def _call_next_stage(self, effect: do.CallNextStage) -> None:
        node, target = self._node, self._node.swarm.by_peer[effect.peer]
        hop = self._hops[effect.call] = HopCall(node, target, effect.call, effect.seat)
        hop.carry(node, target, lambda: target.micro_batches.arrive(hop, effect.id, effect.position))

    def hop_ended(self, hop: HopCall, event: ev.Event) -> None:
        """An answer that ends the call."""
        hop.is_open = False
        self.hop_lost(hop, event)

    def hop_lost(self, hop: HopCall, event: ev.Event) -> None:
        if self._hops.get(hop.call) is hop:
            del self._hops[hop.call]
            self._node.feed(event)

    def _cancel_hop(self, effect: do.CancelHop) -> None:
        hop = self._hops.pop(effect.call, None)
        if hop is not None:
            self._node.after(self._node.weather.delay_s(), hop.break_off)

    # --- out --------------------------------------------------------------------------------------

    def _return_gradient(self, effect: do.ReturnGradient) -> None:
        visit = self._visits.pop(effect.call)
        hop = visit.hop
        assert hop is not None
        gradient = ev.GradientArrived(hop.call, effect.loss_sum, effect.tokens, replayed=effect.replayed)
        self._reply(hop, lambda: hop.caller.micro_batches.hop_ended(hop, gradient))

    def _forget(self, effect: do.ForgetMicroBatch) -> None:
        node, visit = self._node, self._visits.pop(effect.call, None)
        self._drop_graph(effect.call)
        tenure = node.ledger.tenure
        if visit is None or tenure is None:
            return
        if visit.hop is None and effect.call in tenure.open:
            tenure.open.discard(effect.call)
            is_trained = any(micro_batch == visit.id for micro_batch, _ in reversed(tenure.added[-64:]))
            tenure.trained += is_trained
            tenure.dropped += not is_trained
        if visit.hop is not None:
            node.after(node.weather.delay_s(), visit.hop.break_off)
