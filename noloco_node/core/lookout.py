"""Which seats a node reads again now, faster than its membership sweeps: those it needs and finds vacant.

While some replica of the next stage is known the others wait for the next renewal, and so do those of the stage before
while nothing comes from there; a look-up each second is only for what the node stands still without (and for the
partner of the step at hand).

Owns the pause between two readings of a seat and the words for what the node waits for. Must not know: how a seat is
read, what is done with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from heapq import nsmallest

from noloco_node.core import effects as do
from noloco_node.core import limits
from noloco_node.core.effects import Effect
from noloco_node.core.exchange_desk import ExchangeDesk
from noloco_node.core.flow import MicroBatchFlow, View
from noloco_node.core.types import Seat, Settings

LOOK_AGAIN_S = 1.0  # a vacant seat that is needed now is read again at most this often


@lru_cache(maxsize=limits.STAGE_TABLES_KEPT)
def seats_of(stage: int, num_replicas: int) -> tuple[Seat, ...]:
    """All seats of a stage, in the order of their replicas."""
    return tuple(Seat(stage, replica) for replica in range(num_replicas))


class Lookout:
    """`waits_for`: what the node stands still for, in words; empty when it works."""

    def __init__(self, settings: Settings, view: View) -> None:
        self._settings = settings
        self._view = view
        self._looked_s: dict[Seat, float] = {}
        self._checked_s = float("-inf")
        self._news = True
        self._second_s = float("-inf")
        self._left = 0  # look-ups left in the second that began then
        self._turn, self._turned_s = 0, float("-inf")  # of a large stage: where its turn begins, and since when
        self.waits_for = ""

    def replicas_of(self, stage: int) -> tuple[Seat, ...]:
        """All seats of a stage; none for a stage that does not exist."""
        exists = 0 <= stage < self._settings.num_stages
        return seats_of(stage, self._settings.num_replicas) if exists else ()

    def replicas_from(self, stage: int, replica: int) -> tuple[Seat, ...]:
        """The same, beginning with that replica: who looks at a few of a large stage begins where no other does."""
        seats = self.replicas_of(stage)
        return (*seats[replica:], *seats[:replica])

    def is_vacant(self, stage: int) -> bool:
        """No replica of the stage is known to work; true for a stage that does not exist."""
        return all(self._view(seat) is None for seat in self.replicas_of(stage))

    def heard(self) -> None:
        """A record came: what was missing may be here."""
        self._news = True

    def look(self, seats: Iterable[Seat], now: float, pause_s: float = LOOK_AGAIN_S) -> list[Effect]:
        """Read the seats, less those read within `pause_s`: in a large table those read longest ago, as many as one
        sweep has in each second."""
        if now >= self._second_s + LOOK_AGAIN_S:
            self._second_s, self._left = now, limits.SWEEP_SEATS_PER_RENEWAL
        if not self._left:
            return []
        due = [seat for seat in seats if now >= self._read_s(seat) + pause_s]
        if len(due) > self._left:
            due = nsmallest(self._left, due, key=self._read_s)
        self._left -= len(due)
        self._looked_s.update(dict.fromkeys(due, now))
        return [do.ReadSeats(tuple(due))] if due else []

    def _read_s(self, seat: Seat) -> float:
        return self._looked_s.get(seat, float("-inf"))

    def look_around(self, flow: MicroBatchFlow, desk: ExchangeDesk, missing: list[Seat], now: float) -> list[Effect]:
        """The vacant seats of the next stage, the partner's, and `missing` ones that a new run waits for.

        Whom the node misses is looked through once a second and when news came, not at every event, and of a large
        stage one sweep in each renewal.
        """
        if now < self._checked_s + LOOK_AGAIN_S and not self._news:
            return []
        self._checked_s, self._news = now, False
        stage = flow.seat.stage
        needed = self.replicas_from(stage + 1, flow.seat.replica)
        is_alone = not flow.is_last and self.is_vacant(stage + 1)
        vacant = needed if is_alone else [seat for seat in self._in_turn(needed, now) if self._view(seat) is None]
        self.waits_for = ""
        if missing:
            self.waits_for = f"a new run starts with {self._settings.start_seats} active seats"
        elif is_alone:
            self.waits_for = f"no replica of stage {stage + 1} is known"
        partner = desk.seat_sought(self._view)
        silent = self.replicas_from(stage - 1, flow.seat.replica) if flow.gate.is_starved(now) else ()
        is_cut_off = bool(silent) and self.is_vacant(stage - 1)
        urgent = [*missing, *(silent if is_cut_off else ()), *([partner] if partner else [])]
        seldom = [] if is_cut_off else [*self._in_turn(silent, now)]
        (urgent if self.waits_for else seldom).extend(vacant)
        return [*self.look(dict.fromkeys(urgent), now), *self.look(dict.fromkeys(seldom), now, self._settings.renew_s)]

    def _in_turn(self, seats: Sequence[Seat], now: float) -> Sequence[Seat]:
        """At most one sweep of them, the next ones at each renewal: what is looked up does not grow with the stage."""
        most = limits.SWEEP_SEATS_PER_RENEWAL
        if len(seats) <= most:
            return seats
        if now >= self._turned_s + self._settings.renew_s:
            self._turn, self._turned_s = (self._turn + most) % len(seats), now
        first = self._turn
        return (*seats[first : first + most], *seats[: max(0, first + most - len(seats))])

    def missing_to_start(self, own: Seat) -> list[Seat]:
        """Seats to look for while a new run has too few active ones."""
        if self._settings.start_seats == 0:
            return []
        seats = [seat for stage in range(self._settings.num_stages) for seat in self.replicas_of(stage)]
        vacant = [seat for seat in seats if seat != own and self._view(seat) is None]
        return vacant if len(seats) - len(vacant) < self._settings.start_seats else []
