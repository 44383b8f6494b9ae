"""How far stage 0 may draw from its data: what its newest record promised a successor (DESIGN section 4).

Owns the promise and its pace: the next one reaches as far as the replica draws in about one renewal, so that a
successor, who begins at the promise, skips no more than that. A micro-batch at or beyond the promise is not drawn
before a record that says more is out. Must not know records, seats, or who reads them. Times: monotonic seconds.
"""

from __future__ import annotations

import math

from noloco_node.core import limits


class DataPromise:
    """`first`: the number drawn first. Until the first record is out nothing is promised and nothing may be drawn."""

    def __init__(self, first: int, renew_s: float, now: float) -> None:
        self._renew_s = renew_s
        self._told = first
        self._span = 0  # promised beyond what was drawn when it was told
        self._drawn, self._since_s = first, now
        self._asked: tuple[int, float] | None = None  # a record on its way to the others, and since when

    def limit(self, now: float) -> int:
        """The first number that may not be drawn. A record whose store takes too long counts as told."""
        if self._asked is not None and now >= self._asked[1] + limits.PROMISE_WAIT_S:
            return max(self._told, self._asked[0])
        return self._told

    def next(self, drawn: int, now: float) -> int:
        """What the next record promises; `drawn` is the number drawn next."""
        pace = (drawn - self._drawn) / max(now - self._since_s, limits.PACE_WINDOW_MIN_S)
        ahead = min(math.ceil(pace * self._renew_s), limits.DATA_PROMISE_MAX)
        return max(self._told, drawn + max(ahead, limits.DATA_PROMISE_MIN))

    def is_short(self, drawn: int, now: float) -> bool:
        """Nearly used up, and no longer promise on its way."""
        pending = self._asked is not None and now < self._asked[1] + limits.PROMISE_WAIT_S
        return not pending and drawn >= self.limit(now) - self._span // 4

    def asked(self, promised: int, now: float) -> None:
        """A record that says so is being stored."""
        self._asked = promised, now

    def told(self, promised: int, drawn: int, now: float) -> None:
        """It is out."""
        self._asked = None
        self._told = max(self._told, promised)
        self._span = max(0, self._told - drawn)
        self._drawn, self._since_s = drawn, now

    def next_deadline(self, now: float) -> float | None:
        """When a record that is slow to be stored counts as told."""
        if self._asked is None:
            return None
        due_s = self._asked[1] + limits.PROMISE_WAIT_S
        return due_s if due_s > now else None
