"""Where a replica stands: outer step, inner step, schedule position, and when its next boundary is due.

Owns the two counters and the choice of clock (DESIGN 5a, When). Must not know: partners, micro-batches beyond their
origins' positions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from noloco_node.core import schedule
from noloco_node.core.types import Admit, Clock, Settings

NOT_BEGUN = "outer step 0 has not begun"


class OuterClock:
    """`outer_step` counts the closed ones, so it is the number of the one worked on. `start_s`: monotonic start of
    outer step 0 on the time clock."""

    def __init__(self, settings: Settings, start_s: float) -> None:
        self._settings = settings
        on_time = settings.clock is Clock.TIME
        self._time = schedule.TimeClock(start_s, settings.outer_interval_s) if on_time else None
        self._positions: tuple[int, ...] = ()  # origins' positions in the last closed inner step
        self.outer_step = 0
        self.inner_step = 0  # optimizer steps since the boundary

    def load(self, outer_step: int, inner_step: int, now: float) -> None:
        """Go on from a loaded state; on the time clock the running interval counts."""
        running = 0 if self._time is None else self._time.running(now)
        self.outer_step, self.inner_step, self._positions = max(outer_step, running), inner_step, ()

    def follow(self, jump_s: float) -> None:
        """Unix time was moved by `jump_s`, so outer step 0 began as much earlier. Steps taken stay taken."""
        if self._time is not None:
            self._time = replace(self._time, start_s=self._time.start_s - jump_s)

    @property
    def position(self) -> int:
        return schedule.position(self.outer_step, self.inner_step, self._settings.inner_steps)

    @property
    def is_over(self) -> bool:
        """The run has an end and all its outer steps are taken."""
        total = self._settings.total_outer_steps
        return total > 0 and self.outer_step >= total

    @property
    def due_s(self) -> float | None:
        """On the time clock: when the boundary is due."""
        return None if self._time is None else self._time.due_s(self.outer_step)

    def due_after(self, now: float) -> float | None:
        """When the boundary is due, if that is still to come."""
        return self.due_s if self.due_s is not None and self.due_s > now else None

    def opens_after(self, now: float) -> float | None:
        """On the time clock: when outer step 0 begins, if that is still to come. Nobody trains before it."""
        if self._time is None or self.outer_step or now >= self._time.start_s:
            return None
        return self._time.start_s

    @property
    def is_timed(self) -> bool:
        return self._time is not None

    def lag(self, now: float) -> int:
        """On the time clock: how many outer steps lie between the running one and the one worked on."""
        return 0 if self._time is None else self._time.running(now) - self.outer_step

    def step_closed(self, positions: tuple[int, ...]) -> None:
        self._positions = positions

    def is_due(self, stage: int, now: float) -> bool:
        if self._time is not None:
            return self._time.due(self.outer_step, now)
        steps = schedule.StepsClock(stage, self._settings.inner_steps)
        return steps.due(self.outer_step, self.inner_step, self._positions)

    def advance(self, stage: int, others: Iterable[int], now: float) -> None:
        """A boundary was taken. `others`: outer steps that active replicas of the stage show."""
        if self._time is not None:
            self.outer_step = self._time.after(self.outer_step, now)
        elif self._settings.admit is Admit.ORDERED:
            self.outer_step += 1
        else:
            steps = schedule.StepsClock(stage, self._settings.inner_steps)
            self.outer_step = steps.after(self.outer_step, others)
        self.inner_step, self._positions = 0, ()
