"""Peers that a list bars leave their seats, in this node's view and no other.

Owns how that is told to the machine: as the `leaving` record that such a peer would have sent. Should a later list
admit the peer again, its next record replaces that one. Must not know lists or signatures.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from noloco_node.core.seats import Roster
from noloco_node.core.types import PeerId, SeatRecord, SeatState


def departures(roster: Roster, barred: Callable[[PeerId], str], now: float) -> list[SeatRecord]:
    """One for every live record of a barred peer."""
    seated = (record for holder in roster.records(now) for record in roster.live(holder.seat, now))
    return [
        replace(record, state=SeatState.LEAVING, seq=record.seq + 1, expires=record.expires + 1)
        for record in seated
        if barred(record.peer)
    ]
