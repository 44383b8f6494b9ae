"""The clock of a simulated swarm: things happen when the heap says so.

Owns `now` (seconds) and the order of what is due at the same moment: first scheduled, first run.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

Action = Callable[[], None]


class VirtualClock:
    """`now` moves only in `run`."""

    def __init__(self, start_s: float = 1000.0) -> None:
        self.now = start_s
        self._heap: list[tuple[float, int, Action]] = []
        self._count = 0

    def at(self, when_s: float, action: Action) -> None:
        """Run `action` at that time, or at once when it is past."""
        self._count += 1
        heapq.heappush(self._heap, (max(when_s, self.now), self._count, action))

    def after(self, delay_s: float, action: Action) -> None:
        self._count += 1
        heapq.heappush(self._heap, (self.now + delay_s, self._count, action))

    def run(self, until_s: float, stop: Callable[[], bool] = lambda: False) -> None:
        """Until the time has come or `stop` says so; `now` is then the end or the moment of the stop."""
        heap = self._heap
        while heap and heap[0][0] <= until_s:
            if stop():
                return
            self.now, _, action = heapq.heappop(heap)
            action()
        if not stop():
            self.now = max(self.now, until_s)
