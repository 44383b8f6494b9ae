"""What the seats of the stage promised about their data, in a checkpoint's notes: it outlives records and processes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from noloco_node.core import limits

KEY = "promised"


def noted(promised: Iterable[tuple[int, int]]) -> dict[str, Any]:
    """Plain values: data_next by replica."""
    return {KEY: {str(replica): data_next for replica, data_next in promised}}


def recalled(notes: dict[str, Any]) -> tuple[tuple[int, int], ...]:
    """(replica, data_next), none beyond DATA_NEXT_MAX; nothing when the note is not one of ours."""
    try:
        found = ((int(replica), int(data_next)) for replica, data_next in notes.get(KEY, {}).items())
        return tuple((replica, min(data_next, limits.DATA_NEXT_MAX)) for replica, data_next in found)
    except (ArithmeticError, AttributeError, TypeError, ValueError):
        return ()
