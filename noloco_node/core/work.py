"""What a node has while it holds a seat with weights in place, and how events reach it.

Owns nothing of its own: it names the parts of one replica at work, made anew whenever a state is loaded. Must not know
seats of others, the phase of the node, its end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from noloco_node.core import events as ev
from noloco_node.core.data_promise import DataPromise
from noloco_node.core.device_plan import DevicePlan
from noloco_node.core.effects import Effect
from noloco_node.core.exchange_desk import ExchangeDesk
from noloco_node.core.flow import MicroBatchFlow
from noloco_node.core.types import MicroBatchId, PeerId, Seat

View = Callable[[Seat], PeerId | None]


@dataclass(frozen=True, slots=True)
class Work:
    """One replica at work."""

    flow: MicroBatchFlow
    desk: ExchangeDesk
    plan: DevicePlan
    promise: DataPromise

    def admits(self, micro_batch: MicroBatchId, now: float) -> bool:
        """A place for a hop that is announced now."""
        return self.flow.admits(micro_batch, blocked=self.desk.blocks_training(now))

    def on_micro_batch_event(self, event: Any, view: View, now: float, *, stopping: bool) -> list[Effect]:
        flow = self.flow
        match event:
            case ev.MicroBatchDrawn():
                return flow.drawn(event, now)
            case ev.MicroBatchArrived() if stopping:
                return flow.refuse(event)
            case ev.MicroBatchArrived():
                return flow.arrived(event, now, blocked=self.desk.blocks_training(now))
            case ev.CallerLost():
                return flow.caller_lost(event)
            case ev.ForwardDone():
                self.plan.done()
                return flow.forward_done(event, view, now)
            case ev.HopAdmitted():
                return flow.hop_admitted(event, now)
            case ev.HopRefused() | ev.HopBroken():
                return flow.hop_failed(event, view, now)
            case ev.GradientArrived():
                return flow.gradient_arrived(event)
            case _:
                self.plan.done()
                return flow.backward_done(event, now)

    def deadlines(self, now: float) -> list[float | None]:
        """When time alone changes something here."""
        gate = self.flow.gate
        times = [self.flow.next_deadline(now), self.desk.next_deadline(now), self.promise.next_deadline(now)]
        if gate.is_empty and gate.starves_at_s > now:
            times.append(gate.starves_at_s)
        return times
