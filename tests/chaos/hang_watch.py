"""Which nodes stood still: alive, at work, and their outer step did not move for longer than it may.

Owns the time of each node's last progress. A node whose process is stopped is not alive; one whose link is cut is, and
must go on alone. Must not know processes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

AT_WORK = ("training", "exchanging")
GETTING_READY_S = 240.0  # to be up and have weights: longer is a hang as well, unless it is a spare
SPARE = "spare"


@dataclass(frozen=True, slots=True)
class Hang:
    node: str
    at_s: float
    stood_s: float
    phase: str
    outer_step: int
    waits_for: str


@dataclass(slots=True)
class Progress:
    since_s: float
    mark: tuple[Any, ...] = ()
    is_reported: bool = False
    is_stopped: bool = False


@dataclass(slots=True)
class HangWatch:
    """`limit_s`: two intervals and the limits of an exchange, plus how often the nodes are asked."""

    limit_s: float
    hangs: list[Hang] = field(default_factory=list)
    _seen: dict[str, Progress] = field(default_factory=dict)

    def heard(self, node: str, status: dict[str, Any], now_s: float) -> None:
        """The node answered. A new phase or outer step is progress."""
        mark = (status.get("phase"), status.get("outer_step"))
        if status.get("phase") in AT_WORK:
            mark = ("at work", mark[1])  # training and exchanging alternate without a step being closed
        seen = self._seen.setdefault(node, Progress(now_s))
        if seen.mark != mark:
            seen.since_s, seen.mark, seen.is_reported = now_s, mark, False
        self._judge(node, status, seen, now_s)

    def stopped(self, node: str) -> None:
        """SIGSTOP, or the process is gone on purpose."""
        if node in self._seen:
            self._seen[node].is_stopped = True

    def goes_on(self, node: str, now_s: float) -> None:
        """SIGCONT, or a new process: its time begins now."""
        self._seen[node] = Progress(now_s)

    def look(self, statuses: dict[str, dict[str, Any]], now_s: float) -> None:
        """Also of nodes that no longer answer: a process that hangs may be silent."""
        for node, seen in self._seen.items():
            self._judge(node, statuses.get(node, {}), seen, now_s)

    def _judge(self, node: str, status: dict[str, Any], seen: Progress, now_s: float) -> None:
        stood_s = now_s - seen.since_s
        if seen.is_stopped or seen.is_reported or stood_s <= self._allowed_s(status):
            return
        seen.is_reported = True
        phase, waits_for = str(status.get("phase", "")), str(status.get("waits_for") or "")
        self.hangs.append(
            Hang(node, round(now_s, 1), round(stood_s, 1), phase, int(status.get("outer_step") or 0), waits_for)
        )

    def _allowed_s(self, status: dict[str, Any]) -> float:
        if status.get("phase") in AT_WORK:
            return self.limit_s
        return float("inf") if SPARE in str(status.get("waits_for") or "") else GETTING_READY_S
