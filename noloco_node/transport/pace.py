"""Whether a stream of a state moves fast enough to be worth its place.

Owns one running window of bytes and seconds. Must not know what is moved, nor who pays for a slow one.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from noloco_node.core import limits


class Pace:
    """Bytes moved, judged each STATE_RATE_WINDOW_S against STATE_RATE_MIN bytes a second."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self.began_s = now()
        self._moved_bytes = 0

    def moved(self, size_bytes: int) -> None:
        self._moved_bytes += size_bytes

    def is_too_slow(self) -> bool:
        """At the end of a window: less came than had to. Before that False; each window begins anew."""
        lasted_s = self._now() - self.began_s
        if lasted_s < limits.STATE_RATE_WINDOW_S:
            return False
        slow = self._moved_bytes < limits.STATE_RATE_MIN * lasted_s
        self.began_s, self._moved_bytes = self._now(), 0
        return slow
