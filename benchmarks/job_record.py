"""What a stand-in node writes down about its training thread, and the figures that follow from it.

One JSON line for each job (`what`, `begun_s`, `ended_s`, seconds of the machine's monotonic clock, which all processes
share) and for each tensor received. `boundary` also says the outer step, the bytes of x, and what the link had sent by
then. A cycle reaches from the beginning of one boundary to that of the next.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

COMPUTING = ("forward", "inner_step")
SAVING = "checkpoint"
EXCHANGING = {"boundary", "received", "verify", "correction"}
Line = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Cycle:
    """One outer step of one node. `exchanged_s`: when x was frozen here and when the partner's was here; None when it
    did not come in this cycle. `saved_s` is no part of the exchange: rivals save nothing. `parts`: seconds of the jobs
    of the exchange, and between them (`travel`: from the frozen x to the partner's; `accord`: from verdict to c)."""

    outer_step: int
    wall_s: float
    computed_s: float
    saved_s: float
    sent_bytes: int
    tensor_bytes: int
    exchanged_s: tuple[float, float] | None
    parts: dict[str, float]

    @property
    def blocked_s(self) -> float:
        """Time in which the training thread neither computed nor copied a checkpoint."""
        return max(0.0, self.wall_s - self.computed_s - self.saved_s)


def link_sent_bytes() -> int:
    """All that has left the network namespace this process is in, headers too."""
    counters = (line.split(":", 1) for line in Path("/proc/self/net/dev").read_text().splitlines() if ":" in line)
    return sum(int(numbers.split()[8]) for name, numbers in counters if name.strip() != "lo")


def read_lines(path: Path) -> list[Line]:
    """Complete lines only: the node may be writing."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def cycles_of(lines: Sequence[Line]) -> list[Cycle]:
    """In order; the cycle that has not ended is left out."""
    boundaries = [line for line in lines if line["what"] == "boundary"]
    return [_cycle(lines, this, following) for this, following in pairwise(boundaries)]


def _cycle(lines: Sequence[Line], this: Line, following: Line) -> Cycle:
    inside = [line for line in lines if this["begun_s"] <= line["begun_s"] < following["begun_s"]]
    received = [x for x in inside if x["what"] == "received" and x["outer_step"] == this["outer_step"]]
    return Cycle(
        this["outer_step"],
        following["begun_s"] - this["begun_s"],
        sum(_lasted_s(line) for line in inside if line["what"] in COMPUTING),
        sum(_lasted_s(line) for line in inside if line["what"] == SAVING),
        following["sent_bytes"] - this["sent_bytes"],
        this["tensor_bytes"],
        (this["ended_s"], received[0]["begun_s"]) if received else None,
        _parts(inside),
    )


def _parts(inside: Sequence[Line]) -> dict[str, float]:
    """Empty when something is missing: the exchange did not end paired in this cycle."""
    first = {line["what"]: line for line in reversed(inside)}
    if not first.keys() >= EXCHANGING:
        return {}
    boundary, received, verify, correction = (first[x] for x in ("boundary", "received", "verify", "correction"))
    return {
        "boundary": _lasted_s(boundary),
        "travel": received["begun_s"] - boundary["ended_s"],
        "verify": _lasted_s(verify),
        "accord": correction["begun_s"] - verify["ended_s"],
        "correction": _lasted_s(correction),
    }


def _lasted_s(line: Line) -> float:
    return float(line["ended_s"] - line["begun_s"])


# --- both nodes of a pair -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PairStep:
    """The same outer step of both nodes: the slower one counts, as among ranks that wait for one another."""

    cycles: tuple[Cycle, ...]

    @property
    def blocked_s(self) -> float:
        return max(cycle.blocked_s for cycle in self.cycles)

    @property
    def sent_bytes(self) -> int:
        return max(cycle.sent_bytes for cycle in self.cycles)

    @property
    def busy_share(self) -> float:
        """Share of the time, checkpoints left out, in which the slower node's training thread did not wait."""
        return min(1 - cycle.blocked_s / (cycle.wall_s - cycle.saved_s) for cycle in self.cycles)

    @property
    def is_exchanged(self) -> bool:
        return all(cycle.exchanged_s is not None for cycle in self.cycles)

    @property
    def goodput(self) -> float | None:
        """Bytes of x per second and direction, from the later boundary of the two to the later arrival."""
        spans = [cycle.exchanged_s for cycle in self.cycles if cycle.exchanged_s is not None]
        if len(spans) < len(self.cycles):
            return None
        lasted_s = max(here for _, here in spans) - max(frozen for frozen, _ in spans)
        return self.cycles[0].tensor_bytes / lasted_s if lasted_s > 0 else None


def pair_steps(records: Sequence[Sequence[Cycle]], warm_up: int = 1) -> list[PairStep]:
    """Outer steps that all nodes have a whole cycle of, less the first `warm_up`, in which links are still dialled."""
    by_step = [{cycle.outer_step: cycle for cycle in cycles} for cycles in records]
    shared = sorted(set.intersection(*(set(found) for found in by_step)))[warm_up:]
    return [PairStep(tuple(found[step] for found in by_step)) for step in shared]


def in_rounds(steps: Sequence[PairStep], fragments: int) -> list[tuple[PairStep, ...]]:
    """Runs of outer steps in which each fragment was exchanged once; an incomplete one is left out."""
    ends = range(fragments, len(steps) + 1, fragments)
    return [tuple(steps[end - fragments : end]) for end in ends]


def median_goodput(steps: Sequence[PairStep]) -> float | None:
    found = [step.goodput for step in steps if step.goodput is not None]
    return statistics.median(found) if found else None


def median_parts(steps: Sequence[PairStep]) -> dict[str, float]:
    """Seconds, of the slower node in each outer step."""
    found = [cycle.parts for step in steps for cycle in [max(step.cycles, key=lambda cycle: cycle.blocked_s)]]
    whole = [parts for parts in found if parts]
    return {name: statistics.median(parts[name] for parts in whole) for name in whole[0]} if whole else {}
