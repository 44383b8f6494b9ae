"""The node's own clocks: one that never stands still, and unix time that never jumps (DESIGN 4).

Leases and outer steps go on while a laptop is suspended; `time.monotonic` stands still meanwhile. Records hold unix
times: a wall clock that is set while the node runs must neither end its lease nor make it a liar.
"""

from __future__ import annotations

import time
from collections.abc import Callable


def running_s() -> float:
    """Seconds since the machine was started, those it slept through included. Never goes back.

    Where the system has no CLOCK_BOOTTIME it is the monotonic clock.
    """
    boottime = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boottime is None else time.clock_gettime(boottime)


class SteadyClock:
    """Unix time: the wall clock's when this was made, or at the last `follow`, run on by `running`."""

    def __init__(self, wall: Callable[[], float] = time.time, running: Callable[[], float] = running_s) -> None:
        self._wall = wall
        self._running = running
        self._began_s = wall() - running()

    def now_s(self) -> float:
        return self._began_s + self._running()

    def now_ms(self) -> int:
        return int(self.now_s() * 1000)

    @property
    def jump_s(self) -> float:
        """How far the wall clock has run ahead of this one."""
        return self._wall() - self.now_s()

    def follow(self) -> None:
        """Take the wall clock's time after all."""
        self._began_s = self._wall() - self._running()
