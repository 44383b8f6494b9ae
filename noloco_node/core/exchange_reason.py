"""Why an outer step closed as it did: a fixed set of short words, fit for a message and for a metric's label.

Owns the words only. What a partner gives as its reason is mapped into the same set, so no label grows by a stranger's
text.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Reason(StrEnum):
    """Of this side. Of the partner's side: see `partners_reason`."""

    COMMITTED = "committed"
    NO_PARTNER = "no partner"  # the odd seat, or nobody agreed
    PARTNER_LOST = "partner lost"  # the seat agreed with is vacant or has another holder
    NOT_BEGUN = "partner did not begin"  # no BEGIN within grace_s
    DEADLINE = "deadline"
    SEATS = "other seats"
    CODEC = "other codec"
    SHAPES = "other shapes"
    SIZE = "other size"
    WEIGHT = "other weight"
    NOT_FINITE = "own tensor not finite"
    DAMAGED = "tensor damaged"
    REFUSED = "tensor refused"
    RESTARTED = "partner restarted"
    REPEATED = "closed before a restart"  # the partner paired with an earlier incarnation
    DOUBT = "doubt"  # no word from the decider until the next boundary
    NEXT_STEP = "next step due"
    PASSED = "passed"  # an outer step that is over, or was never ours
    OTHER_PARTNER = "other partner"


_PARTNERS: Final = {str(reason): f"partner: {reason}" for reason in Reason}


def partners_reason(said: str) -> str:
    """The reason a partner gave with its SOLO, marked as the partner's; unknown words become one."""
    return _PARTNERS.get(said, "partner: other")
