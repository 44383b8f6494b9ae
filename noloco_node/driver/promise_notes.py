"""What the seats of the stage promised about their data, in a checkpoint's notes: it outlives records and processes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

KEY = "promised"


def noted(promised: Iterable[tuple[int, int]]) -> dict[str, Any]:
    """Plain values: data_next by replica."""
    return {KEY: {str(replica): data_next for replica, data_next in promised}}


def recalled(notes: dict[str, Any]) -> tuple[tuple[int, int], ...]:
    """(replica, data_next); nothing when the note is not one of ours."""
    try:
        return tuple((int(replica), int(data_next)) for replica, data_next in notes.get(KEY, {}).items())
    except (AttributeError, TypeError, ValueError):
        return ()
