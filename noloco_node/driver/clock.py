"""The node's own clock: seconds since the machine was started, those it slept through included (DESIGN 4).

Leases and outer steps go on while a laptop is suspended; `time.monotonic` stands still meanwhile.
"""

from __future__ import annotations

import time


def running_s() -> float:
    """Never goes back. Where the system has no CLOCK_BOOTTIME it is the monotonic clock."""
    boottime = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boottime is None else time.clock_gettime(boottime)
