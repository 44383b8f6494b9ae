"""Admission of micro-batches into the open inner step of one replica (DESIGN 5).

Owns which micro-batch is admitted, what is between forward and backward, and when the step may close. Must not know
where micro-batches come from or go to (`core.flow`) or who computes. Parameters may change only while `in_flight`
is 0: the machine asks before every job that changes them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto

from noloco_node.core.types import Admit, MicroBatchId


class WorkState(Enum):
    QUEUED = auto()  # accepted, not admitted yet
    FORWARD = auto()  # on the device, forward
    AWAY = auto()  # the activation is with the next stage
    RETURNED = auto()  # the gradient is here
    BACKWARD = auto()  # on the device, backward


IN_FLIGHT = (WorkState.FORWARD, WorkState.AWAY, WorkState.RETURNED, WorkState.BACKWARD)


@dataclass(slots=True)
class Work:
    """One visit of a micro-batch to this replica. `late`: its graph was dropped, a forward is owed before backward."""

    call: int
    id: MicroBatchId
    tokens: int
    position: int
    own: bool
    arrived_s: float
    count: bool = True
    state: WorkState = WorkState.QUEUED
    late: bool = False
    orphaned: bool = False  # its caller is gone
    away_since_s: float = 0.0
    loss_sum: float = 0.0
    loss_tokens: int = 0


@dataclass(slots=True)
class StepTotals:
    """What the open step has gathered: `tokens` divide the gradient sums; `positions` are the origins' places."""

    admitted: int = 0
    done: int = 0
    tokens: int = 0
    loss_sum: float = 0.0

    positions: tuple[int, ...] = ()


