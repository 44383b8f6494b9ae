"""Checkpoints of seats that this node does not sit in: offered while nobody works at their stage (DESIGN section 4).

Without them such a stage could not be taken up again. Owns which local checkpoints there are. Must not know claims.
"""

from __future__ import annotations

from collections.abc import Mapping

from noloco_node.core import limits
from noloco_node.core.effects import AnnounceCheckpoint, Effect
from noloco_node.core.seats import Roster
from noloco_node.core.types import Seat


class KeptOffers:
    """`seats`: of local checkpoints, the newest first, at most KEPT_ANNOUNCED_MAX."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._steps: dict[Seat, int] = {}
        self.seats: tuple[Seat, ...] = ()

    def keep(self, steps: Mapping[Seat, int]) -> None:
        """Outer step of the newest checkpoint by seat."""
        self._steps = dict(steps)
        self.seats = tuple(sorted(steps, key=lambda seat: -steps[seat]))[: limits.KEPT_ANNOUNCED_MAX]

    def due(self, own: Seat | None, now: float) -> list[Effect]:
        """What to announce at a renewal; `own` is the seat we have or claim."""
        return [
            AnnounceCheckpoint(seat, self._steps[seat], self._roster.data_next(seat))
            for seat in self.seats
            if seat != own and self._steps[seat] >= 1 and not self._is_at_work(seat.stage, now)
        ]

    def _is_at_work(self, stage: int, now: float) -> bool:
        return any(record.checkpoint_step >= 1 for record in self._roster.stage_active(stage, now))
