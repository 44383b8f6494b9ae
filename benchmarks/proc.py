"""CPU time and memory of a process and its children, from /proc."""

from __future__ import annotations

import os
from pathlib import Path

MIB = 1 << 20
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
UTIME, STIME = 11, 12  # fields of /proc/PID/stat after the name in brackets


def children_of(pid: int) -> list[int]:
    """Of all its threads."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(child) for child in (task / "children").read_text().split()]
    return found


def cpu_s(pid: int) -> float:
    """User and system time of all its threads since it began."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[UTIME]) + int(fields[STIME])) / TICKS_PER_S


def resident_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / MIB


class PeakMemory:
    """Resident memory of this process above what it had when this was made."""

    def __init__(self) -> None:
        self.begin_anew()
        self._before = _status_bytes("VmRSS")

    def begin_anew(self) -> None:
        """Let the kernel forget the most there was so far."""
        Path("/proc/self/clear_refs").write_text("5")

    def now_bytes(self) -> int:
        return _status_bytes("VmRSS") - self._before

    def grown_bytes(self) -> int:
        """The most since it began anew."""
        return _status_bytes("VmHWM") - self._before


def _status_bytes(key: str) -> int:
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[key].split()[0]) * 1024
