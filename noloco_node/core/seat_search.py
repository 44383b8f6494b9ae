"""Which seats a node looks up, and which of the vacant ones it takes.

Owns a walk over the fixed seat table, so that a table of any size costs a bounded number of look-ups at a time, and
the choice among what a look-up showed. Must not know: the steps of a claim, when to look again. Source: DESIGN 4.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from noloco_node.core import limits
from noloco_node.core import seed as draws
from noloco_node.core.seats import Roster
from noloco_node.core.types import PeerId, Seat, SeatRecord, Settings


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
        named = list(dict.fromkeys(first))[: max(1, self.stretch // 2)]
        seats = dict.fromkeys(named)
        for _ in range(self.size):
            if len(seats) >= self.stretch:
                break
            seats[Seat(self._next % self._num_stages, self._next // self._num_stages)] = None
            self._next = (self._next + 1) % self.size
        return tuple(seats)


class SeatSearch:
    """A node's search for a seat: only the `wanted` one, or all of the table, stretch by stretch.

    `kept`: seats of local checkpoints, the newest first; they are looked up first. `stages`: those that fit the
    device (None: all); seats of others are never taken.
    """

    def __init__(
        self,
        settings: Settings,
        peer: PeerId,
        incarnation: int,
        wanted: Seat | None,
        table: SeatTable,
        roster: Roster,
        stages: frozenset[int] | None = None,
    ) -> None:
        self.wanted = wanted
        self.kept: tuple[Seat, ...] = ()
        self._settings = settings
        self._peer = peer
        self._incarnation = incarnation
        self._table = table
        self._roster = roster
        self._stages = stages
        self._seen: tuple[Seat, ...] = ()  # by the latest look, those that fit
        self._looked = 0  # seats seen since the search began

    def begin(self) -> tuple[Seat, ...]:
        """Seats to look up first."""
        self._looked = 0
        return self.go_on()

    def go_on(self) -> tuple[Seat, ...]:
        """Seats to look up next."""
        if self.wanted is not None:
            looked: tuple[Seat, ...] = (self.wanted,)
        else:
            looked = self._table.advance(() if self._looked else self.kept)
        self._seen = tuple(seat for seat in looked if self._fits(seat))
        self._looked += len(looked)
        return looked

    @property
    def ended(self) -> bool:
        """Every seat in question was looked up."""
        return self.wanted is not None or self._looked >= self._table.size

    def left_behind(self, now: float) -> SeatRecord | None:
        """The live record of an earlier process of this node in a seat just seen: the seat is still its own."""
        holders = (self._roster.holder(seat, now) for seat in self._seen)
        ours = (h for h in holders if h and h.peer == self._peer and h.incarnation != self._incarnation)
        return next(ours, None)

    def pick(self, now: float) -> Seat | None:
        """A vacant seat of those just seen.

        First of a stage where nobody works and of which we have a checkpoint: it is for us to bring the stage back.
        Then the seat of the newest checkpoint, then one of the emptiest stage.
        """
        vacant = [seat for seat in self._seen if self._roster.claimable(seat, now)]
        own = [seat for seat in self.kept if self._fits(seat)]
        for seat in (seat for seat in own if not self._roster.stage_active(seat.stage, now)):
            of_stage = [free for free in vacant if free.stage == seat.stage]
            if of_stage:
                return seat if seat in of_stage else emptiest(self._settings.seed, self._peer, of_stage)
        if own and own[0] in vacant:
            return own[0]
        return emptiest(self._settings.seed, self._peer, vacant)

    def taken(self, now: float) -> bool:
        """All seats just seen have a holder."""
        return all(self._roster.holder(seat, now) for seat in self._seen)

    def free_at(self, now: float) -> float:
        """When the first of the seats just seen may be claimed, if no record of it comes any more."""
        return min((self._roster.claimable_at(seat, now) for seat in self._seen), default=math.inf)

    def _fits(self, seat: Seat) -> bool:
        return self._stages is None or seat.stage in self._stages


def emptiest(seed: int, peer: PeerId, vacant: Iterable[Seat]) -> Seat | None:
    """A seat of the stage with most vacant seats; ties, and the seat within the stage, by a keyed hash of the peer."""
    seats = tuple(vacant)
    per_stage = Counter(seat.stage for seat in seats)

    def preference(seat: Seat) -> tuple[int, int, int]:
        of_stage = draws.key64(seed, "claim", "stage", peer, seat.stage)
        of_seat = draws.key64(seed, "claim", "seat", peer, seat.stage, seat.replica)
        return -per_stage[seat.stage], of_stage, of_seat

    return min(seats, key=preference, default=None)
