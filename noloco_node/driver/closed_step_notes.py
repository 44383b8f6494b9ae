"""The newest closed outer step in a checkpoint's notes: a partner left in doubt has its answer after a restart."""

from __future__ import annotations

from typing import Any

from noloco_node.core.types import ClosedStep, Outcome, PeerId, Seat

KEY = "closed"


def noted(closed: ClosedStep | None) -> dict[str, Any]:
    """Plain values for a checkpoint's notes; nothing before the first closed step."""
    if closed is None:
        return {}
    seat = None if closed.seat is None else [closed.seat.stage, closed.seat.replica]
    return {
        KEY: {
            "outer_step": closed.outer_step,
            "outcome": str(closed.outcome),
            "reason": closed.reason,
            "seat": seat,
            "peer": closed.peer,
        }
    }


def recalled(notes: dict[str, Any]) -> ClosedStep | None:
    """The step that was noted; None when there is none, or the note is not one of ours."""
    try:
        note = notes[KEY]
        seat = None if note["seat"] is None else Seat(*map(int, note["seat"]))
        peer = None if note["peer"] is None else PeerId(str(note["peer"]))
        return ClosedStep(int(note["outer_step"]), Outcome(note["outcome"]), str(note["reason"]), seat, peer)
    except (KeyError, TypeError, ValueError):
        return None
