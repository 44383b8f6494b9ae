"""What holders of a stage-0 seat hand down: where in its data a successor begins (DESIGN section 4).

Owns the choice between what our own checkpoint, the seat's records and a donor say. Must not know how they came.
"""

from __future__ import annotations

from noloco_node.core import limits
from noloco_node.core.events import StateLoaded
from noloco_node.core.seats import Roster
from noloco_node.core.types import PeerId, Seat


def first_number(roster: Roster, seat: Seat, loaded: StateLoaded, own: PeerId) -> int:
    """A successor begins where the last holder promised; our own checkpoint knows the exact number.

    A donor may say any number: none beyond DATA_NEXT_MAX is heard.
    """
    for replica, data_next in loaded.promised:
        roster.note_promise(Seat(seat.stage, replica), data_next)
    said = min(loaded.data_next, limits.DATA_NEXT_MAX)
    if seat.stage != 0:
        return said
    if loaded.source == "checkpoint":
        return max(said, roster.data_next(seat, apart_from=own))
    roster.note_promise(seat, said)
    return roster.data_next(seat)


def promises_of_others(roster: Roster, seat: Seat | None, own: PeerId) -> tuple[tuple[int, int], ...]:
    """(replica, data_next) of stage 0, for a checkpoint. What we promise for our seat is left out: the exact number is
    in the checkpoint; what we promised for seats held before is in."""
    if seat is None or seat.stage != 0:
        return ()
    found = roster.promises(0) | {seat.replica: roster.data_next(seat, apart_from=own)}
    return tuple((replica, found[replica]) for replica in sorted(found) if found[replica] > 0)