class StepGate:
    """Queue and open step of one replica.

    `micro_batches` is M; `inflight_max` bounds what is between forward and backward; in `ordered` mode
    `expect(ids)` names the ids of the open step and both forwards and backwards follow that order.
    """

    def __init__(
        self, micro_batches: int, inflight_max: int, admit: Admit, grace_s: float, idle_close_s: float
    ) -> None:
        self._m = micro_batches
        self._inflight_max = inflight_max
        self._ordered = admit is Admit.ORDERED
        self._grace_s = grace_s
        self._idle_close_s = max(grace_s, idle_close_s) if self._ordered else idle_close_s
        self._queue: list[Work] = []
        self._open: list[Work] = []  # admitted and not finished, in order of admission
        self._late: list[Work] = []  # graph dropped; not part of the open step until the gradient comes
        self._expected: list[MicroBatchId] = []
        self._waiting_since_s: float | None = None  # ordered: since when the next expected id is missing
        self._active_s = 0.0  # when something was last admitted or finished
        self.totals = StepTotals()

    # --- what is here -----------------------------------------------------------------------------

    @property
    def queued(self) -> int:
        return len(self._queue)

    @property
    def in_flight(self) -> int:
        """Micro-batches that hold a graph here: between forward and backward."""
        return sum(work.state in IN_FLIGHT and not work.late for work in self._open)

    @property
    def is_full(self) -> bool:
        """M are admitted: what else comes waits for the next step."""
        return self.totals.admitted >= self._m

    @property
    def works(self) -> list[Work]:
        return [*self._queue, *self._open, *self._late]

    @property
    def is_empty(self) -> bool:
        """Nothing admitted and nothing gathered: a boundary may fall here without cutting a step."""
        return not self._open and self.totals.admitted == 0

    # --- in ---------------------------------------------------------------------------------------

    def expect(self, ids: Iterable[MicroBatchId]) -> None:
        """Ordered mode: the ids of the step now opening, in index order."""
        self._expected = list(ids)
        self._waiting_since_s = None

    def enqueue(self, work: Work) -> None:
        self._queue.append(work)

    def is_expected(self, micro_batch: MicroBatchId) -> bool:
        return micro_batch in self._expected

    # --- on to the device -------------------------------------------------------------------------

    def next_forward(self, now: float) -> Work | None:
        """The micro-batch to admit and run forward now, or None."""
        if self.in_flight >= self._inflight_max or self.is_full:
            return None
        return self._next_expected(now) if self._ordered else (self._queue[0] if self._queue else None)

    def admit(self, work: Work, now: float) -> None:
        self._queue.remove(work)
        work.state = WorkState.FORWARD
        self._open.append(work)
        self._active_s = now
        if work.count:
            self.totals.admitted += 1
        if self._ordered and self._expected and work.id == self._expected[0]:
            self._expected.pop(0)
            self._waiting_since_s = None

    def _next_expected(self, now: float) -> Work | None:
        """Ordered: the queued micro-batch that is next in index order; one that others wait for longer than grace_s is
        skipped."""
        stray = next((w for w in self._queue if not w.count), None)
        if stray is not None:
            return stray
        while self._expected:
            found = next((w for w in self._queue if w.id == self._expected[0]), None)
            if found is not None:
                return found
            if not self._queue:
                self._waiting_since_s = None  # nothing comes at all: the run has not begun, or waits elsewhere
                return None
            if self._waiting_since_s is None:
                self._waiting_since_s = now
            if now < self._waiting_since_s + self._grace_s:
                return None
            self._expected.pop(0)
            self._waiting_since_s = None
            self.totals.admitted += 1  # its place stays empty
        return None

    def next_backward(self) -> Work | None:
        """A returned gradient to run: the first come, in ordered mode only in order of admission; late ones last."""
        if self._ordered:
            pending = [w for w in self._open if w.state is not WorkState.BACKWARD]
            if pending and pending[0].state is WorkState.RETURNED:
                return pending[0]
        else:
            returned = next((w for w in self._open if w.state is WorkState.RETURNED), None)
            if returned is not None:
                return returned
        return next((w for w in self._late if w.state is WorkState.RETURNED), None)

    # --- out --------------------------------------------------------------------------------------

    def finish(self, work: Work, now: float) -> None:
        """Backward ran: its gradient is in the open step (when it counts)."""
        self.remove(work)
        self._active_s = now
        if not work.count:
            return
        totals = self.totals
        totals.done += 1
        totals.tokens += work.tokens
        totals.loss_sum += work.loss_sum
        totals.positions += (work.position,)

    def remove(self, work: Work) -> None:
        """Finished, dropped or given up: it no longer holds the step."""
        for place in (self._queue, self._open, self._late):
            if work in place:
                place.remove(work)

    def set_late(self, work: Work) -> None:
        """Its gradient is overdue: the graph goes, the step need not wait for it."""
        work.late = True
        self._open.remove(work)
        self._late.append(work)

    # --- closing ----------------------------------------------------------------------------------

    def is_complete(self, now: float) -> bool:
        """All admitted are done, given up or late, and they are M or nothing new came for idle_close_s.

        A step all of whose micro-batches were lost closes too, without a gradient.
        """
        if self.is_empty or self._open:
            return False
        return self.is_full or now >= self._active_s + self._idle_close_s

    def close(self) -> StepTotals:
        """End the step, return what it gathered, open the next."""
        totals, self.totals = self.totals, StepTotals()
        return totals

    def is_starved(self, now: float) -> bool:
        """Nothing here and nothing came for idle_close_s."""
        return self.is_empty and not self._queue and now >= self._active_s + self._idle_close_s

    @property
    def starves_at_s(self) -> float:
        return self._active_s + self._idle_close_s

    def next_deadline(self, now: float) -> float | None:
        """When time alone may change something: the idle close, or a missing id's grace. One that is past has had its
        effect: a step that is complete waits for something else."""
        times = []
        if not self._open and 0 < self.totals.admitted < self._m:
            times.append(self._active_s + self._idle_close_s)
        if self._waiting_since_s is not None:
            times.append(self._waiting_since_s + self._grace_s)
        return min((time for time in times if time > now), default=None)
