"""The phases of a node as a table: what the machine does in each, and what ends it.

Owns the words for people (ARCHITECTURE.md is made from them) and which phase may follow which. The rules themselves
stand in `core.machine`; tests/core/test_phases.py drives the machine through every row and refuses a step that is not
here. Must not know anything else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from noloco_node.core.types import Phase


@dataclass(frozen=True, slots=True)
class PhaseEnd:
    """One way out: what happens, and the phase that follows."""

    when: str
    then: Phase


@dataclass(frozen=True, slots=True)
class PhaseRow:
    """`does`: what the node itself is busy with; `answers`: what its peers hear meanwhile."""

    phase: Phase
    does: str
    answers: str
    ends: tuple[PhaseEnd, ...]


_OUTRANKED = PhaseEnd("a node with an older claim holds the seat", Phase.JOINING)
_STOPPED = PhaseEnd("a stop is asked for", Phase.DRAINING)
_STOPPED_SILENTLY = PhaseEnd("a stop, nothing published yet", Phase.LEFT)
_DOUBLE = PhaseEnd("another process uses this key", Phase.LEFT)

PHASES: Final[tuple[PhaseRow, ...]] = (
    PhaseRow(
        Phase.JOINING,
        "looks for a vacant seat and claims it, or waits as a spare",
        "hops: BUSY; offers: LATER",
        (PhaseEnd("the seat is held", Phase.SYNCING), _STOPPED, _STOPPED_SILENTLY, _DOUBLE),
    ),
    PhaseRow(
        Phase.SYNCING,
        "reads its stage's seats; weights come from its own checkpoint, else from whoever has one of the stage, else "
        "from the seed; a stage that has trained waits for a holder of its checkpoint",
        "hops: BUSY; offers: LATER",
        (
            PhaseEnd("weights are in place", Phase.TRAINING),
            PhaseEnd("weights are in place, the run is over", Phase.DRAINING),
            _OUTRANKED,
            _STOPPED,
            _DOUBLE,
        ),
    ),
    PhaseRow(
        Phase.TRAINING,
        "forward, backward, inner steps; OFFERs for the next exchange; takes the boundary when it is due",
        "hops: a place in the queue, or BUSY; offers: AGREED, LATER or TAKEN",
        (
            PhaseEnd("boundary taken with a partner", Phase.EXCHANGING),
            PhaseEnd("the last outer step is closed and saved", Phase.DRAINING),
            PhaseEnd("too far behind the stage, or refused by two partners in a row", Phase.SYNCING),
            _OUTRANKED,
            _STOPPED,
            _DOUBLE,
        ),
    ),
    PhaseRow(
        Phase.EXCHANGING,
        "trades tensors; forward and backward go on into the open step, the optimizer waits",
        "as in training; a full step hands back what is queued",
        (
            PhaseEnd("closed, or the own deadline passed", Phase.TRAINING),
            _OUTRANKED,
            _STOPPED,
            _DOUBLE,
        ),
    ),
    PhaseRow(
        Phase.DRAINING,
        "stopped: lets end what is in flight, saves; run over: computes for others without counting, until the stage "
        "before is gone. Then the record says `leaving`",
        "stopped, hops: BUSY; run over: answered as replayed",
        (PhaseEnd("the last record is out, or took too long", Phase.LEFT), _DOUBLE),
    ),
    PhaseRow(Phase.LEFT, "nothing; the process ends", "nothing", ()),
)


def table_markdown() -> str:
    """The rows as a Markdown table, for ARCHITECTURE.md."""
    lines = ["| phase | the node | peers hear | ends when → then |", "|---|---|---|---|"]
    for row in PHASES:
        ends = "; ".join(f"{end.when} → {end.then.upper()}" for end in row.ends) or "never"
        lines.append(f"| {row.phase.upper()} | {row.does} | {row.answers} | {ends} |")
    return "\n".join(lines) + "\n"
