"""What the device does next: one job at a time, the first rule that has something.

The chain in `next` is the heart of a node: what changes parameters comes first and waits until nothing is between
forward and backward; while it waits no forward starts (DESIGN 5, invariant 7). Owns the job that is out and the
checkpoint that is due. Must not know: seats, peers, the end of a node beyond `stopping`.
"""

from __future__ import annotations

from collections.abc import Callable

from noloco_node.core import effects as do
from noloco_node.core.effects import Effect
from noloco_node.core.exchange_desk import ExchangeDesk
from noloco_node.core.flow import MicroBatchFlow
from noloco_node.core.outer_clock import OuterClock
from noloco_node.core.types import Admit, Settings

Job = Callable[[], list[Effect]]


class DevicePlan:
    """Jobs of one replica. `is_left_over` says that a starved replica takes its boundary with what it has,
    `promises` what a checkpoint keeps of the data promises of the stage's seats."""

    def __init__(
        self,
        settings: Settings,
        clock: OuterClock,
        flow: MicroBatchFlow,
        desk: ExchangeDesk,
        is_left_over: Callable[[], bool],
        promises: Callable[[], tuple[tuple[int, int], ...]] = tuple,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._flow = flow
        self._desk = desk
        self._is_left_over = is_left_over
        self._promises = promises
        self._job: Effect | None = None
        self._unsaved = False  # all parts were exchanged once more, the checkpoint of it is not on the way yet
        self._rounds = self._rounds_at(clock.outer_step)
        self._has_closed = False  # an outer step since the last checkpoint
        self._stopping = False
        self._now = 0.0
        self.is_saved_for_stop = False

    @property
    def is_idle(self) -> bool:
        """No job is out and no closed step waits for its checkpoint."""
        return self._job is None and not self.is_unsaved

    @property
    def is_unsaved(self) -> bool:
        """A checkpoint is due: of a whole round, or of whatever closed last in the run."""
        return self._unsaved or (self._has_closed and self._clock.is_over)

    def done(self) -> None:
        """The job that was out has ended."""
        self._job = None

    def note(self, effects: list[Effect]) -> list[Effect]:
        """When every fragment was exchanged once more, that is to be saved."""
        for effect in effects:
            if isinstance(effect, do.CloseExchange):
                rounds = self._rounds_at(effect.outer_step + 1)
                self._unsaved |= rounds > self._rounds
                self._rounds, self._has_closed = max(rounds, self._rounds), True
        return effects

    def _rounds_at(self, outer_steps: int) -> int:
        """How often each fragment was exchanged in so many outer steps."""
        return outer_steps // self._settings.fragments

    def next(self, now: float, *, stopping: bool) -> list[Effect]:
        """The next job, if the device is free. `stopping`: finish what is begun, save, begin nothing."""
        self._now, self._stopping = now, stopping
        if self._job is not None:
            return []
        for change in (self._correction, self._boundary, self._inner_step, self._checkpoint):
            job = change()
            if job is not None:
                return job() if self._flow.in_flight == 0 else self._backward()
        return self._backward() or self._forward()

    # --- what changes parameters (or copies them) ---------------------------------------------------

    def _correction(self) -> Job | None:
        due = self._desk.correction_due
        return None if due is None else lambda: self._out(do.AddCorrection(due))

    def _boundary(self) -> Job | None:
        if self._stopping or self._clock.is_over or self._desk.blocks_training(self._now) or not self._is_due():
            return None
        return self._hold if self._desk.awaits_answer else self._take_boundary

    def _hold(self) -> list[Effect]:
        """A boundary taken before the answer to our OFFER would leave the partner, who agreed, alone as well."""
        return []

    def _is_due(self) -> bool:
        if self._clock.is_timed:
            return self._clock.is_due(self._flow.seat.stage, self._now)
        between_steps = self._flow.gate.is_empty
        return between_steps and (self._clock.is_due(self._flow.seat.stage, self._now) or self._is_left_over())

    def _take_boundary(self) -> list[Effect]:
        ended = self.note(self._desk.before_boundary(self._now))
        return [*ended, *self._out(do.TakeBoundary(self._clock.outer_step))]

    def _inner_step(self) -> Job | None:
        """The open step is complete; at a stop, what is in it is not thrown away."""
        gate = self._flow.gate
        if self._desk.blocks_training(self._now):
            return None
        if self._stopping:
            return self._close_step if gate.totals.done and not self._flow.in_flight else None
        return self._close_step if gate.is_complete(self._now) and not self._clock.is_over else None

    def _close_step(self) -> list[Effect]:
        position = self._clock.position
        totals = self._flow.close_step()
        self._clock.step_closed(totals.positions)
        return self._out(do.RunInnerStep(totals.tokens, position, totals.loss_sum, totals.done))

    def _checkpoint(self) -> Job | None:
        """After each outer step, and once at a stop."""
        last = self._stopping and not self.is_saved_for_stop and not self._desk.is_open
        return self._save if self.is_unsaved or last else None

    def _save(self) -> list[Effect]:
        self._unsaved = self._has_closed = False
        self.is_saved_for_stop = self._stopping
        clock, position = self._clock, self._flow.data_position
        promised = self._promises()
        return self._out(
            do.SaveCheckpoint(clock.outer_step, clock.inner_step, position, self._desk.last_outcome, promised)
        )

    # --- what uses them -----------------------------------------------------------------------------

    def _backward(self) -> list[Effect]:
        work = self._flow.gate.next_backward()
        return [] if work is None else self._out(self._flow.start_backward(work))

    def _forward(self) -> list[Effect]:
        if self._stopping or (self._flow.is_first and self._clock.is_over):
            return []
        if self._settings.admit is Admit.ORDERED and self._desk.blocks_training(self._now):
            return []  # a forward before the correction would make the result depend on timing
        work = self._flow.gate.next_forward(self._now)
        return [] if work is None else self._out(self._flow.start_forward(work, self._clock.position, self._now))

    def _out(self, job: Effect) -> list[Effect]:
        self._job = job
        return [job]
