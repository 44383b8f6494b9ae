"""When an outer step is due, which one comes next, and where a replica stands on the learning-rate schedule.

Owns the two clocks of DESIGN 5a ("When") and the schedule position of DESIGN 5. Must not know: partners, devices, wall
clocks: times are seconds of whatever clock the caller uses for all of them. k is the outer step, j the inner steps
since the last boundary, H the inner steps of an outer step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


def position(outer_step: int, inner_step: int, inner_steps: int) -> int:
    """k*H + min(j, H - 1): a place on the schedule that a slow or fast replica cannot run away from."""
    return outer_step * inner_steps + min(inner_step, inner_steps - 1)


@dataclass(frozen=True, slots=True)
class TimeClock:
    """Outer step k is due at start_s + (k + 1) * outer_interval_s, for every stage alike."""

    start_s: float
    outer_interval_s: float

    def due_s(self, outer_step: int) -> float:
        return self.start_s + (outer_step + 1) * self.outer_interval_s

    def due(self, outer_step: int, now: float) -> bool:
        return now >= self.due_s(outer_step)

    def running(self, now: float) -> int:
        """Number of the interval that `now` lies in: the outer step whose inner phase runs. 0 before the start."""
        interval = max(0, math.floor((now - self.start_s) / self.outer_interval_s))
        return interval + 1 if self.due(interval, now) else interval  # the division may round down

    def after(self, outer_step: int, now: float) -> int:
        """The outer step that follows a boundary taken at `now`: the running one; missed ones are skipped."""
        return max(outer_step + 1, self.running(now))


@dataclass(frozen=True, slots=True)
class StepsClock:
    """Stage 0 counts its own inner steps; later stages follow the positions of the micro-batches they trained on."""

    stage: int
    inner_steps: int

    def due(self, outer_step: int, inner_step: int, origin_positions: Sequence[int]) -> bool:
        """Steps closed since the boundary, and the positions of the micro-batches in the last of them."""
        if self.stage == 0:
            return inner_step >= self.inner_steps
        last = (outer_step + 1) * self.inner_steps - 1
        return bool(origin_positions) and median(origin_positions) >= last

    def after(self, outer_step: int, known_steps: Iterable[int]) -> int:
        """The outer step that follows: max(k + 1, median k of the stage's active records known)."""
        known = list(known_steps)
        return max(outer_step + 1, median(known)) if known else outer_step + 1


def median(values: Iterable[int]) -> int:
    """Lower median: the greatest value that more than half of the values reach."""
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2]


def learning_rate_factor(position: int, warmup_steps: int, total_steps: int, final_ratio: float) -> float:
    """Share of the peak learning rate at a schedule position: linear warm-up, then half a cosine to `final_ratio`.

    (p + 1) / warmup while p < warmup, so the first step already moves; final_ratio from `total_steps` on.
    """
    if position < warmup_steps:
        return (position + 1) / warmup_steps
    done = min(1.0, (position - warmup_steps) / max(1, total_steps - warmup_steps))
    return final_ratio + (1 - final_ratio) * (1 + math.cos(math.pi * done)) / 2
