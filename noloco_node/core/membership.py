"""How a node comes by a seat, keeps it, and gives it up.

Owns the claim: one `Claiming` step at a time, and the tables below say what an answer or the clock makes of it.

    LOOKING -> (PAUSING -> CHECKING ->) PUBLISHING -> SETTLING -> CONFIRMING -> HOLDING
       ^                                                                          |  lease not confirmed elsewhere
       +-- SPARE <-- taken or outranked at any step                  RECHECKING <-+-> RECLAIMING -> HOLDING

A lease is a hint: nothing is protected by it, so a claim that loses simply withdraws. Must not know: weights,
micro-batches, exchanges; the parent machine is asked for its progress when a record is made. One membership is one
device; several devices of one peer share an incarnation. Times are monotonic seconds. Source: DESIGN section 4.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from noloco_node.core import effects as do
from noloco_node.core import events as ev
from noloco_node.core import limits
from noloco_node.core import seed as draws
from noloco_node.core.claiming import ANSWERED_CALLS, OCCUPYING, SEATED, Claiming
from noloco_node.core.effects import Effect
from noloco_node.core.events import Event
from noloco_node.core.kept_offers import KeptOffers
from noloco_node.core.neighbours import neighbours
from noloco_node.core.seat_search import SeatSearch, SeatTable
from noloco_node.core.seats import Roster
from noloco_node.core.types import PeerId, Seat, SeatRecord, SeatState, Settings
from noloco_node.errors import ExitCode


@dataclass(frozen=True, slots=True)
class Progress:
    """What our record tells about the replica."""

    state: SeatState = SeatState.JOINING
    outer_step: int = 0
    data_next: int = 0
    checkpoint_step: int = 0


class Membership:
    """One device's claim of a seat. `roster` may be shared with the parent, which reads it for its draws.

    Forward to `handle`: Started, TimePassed, RecordLearnt, SeatsRead, RecordPublished and the `ANSWERED_CALLS`;
    any other event is passed over. Without `spare_allowed` a first claim that finds its seat taken ends in `Leave`.
    `stages`: those that fit the device (None: all). `at_work`: how far the replica is, None while none works.
    """

    def __init__(
        self,
        settings: Settings,
        peer: PeerId,
        incarnation: int,
        wanted: Seat | None = None,
        *,
        spare_allowed: bool = True,
        roster: Roster | None = None,
        stages: frozenset[int] | None = None,
        at_work: Callable[[], Progress | None] = lambda: None,
    ) -> None:
        self.roster = Roster(settings) if roster is None else roster
        self._settings = settings
        self._peer = peer
        self._incarnation = incarnation
        self._spare_allowed = spare_allowed
        self._table = SeatTable(settings, peer)
        self._seats = SeatSearch(settings, peer, incarnation, wanted, self._table, self.roster, stages)
        self._kept = KeptOffers(self.roster)
        self._step = Claiming.IDLE
        self._alone = False  # no initial peers: nobody need confirm anything
        self._target: Seat | None = None
        self._record: SeatRecord | None = None  # our newest that occupies the target
        self._awaited: Effect | None = None
        self._deadline = math.inf
        self._confirmed_until = -math.inf
        self._swept_s = -math.inf  # when the watched seats and the next of the table were last read
        self._at_work = at_work
        self._progress = Progress()  # while none works
        self._watched: tuple[Seat, ...] = ()

    # --- what the parent sees -----------------------------------------------------------------------

    @property
    def step(self) -> Claiming:
        return self._step

    @property
    def is_holder(self) -> bool:
        """The seat is ours as far as we know; stays true while a lapsed lease is being rechecked."""
        return self._step in SEATED

    @property
    def seat(self) -> Seat | None:
        """The seat held; None while claiming and as a spare. It may change: then the old one is lost."""
        return self._target if self.is_holder else None

    @property
    def claim(self) -> int | None:
        """Unix ms at which the present claim began; None before it is published."""
        return None if self._record is None else self._record.claim

    @property
    def confirmed_until(self) -> float:
        """Until when the claim may be kept without another node taking our record. Infinite for a node on its own."""
        return math.inf if self._alone else self._confirmed_until

    def next_deadline(self, now: float) -> float | None:
        """When to send TimePassed. None before the start and after the end."""
        return None if math.isinf(self._due) else max(now, self._due)

    @property
    def _due(self) -> float:
        return min(self._deadline, self.confirmed_until) if self._step is Claiming.HOLDING else self._deadline

    # --- what the parent says -----------------------------------------------------------------------

    def set_progress(self, state: SeatState, outer_step: int, data_next: int, checkpoint_step: int) -> None:
        """What the next record of a held seat will say while none works there. Publishes nothing."""
        self._progress = Progress(state, outer_step, data_next, checkpoint_step)

    def keep(self, kept: Mapping[Seat, int]) -> None:
        """The local checkpoints, by seat: they are offered to others while nobody works at their stage."""
        self._kept.keep(kept)
        self._seats.kept = self._kept.seats

    def watch(self, seats: Iterable[Seat]) -> None:
        """Seats that the parent's draws name: read at each renewal, at most half of a sweep of them."""
        self._watched = tuple(seats)

    def publish_now(self, now: float) -> list[Effect]:
        """Renew ahead of time, after a change worth telling; read what is due to be read as well.

        Nothing unless the seat is held and confirmed.
        """
        if self._step is not Claiming.HOLDING or now >= self.confirmed_until:
            return []
        self._deadline = now + self._settings.renew_s
        renewal = self._announcement(None, self.claim)
        return [renewal, *(self._sweep(now) if now >= self._swept_s + self._settings.renew_s else ())]

    def show(self, seat: Seat, now: float) -> list[Effect]:
        """The DHT did not take the record of `seat`: neighbours that know one another renew their leases by calls."""
        if seat != self.seat or math.isinf(self.confirmed_until):
            return []
        peers = neighbours(self._settings.seed, self._peer, seat, self.roster.records(now), int(now))
        return [do.ShowRecord(peers)] if peers else []

    def leave(self, now: float) -> list[Effect]:
        """Give the seat up for good: the last record says `leaving`."""
        farewell = self._withdraw()
        self._wait(Claiming.LEFT, math.inf)
        return farewell

    # --- events -------------------------------------------------------------------------------------

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Effects of one event: ReadSeats, PublishRecord, and Leave when there is no seat to be had."""
        effects = self._react(event, now)
        if self._step is Claiming.HOLDING and now >= self.confirmed_until:
            effects = effects + self._recheck(now)
        return effects

    def _react(self, event: Event, now: float) -> list[Effect]:
        match event:
            case ev.RecordLearnt():
                return self._learn(event, now)
            case ev.Started() if self._step is Claiming.IDLE:
                return self._start(event, now)
            case ev.TimePassed() if now >= self._due:
                return _ON_TIME[self._step](self, now)
            case ev.SeatsRead() if isinstance(self._awaited, do.ReadSeats) and event.seats == self._awaited.seats:
                return self._after_read(event.reached, now)
            case ev.RecordPublished():
                return self._after_publish(event, now)
            case _ if isinstance(event, ANSWERED_CALLS):
                self._note_answer(event, now)
        return []

    def _learn(self, event: ev.RecordLearnt, now: float) -> list[Effect]:
        news = self.roster.learn(event.record, event.lives_s, now)
        if news and self._is_our_double(event.record):
            self._wait(Claiming.LEFT, math.inf)
            return [do.Leave("another process uses this node's key", int(ExitCode.IDENTITY_IN_USE))]
        return self._yield_if_outranked(now) if event.record.seat == self._target else []

    def _is_our_double(self, record: SeatRecord) -> bool:
        """Newer than our own record, by our key, in our seat, and not from us."""
        ours = record.peer == self._peer and record.seat == self._target and self._step in OCCUPYING
        return ours and record.incarnation != self._incarnation and record.state is not SeatState.LEAVING

    def _note_answer(self, event: Event, now: float) -> None:
        refused = isinstance(event, ev.OfferAnswered) and event.answer is None
        if self._step is Claiming.HOLDING and now < self._confirmed_until and not refused:
            self._confirmed_until = max(self._confirmed_until, now + self._settings.lease_s)

    def _after_read(self, reached: bool, now: float) -> list[Effect]:
        """A look-up that met nobody says nothing, unless there is nobody to meet: ask again a little later."""
        if not reached and not self._alone:
            self._deadline = now + limits.BOOTSTRAP_RETRY_S
            return []
        self._awaited = None
        return _ON_READ[self._step](self, now)

    def _after_publish(self, event: ev.RecordPublished, now: float) -> list[Effect]:
        record = event.record
        self.roster.learn(record, event.lives_s, now)
        current = record.seat == self._target and record.state is not SeatState.LEAVING
        if not current or self._step not in (Claiming.PUBLISHING, *SEATED):
            return []
        self._record = record
        if event.confirmed:
            self._confirmed_until = max(self._confirmed_until, now + min(event.lives_s, self._settings.lease_s))
        if self._step in _ON_PUBLISHED:
            _ON_PUBLISHED[self._step](self, event.confirmed or self._alone, now)
        return self._yield_if_outranked(now)

    # --- claiming -----------------------------------------------------------------------------------

    def _start(self, event: ev.Started, now: float) -> list[Effect]:
        self._alone = not event.has_initial_peers
        own = {} if event.checkpoint_seat is None else {event.checkpoint_seat: event.checkpoint_step or 0}
        self.keep(own | dict(event.kept))
        return self._search(now)

    def _search(self, now: float) -> list[Effect]:
        return self._read(self._seats.begin(), Claiming.LOOKING, now)

    def _choose(self, now: float) -> list[Effect]:
        """Our own seat of an earlier process at once, with its claim; else a vacant one after a drawn pause."""
        left_behind = self._seats.left_behind(now)
        if left_behind is not None:
            self._target = left_behind.seat
            return self._publish(SeatState.JOINING, left_behind.claim, Claiming.PUBLISHING, now)
        self._target = self._seats.pick(now)
        if self._target is None:
            return self._search_on(now)
        if self._alone:
            return self._check(now)
        return self._wait(Claiming.PAUSING, now + self._pause_s(self._target))

    def _pause_s(self, seat: Seat) -> float:
        share = draws.fraction(self._settings.seed, "claim", "pause", self._peer, seat.stage, seat.replica)
        return float(share) * self._settings.lease_s / 4

    def _search_on(self, now: float) -> list[Effect]:
        """No vacant seat in this stretch of the table: look at the next, or wait as a spare when all were seen."""
        if not self._seats.ended:
            return self._read(self._seats.go_on(), Claiming.LOOKING, now)
        return self._wait_as_spare(now)

    def _wait_as_spare(self, now: float) -> list[Effect]:
        if not self._spare_allowed and self._seats.taken(now):
            self._wait(Claiming.LEFT, math.inf)
            return [do.Leave("the seat is taken", int(ExitCode.NO_SEAT))]
        self._wait(Claiming.SPARE, min(now + self._settings.renew_s, self._seats.free_at(now)))
        return self._kept.due(self._target, now)

    def _check(self, now: float) -> list[Effect]:
        return self._read(self._own_seat, Claiming.CHECKING, now)

    def _claim_vacant(self, now: float) -> list[Effect]:
        if not self._is_free(now):
            return self._give_up(now)
        return self._publish(SeatState.JOINING, None, Claiming.PUBLISHING, now)

    def _settle(self, confirmed: bool, now: float) -> None:
        """A claim that nobody saw must not grow old unseen: it is checked and made anew."""
        if confirmed:
            self._wait(Claiming.SETTLING, now + self._settings.settle_s)
        else:
            self._read_later(self._own_seat, Claiming.CHECKING, now)

    def _confirm(self, now: float) -> list[Effect]:
        return self._read(self._own_seat, Claiming.CONFIRMING, now)

    def _hold(self, now: float) -> list[Effect]:
        lost = self._yield_if_outranked(now)
        if lost:
            return lost
        self._spare_allowed = True  # whoever held a seat once waits for the next
        self._wait(Claiming.HOLDING, now + self._settings.renew_s)
        return self._sweep(now)

    # --- holding ------------------------------------------------------------------------------------

    def _renew(self, now: float) -> list[Effect]:
        if now >= self.confirmed_until:
            return self._recheck(now)
        return [*self.publish_now(now), *self._kept.due(self._target, now)]

    def _sweep(self, now: float) -> list[Effect]:
        self._swept_s = now
        return [do.ReadSeats(self._table.advance((*self._own_seat, *self._watched)))]

    def _recheck(self, now: float) -> list[Effect]:
        return self._read(self._own_seat, Claiming.RECHECKING, now)

    def _reclaim(self, now: float) -> list[Effect]:
        if not self._is_free(now):
            return self._give_up(now)
        return self._publish(None, None, Claiming.RECLAIMING, now)

    def _reclaimed(self, confirmed: bool, now: float) -> None:
        if confirmed:
            self._wait(Claiming.HOLDING, now + self._settings.renew_s)
        else:
            self._read_later(self._own_seat, Claiming.RECHECKING, now)

    # --- losing -------------------------------------------------------------------------------------

    def _is_free(self, now: float) -> bool:
        return all(self.roster.claimable(seat, now, apart_from=self._peer) for seat in self._own_seat)

    def _yield_if_outranked(self, now: float) -> list[Effect]:
        if self._step not in OCCUPYING or self._record is None:
            return []
        return self._give_up(now) if self.roster.outranked(self._record, now) else []

    def _give_up(self, now: float) -> list[Effect]:
        """Say `leaving` if we said anything, and look for another seat; for a wanted one wait."""
        farewell = self._withdraw()
        if self._seats.wanted is None:
            return farewell + self._search(now)
        return farewell + self._wait_as_spare(now)

    def _withdraw(self) -> list[Effect]:
        published = self._record is not None or self._step is Claiming.PUBLISHING
        farewell: list[Effect] = [self._announcement(SeatState.LEAVING, self.claim)] if published else []
        self._record, self._target, self._awaited = None, None, None
        self._progress = Progress()
        self._confirmed_until = -math.inf
        return farewell

    # --- waiting ------------------------------------------------------------------------------------

    @property
    def _own_seat(self) -> tuple[Seat, ...]:
        return () if self._target is None else (self._target,)

    def _wait(self, step: Claiming, deadline: float) -> list[Effect]:
        self._step, self._deadline, self._awaited = step, deadline, None
        return []

    def _read(self, seats: tuple[Seat, ...], step: Claiming, now: float) -> list[Effect]:
        return self._await(do.ReadSeats(seats), step, now)

    def _read_later(self, seats: tuple[Seat, ...], step: Claiming, now: float) -> None:
        self._step, self._awaited = step, do.ReadSeats(seats)
        self._deadline = now + limits.BOOTSTRAP_RETRY_S

    def _publish(self, state: SeatState | None, claim: int | None, step: Claiming, now: float) -> list[Effect]:
        return self._await(self._announcement(state, claim), step, now)

    def _await(self, effect: Effect, step: Claiming, now: float) -> list[Effect]:
        """Ask, and ask again if no answer came within a lease."""
        self._step, self._awaited, self._deadline = step, effect, now + self._settings.lease_s
        return [effect]

    def _ask_again(self, now: float) -> list[Effect]:
        return [] if self._awaited is None else self._await(self._awaited, self._step, now)

    def _announcement(self, state: SeatState | None, claim: int | None) -> Effect:
        """`state`: None, what the replica's progress says."""
        seat, told = self._target, self._at_work() or self._progress
        assert seat is not None, "a record is of a seat"
        state, data_next = state or told.state, told.data_next
        if state is SeatState.JOINING:  # keep the last holder's promise alive while nobody reads data
            data_next = max(data_next, self.roster.data_next(seat))
        return do.PublishRecord(seat, state, claim, told.outer_step, data_next, told.checkpoint_step)


_ON_READ: dict[Claiming, Callable[[Membership, float], list[Effect]]] = {
    Claiming.LOOKING: Membership._choose,
    Claiming.CHECKING: Membership._claim_vacant,
    Claiming.CONFIRMING: Membership._hold,
    Claiming.RECHECKING: Membership._reclaim,
}

_ON_PUBLISHED: dict[Claiming, Callable[[Membership, bool, float], None]] = {
    Claiming.PUBLISHING: Membership._settle,
    Claiming.RECLAIMING: Membership._reclaimed,
}

_ON_TIME: dict[Claiming, Callable[[Membership, float], list[Effect]]] = {
    Claiming.PAUSING: Membership._check,
    Claiming.SETTLING: Membership._confirm,
    Claiming.HOLDING: Membership._renew,
    Claiming.SPARE: Membership._search,
    Claiming.LOOKING: Membership._ask_again,
    Claiming.CHECKING: Membership._ask_again,
    Claiming.PUBLISHING: Membership._ask_again,
    Claiming.CONFIRMING: Membership._ask_again,
    Claiming.RECHECKING: Membership._ask_again,
    Claiming.RECLAIMING: Membership._ask_again,
}
