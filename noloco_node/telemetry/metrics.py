"""Turns events and effects into metrics. Decides nothing, keeps only what it needs to pair a start with its end.

Where no event tells (phase, spread, learning rate, strikes ...), the owner calls a setter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from prometheus_client import generate_latest
from prometheus_client.metrics import MetricWrapperBase

from noloco_node.core import effects, events, limits
from noloco_node.core.exchange_reason import Reason
from noloco_node.core.types import Outcome, Phase, Seat, SeatState
from noloco_node.telemetry.instruments import JOBS, Instruments
from noloco_node.telemetry.labels import (
    BOOTSTRAP_STATES,
    CLOSE_REASONS,
    DIRECTIONS,
    OFFER_ANSWERS,
    OUTCOMES,
    PHASES,
    REFUSALS,
    SERVICES,
    SOURCES,
    STRIKES,
    bounded,
    label,
)

CALLS_MAX = limits.REPLAY_ENTRIES_MAX
INCIDENTS = (
    *("late", "resent", "replayed", "busy_received", "busy_answered", "hop_broken", "not_finite"),
    "drawn_again",  # own micro-batches, after a crash
)


class NodeMetrics:
    """An Observer (ports). `clock` gives monotonic seconds; durations are its differences."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.instruments = Instruments()
        self._clock = clock
        self._job_started: tuple[str, float] | None = None
        self._boundary_taken: dict[int, float] = {}
        self._checkpoint_started: dict[int, float] = {}
        self._calls: dict[int, str] = {}  # call -> open | broken | done
        self._step: effects.RunInnerStep | None = None
        self._handlers = self._table()
        self._announce_labels()

    # --- Observer ---------------------------------------------------------------------------------

    def event(self, event: object) -> None:
        self._dispatch(event)

    def effect(self, effect: object) -> None:
        self._dispatch(effect)

    def traffic(self, service: str, direction: str, size_bytes: int) -> None:
        labels = bounded(service, SERVICES), bounded(direction, DIRECTIONS)
        self.instruments.traffic.labels(*labels).inc(max(size_bytes, 0))

    # --- what no event tells ----------------------------------------------------------------------

    def set_phase(self, phase: Phase) -> None:
        _one_of(self.instruments.phase, PHASES, str(phase))

    def set_seat(self, seat: Seat | None, state: SeatState | None) -> None:
        self.instruments.seat_info.clear()
        if seat is not None:
            self.instruments.seat_info.labels(seat.stage, seat.replica, str(state or "")).set(1)

    def set_bootstrap_state(self, state: str) -> None:
        """alone (no initial peers), waiting (none answers) or joined."""
        _one_of(self.instruments.bootstrap_state, BOOTSTRAP_STATES, state)

    def set_outer_step(self, outer_step: int) -> None:
        self.instruments.outer_step.set(outer_step)

    def set_spread(self, spread: float) -> None:
        self.instruments.spread.set(spread)

    def set_learning_rate(self, learning_rate: float) -> None:
        self.instruments.learning_rate.set(learning_rate)

    def set_peers(self, peers: int) -> None:
        self.instruments.peers.set(peers)

    def set_clock_offset(self, ahead_s: float) -> None:
        self.instruments.clock_offset.set(ahead_s)

    def count_strike(self, reason: str) -> None:
        self.instruments.strikes.labels(bounded(reason, STRIKES)).inc()

    def count_refused_call(self, reason: str) -> None:
        self.instruments.refused.labels(bounded(reason, REFUSALS)).inc()

    def count_p2pd_restart(self) -> None:
        self.instruments.p2pd_restarts.inc()

    def count_state_upload(self, complete: bool) -> None:
        self.instruments.state_uploads.labels("complete" if complete else "broken").inc()

    def totals(self) -> dict[str, Any]:
        """The main figures as plain values, for /status.json."""
        found = self.instruments
        outcomes = {outcome: _total(found.outer_steps, "outcome", outcome) for outcome in OUTCOMES}
        return {
            "outer_steps": {outcome: int(count) for outcome, count in outcomes.items()},
            "inner_steps": int(_total(found.inner_steps, "result", "applied")),
            "tokens_total": int(_total(found.tokens)),
            "micro_batches": {r: int(_total(found.micro_batches, "result", r)) for r in ("trained", "dropped")},
            "incidents": {kind: int(_total(found.incidents, "kind", kind)) for kind in INCIDENTS},
            "bytes_sent": int(_total(found.traffic, "direction", "sent")),
            "bytes_received": int(_total(found.traffic, "direction", "received")),
            "strikes": int(_total(found.strikes)),
            "p2pd_restarts": int(_total(found.p2pd_restarts)),
        }

    def render(self) -> bytes:
        """Prometheus text format."""
        return generate_latest(self.instruments.registry)

    # --- dispatch ---------------------------------------------------------------------------------

    def _dispatch(self, message: object) -> None:
        for handler in self._handlers.get(type(message), ()):
            handler(message)

    def _table(self) -> dict[type, tuple[Callable[[Any], None], ...]]:
        start, end = self._job_starts, self._job_ends
        return {
            events.StateLoaded: (self._state_loaded,),
            events.CheckpointSaved: (self._checkpoint_saved,),
            events.RecordLearnt: (lambda _: self.instruments.records.labels("learnt").inc(),),
            events.RecordPublished: (self._record_published,),
            events.SeatsRead: (self._seats_read,),
            events.MicroBatchDrawn: (self._call_opened,),
            events.MicroBatchArrived: (self._call_opened,),
            events.ForwardDone: (end("forward"), self._forward_done),
            events.BackwardDone: (end("backward"), self._backward_done),
            events.InnerStepDone: (end("inner_step"), self._inner_step_done),
            events.HopRefused: (lambda _: self._incident("busy_received"),),
            events.HopBroken: (self._hop_broken,),
            events.GradientArrived: (self._gradient_arrived,),
            events.BoundaryTaken: (end("boundary"), self._boundary),
            events.OfferAnswered: (self._offer_answered,),
            events.TensorDamaged: (lambda _: self.instruments.tensors_refused.labels("damaged").inc(),),
            events.TensorRefused: (self._tensor_refused,),
            events.CorrectionAdded: (end("correction"), self._correction_added),
            effects.PublishRecord: (self._publish,),
            effects.SaveCheckpoint: (self._checkpoint_starts,),
            effects.AnswerBusy: (self._busy_answered,),
            effects.RunForward: (start("forward"),),
            effects.RunBackward: (start("backward"),),
            effects.RunInnerStep: (start("inner_step"), self._inner_step_starts),
            effects.TakeBoundary: (start("boundary"),),
            effects.AddCorrection: (start("correction"),),
            effects.DropCorrection: (lambda _: self.instruments.corrections.labels("dropped").inc(),),
            effects.CallNextStage: (self._called_next_stage,),
            effects.DropGraph: (lambda _: self._incident("late"),),
            effects.ReturnGradient: (self._gradient_returned,),
            effects.ForgetMicroBatch: (self._call_closed,),
            effects.CloseExchange: (self._exchange_closed,),
        }

    def _announce_labels(self) -> None:
        """Series that exist from the start: a rate over a counter that appears late misses its first step."""
        found = self.instruments
        _touch(found.inner_steps, ("applied", "skipped"))
        _touch(found.micro_batches, ("trained", "dropped"))
        _touch(found.incidents, INCIDENTS)
        _touch(found.job, JOBS)
        found.outer_steps.labels(str(Outcome.PAIRED), label(Reason.COMMITTED))
        self.set_phase(Phase.JOINING)

    # --- device lane ------------------------------------------------------------------------------

    def _job_starts(self, job: str) -> Callable[[object], None]:
        def start(_: object) -> None:
            self._job_started = (job, self._clock())

        return start

    def _job_ends(self, job: str) -> Callable[[object], None]:
        def end(_: object) -> None:
            if self._job_started is not None and self._job_started[0] == job:
                self.instruments.job.labels(job).observe(self._clock() - self._job_started[1])
                self._job_started = None

        return end

    # --- life -------------------------------------------------------------------------------------

    def _state_loaded(self, event: events.StateLoaded) -> None:
        self.instruments.states_loaded.labels(bounded(event.source, SOURCES)).inc()
        self.instruments.outer_step.set(event.outer_step)
        self.instruments.inner_step.set(event.inner_step)
        self.instruments.incidents.labels("drawn_again").inc(event.drawn_again)

    def _publish(self, effect: effects.PublishRecord) -> None:
        self.set_seat(effect.seat, effect.state)
        self.instruments.outer_step.set(effect.outer_step)

    def _record_published(self, event: events.RecordPublished) -> None:
        self.instruments.records.labels("confirmed" if event.confirmed else "unconfirmed").inc()

    def _seats_read(self, event: events.SeatsRead) -> None:
        self.instruments.look_ups.inc(len(event.seats))
        if event.reached:
            self.set_bootstrap_state("joined")

    def _checkpoint_starts(self, effect: effects.SaveCheckpoint) -> None:
        self._checkpoint_started = {effect.outer_step: self._clock()}

    def _checkpoint_saved(self, event: events.CheckpointSaved) -> None:
        started = self._checkpoint_started.pop(event.outer_step, None)
        if event.reason:
            return
        self.instruments.checkpoint_step.set(event.outer_step)
        if started is not None:
            self.instruments.checkpoint.observe(self._clock() - started)

    # --- micro-batches ----------------------------------------------------------------------------

    def _incident(self, kind: str) -> None:
        self.instruments.incidents.labels(kind).inc()

    def _call_opened(self, event: events.MicroBatchDrawn | events.MicroBatchArrived) -> None:
        if len(self._calls) < CALLS_MAX:
            self._calls[event.call] = "open"
        self._show_open()

    def _mark(self, call: int, state: str) -> None:
        if call in self._calls:
            self._calls[call] = state

    def _forward_done(self, event: events.ForwardDone) -> None:
        self._count_finite(event.finite)
        if event.loss_sum is not None and event.finite:
            self._mark(event.call, "done")

    def _backward_done(self, event: events.BackwardDone) -> None:
        self._count_finite(event.finite)
        if event.finite:
            self._mark(event.call, "done")

    def _count_finite(self, finite: bool) -> None:
        if not finite:
            self._incident("not_finite")

    def _hop_broken(self, event: events.HopBroken) -> None:
        self._incident("hop_broken")
        self._mark(event.call, "broken")

    def _called_next_stage(self, effect: effects.CallNextStage) -> None:
        if self._calls.get(effect.call) == "broken":
            self._incident("resent")
            self._mark(effect.call, "open")

    def _gradient_arrived(self, event: events.GradientArrived) -> None:
        if event.replayed:
            self._incident("replayed")

    def _gradient_returned(self, effect: effects.ReturnGradient) -> None:
        if effect.replayed:
            self._incident("replayed")
        self._mark(effect.call, "done")

    def _busy_answered(self, effect: effects.AnswerBusy) -> None:
        self._incident("busy_answered")
        self._calls.pop(effect.call, None)
        self._show_open()

    def _call_closed(self, effect: effects.ForgetMicroBatch) -> None:
        state = self._calls.pop(effect.call, "done")
        if effect.answer_dropped or state != "done":
            self.instruments.micro_batches.labels("dropped").inc()
        self._show_open()

    def _show_open(self) -> None:
        self.instruments.micro_batches_open.set(len(self._calls))

    # --- steps ------------------------------------------------------------------------------------

    def _inner_step_starts(self, effect: effects.RunInnerStep) -> None:
        self._step = effect

    def _inner_step_done(self, event: events.InnerStepDone) -> None:
        self.instruments.inner_steps.labels("applied" if event.applied else "skipped").inc()
        if math.isfinite(event.gradient_norm):
            self.instruments.gradient_norm.set(event.gradient_norm)
        step, self._step = self._step, None
        if step is None or not event.applied:
            return
        self.instruments.inner_step.inc()
        self.instruments.tokens.inc(step.tokens)
        self.instruments.micro_batches.labels("trained").inc(step.micro_batches)
        if step.tokens:
            self.instruments.loss.set(step.loss_sum / step.tokens)

    def _boundary(self, event: events.BoundaryTaken) -> None:
        self._boundary_taken = {event.outer_step: self._clock()}
        self.instruments.inner_step.set(0)
        self.instruments.outer_step.set(event.outer_step + 1)

    def _exchange_closed(self, effect: effects.CloseExchange) -> None:
        reason = bounded(effect.reason, CLOSE_REASONS)
        self.instruments.outer_steps.labels(str(effect.outcome), reason).inc()
        started = self._boundary_taken.pop(effect.outer_step, None)
        if effect.outcome is Outcome.PAIRED and started is not None:
            self.instruments.exchange.observe(self._clock() - started)

    def _offer_answered(self, event: events.OfferAnswered) -> None:
        answer = "lost" if event.answer is None else str(event.answer)
        self.instruments.offers.labels(bounded(answer, OFFER_ANSWERS)).inc()

    def _tensor_refused(self, event: events.TensorRefused) -> None:
        self.instruments.tensors_refused.labels(bounded(event.reason, ("not_finite", "refused"))).inc()

    def _correction_added(self, _: events.CorrectionAdded) -> None:
        self.instruments.corrections.labels("added").inc()


def _one_of(gauge: Any, values: Iterable[str], chosen: str) -> None:
    for value in values:
        gauge.labels(value).set(1 if value == chosen else 0)


def _total(metric: MetricWrapperBase, name: str = "", value: str = "") -> float:
    """Sum over a counter's series, those with label `name` = `value` only if given."""
    samples = (sample for family in metric.collect() for sample in family.samples if sample.name.endswith("_total"))
    return sum(sample.value for sample in samples if not name or sample.labels[name] == value)


def _touch(metric: MetricWrapperBase, values: Iterable[str]) -> None:
    for value in values:
        metric.labels(value)
