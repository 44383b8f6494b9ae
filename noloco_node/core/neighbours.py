"""Whom a node shows its record when the DHT is gone: peers of its own stage and the two beside it.

Owns the draw of a few of them, another few each time. Must not know how a record is shown. Source: DESIGN section 4.
"""

from __future__ import annotations

from collections.abc import Iterable

from noloco_node.core import limits
from noloco_node.core import seed as draws
from noloco_node.core.types import PeerId, Seat, SeatRecord


def neighbours(seed: int, own: PeerId, seat: Seat, records: Iterable[SeatRecord], turn: int) -> tuple[PeerId, ...]:
    """At most SHOWN_MAX peers of those records; `turn` changes the draw."""
    near = {record.peer for record in records if record.peer != own and abs(record.seat.stage - seat.stage) <= 1}
    return tuple(sorted(near, key=lambda peer: draws.key64(seed, "show", own, peer, turn))[: limits.SHOWN_MAX])
