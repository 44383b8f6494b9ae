"""The fixed seat table: in which order its seats are looked up, and which of the vacant ones a newcomer takes.

Owns a cursor over the table, so that a table of any size costs a bounded number of look-ups at a time. Must not know:
records, time, who holds what. Source: DESIGN section 4.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from noloco_node.core import limits
from noloco_node.core import seed as draws
from noloco_node.core.types import PeerId, Seat, Settings


class SeatTable:
    """Walks the table replica by replica, so that any stretch of it covers all stages about equally.

    The walk begins at a place drawn from the peer id: newcomers of a large swarm look at different stretches.
    """

    def __init__(self, settings: Settings, peer: PeerId) -> None:
        self._num_stages = settings.num_stages
        self.size = settings.num_stages * settings.num_replicas
        self._next = draws.key64(settings.seed, "claim", "sweep", peer) % self.size

    @property
    def stretch(self) -> int:
        """Seats looked up at once, at most."""
        return min(self.size, limits.SWEEP_SEATS_PER_RENEWAL)

    def advance(self, first: Iterable[Seat] = ()) -> tuple[Seat, ...]:
        """The seats of `first` (at most half of the stretch), filled up with the next ones of the walk."""
        seats = dict.fromkeys(first)
        seats = dict.fromkeys(list(seats)[: max(1, self.stretch // 2)])
        for _ in range(self.size):
            if len(seats) >= self.stretch:
                break
            seats[Seat(self._next % self._num_stages, self._next // self._num_stages)] = None
            self._next = (self._next + 1) % self.size
        return tuple(seats)


def emptiest(seed: int, peer: PeerId, vacant: Iterable[Seat]) -> Seat | None:
    """A seat of the stage with most vacant seats; ties, and the seat within the stage, by a keyed hash of the peer."""
    seats = tuple(vacant)
    per_stage = Counter(seat.stage for seat in seats)

    def preference(seat: Seat) -> tuple[int, int, int]:
        of_stage = draws.key64(seed, "claim", "stage", peer, seat.stage)
        of_seat = draws.key64(seed, "claim", "seat", peer, seat.stage, seat.replica)
        return -per_stage[seat.stage], of_stage, of_seat

    return min(seats, key=preference, default=None)
