"""Is this replica fit to mix with its stage? Behind by too many outer steps, or refused by others, it is not.

Owns the comparison with the others' checkpoints and the count of refusals. The machine asks for newer weights when
`reason` is set (DESIGN section 4). Must not know how they are had. Times: monotonic seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median_high

from noloco_node.core import limits
from noloco_node.core.effects import CloseExchange
from noloco_node.core.exchange_reason import Reason, partners_reason
from noloco_node.core.types import Outcome, PeerId, SeatRecord, SeatState

# The norm of a difference is the same on both sides: whichever of the two looks first refuses.
REFUSALS = frozenset({str(Reason.REFUSED), partners_reason(Reason.REFUSED)})


class Standing:
    """Of one replica, since its state was loaded."""

    def __init__(self, stale_steps_max: int = limits.STALE_STEPS_MAX) -> None:
        self._stale_steps_max = stale_steps_max
        self._outer_step = 0  # up to which the weights are trained
        self._ahead = 0  # how far the stage is
        self._refused: set[PeerId] = set()  # partners with whom nothing could be traded since the last pair
        self._doubts_until: float | None = None  # the clock ran away from us: first look who is ahead
        self._doubted_at = -1

    # --- what happened ------------------------------------------------------------------------------

    def loaded(self, outer_step: int) -> None:
        self._outer_step, self._ahead = outer_step, 0
        self._refused, self._doubts_until, self._doubted_at = set(), None, -1

    def reached(self, outer_step: int) -> None:
        """A boundary was taken."""
        self._outer_step = outer_step

    def is_far_ahead(self, record: SeatRecord, stage: int) -> bool:
        """A replica at work in our stage whose checkpoint is too many outer steps newer than our weights."""
        is_near = record.checkpoint_step <= self._outer_step + self._stale_steps_max
        return record.seat.stage == stage and record.state is SeatState.ACTIVE and not is_near

    def compare(self, checkpoint_steps: Sequence[int]) -> None:
        """Those of the stage's other replicas: the median counts, so that no single word sends us off."""
        self._ahead = median_high(checkpoint_steps) if checkpoint_steps else 0

    def closed(self, step: CloseExchange) -> None:
        if step.outcome is Outcome.PAIRED:
            self._refused.clear()
        elif step.reason in REFUSALS and step.peer is not None:
            self._refused.add(step.peer)

    # --- the clock ran away -------------------------------------------------------------------------

    def begins_to_doubt(self, lag: int, now: float) -> bool:
        """True once when the running outer step is far ahead of ours: the stage is read before a boundary is taken."""
        if self._doubts_until is not None and now >= self._doubts_until:
            self._doubts_until = None
        if lag <= self._stale_steps_max or self._doubted_at == self._outer_step:
            return False
        self._doubts_until, self._doubted_at = now + limits.STALE_LOOK_S, self._outer_step
        return True

    def looked(self) -> None:
        """The stage was read."""
        self._doubts_until = None

    @property
    def is_unsure(self) -> bool:
        """Begin nothing on the device until the stage was read."""
        return self._doubts_until is not None

    @property
    def next_deadline(self) -> float | None:
        return self._doubts_until

    @property
    def reason(self) -> str:
        """Why newer weights are needed; "" when they are not."""
        if self._ahead > self._outer_step + self._stale_steps_max:
            return f"{self._ahead - self._outer_step} outer steps behind the stage: fetching its state"
        if len(self._refused) >= limits.REFUSALS_MAX:
            return "refused by two partners in a row: fetching the stage's state"
        return ""
