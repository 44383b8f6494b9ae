"""With whom: how two seats agree to exchange at an outer step (DESIGN 5a, "With whom").

Owns the OFFERs of this seat and the agreements made for the running outer step and the next. The seed draws the
partner; who is there is each node's own view, and different views cost a message, not a pair. Must not know: how an
exchange runs, who is connected, the wall clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from noloco_node.core import limits, pairing
from noloco_node.core.effects import AnswerOffer, Effect, SendOffer
from noloco_node.core.events import Event, OfferAnswered, OfferReceived
from noloco_node.core.types import Offer, OfferAnswer, PeerId, Seat, Settings

View = Callable[[Seat], PeerId | None]
"""The peer that actively holds a seat, as far as this node knows; None for a vacant (or joining) seat."""

DrawPartner = Callable[[int, int, int, int, int], int | None]
"""(seed, stage, outer step, replicas, replica) -> the drawn partner's replica, None for the odd seat."""

RepairOrder = Callable[[int, int, int, int, tuple[int, ...]], tuple[int, ...]]
"""(seed, stage, outer step, replica, others) -> the others in the order in which they are offered to."""


@dataclass(frozen=True, slots=True)
class Agreed:
    """The partner of one outer step: a seat and the peer that held it when both said yes."""

    seat: Seat
    peer: PeerId


class Agreement:
    """Finds this seat's partner for each outer step. At most one OFFER of its own is out at a time.

    An agreement is never replaced: whoever loses the partner takes a solo step. So nothing here forgets one before
    its outer step is over, and the boundary checks that the agreed peer still holds the seat.
    """

    def __init__(
        self,
        settings: Settings,
        me: Seat,
        partner: DrawPartner = pairing.partner,
        repair_order: RepairOrder = pairing.repair_order,
    ) -> None:
        self._settings = settings
        self._me = me
        self._draw_partner = partner
        self._repair_order = repair_order
        self._step = -1  # the outer step worked on; -1 before the first phase
        self._offering = False  # between the start of a phase and its boundary
        self._made: dict[int, Agreed] = {}  # at most for `_step`, the one before and the next
        self._out: tuple[Offer, PeerId] | None = None
        self._asked: set[Seat] = set()  # other than the drawn partner
        self._refused: set[tuple[Seat, PeerId]] = set()
        self._pauses: dict[Seat, float] = {}  # seat -> not before
        self._tries = 0  # OFFERs of this phase that heard LATER or nothing
        self._drawn: dict[tuple[int, int], int | None] = {}
        self._wake: float | None = None
        self._orphans_known: tuple[Seat, ...] = ()
        self._repairs_from = 0.0  # of a large table only a part is known: the drawn partner is looked up first
        self._orphans_until = float("-inf")  # as long as a large table's orphans are taken for known

    @property
    def next_deadline(self) -> float | None:
        """When the next OFFER may go out, if one is waiting."""
        return self._wake

    @property
    def awaits_answer(self) -> bool:
        """AGREED for the running outer step may be on its way: an OFFER is out, or a first one broke and is due again.

        Bounded: a call ends within its deadline, and OFFER_TRIES_MAX tries without an answer that counts are enough.
        """
        if self._step in self._made:
            return False
        return self._out is not None or (self._wake is not None and self._tries < limits.OFFER_TRIES_MAX)

    @property
    def step(self) -> int:
        """The outer step worked on; -1 before the first."""
        return self._step

    @property
    def is_under_way(self) -> bool:
        """Between the start of a phase and its boundary."""
        return self._offering

    def partner_of(self, outer_step: int) -> Agreed | None:
        return self._made.get(outer_step)

    def seat_sought(self, view: View) -> Seat | None:
        """The drawn partner's seat, while no agreement is made and nobody is known to hold it."""
        drawn = self._drawn_seat(self._step, self._me.replica) if self._offering else None
        return drawn if drawn is not None and self._step not in self._made and view(drawn) is None else None

    def expect_phase(self, outer_step: int) -> None:
        """The phase of `outer_step` is about to begin: the drawn partner is agreed to, nobody is asked yet."""
        self._turn_to(outer_step)

    def begin_phase(self, outer_step: int, view: View, now: float) -> list[Effect]:
        """The inner phase of `outer_step` begins: start to look for its partner."""
        self._turn_to(outer_step)
        self._offering = True
        self._repairs_from = now + limits.PARTNER_LOOK_S if self._is_large else now
        return self._offer(view, now)

    def end_phase(self, outer_step: int) -> None:
        """The boundary of `outer_step` is taken: its partner is settled, or there is none."""
        self._turn_to(outer_step + 1)

    def handle(self, event: Event, view: View, now: float) -> list[Effect]:
        """Answer an offer, note an answer; any other event means that time passed or the view changed."""
        answers: list[Effect] = []
        if isinstance(event, OfferReceived):
            answers = [AnswerOffer(event.ticket, self._answer(event.offer, event.peer, view, now))]
        elif isinstance(event, OfferAnswered):
            self._note(event, now)
        return answers + self._offer(view, now)

    # --- own offers -------------------------------------------------------------------------------

    def _turn_to(self, outer_step: int) -> None:
        self._step = max(self._step, outer_step)
        self._offering, self._out, self._wake = False, None, None
        self._made = {step: agreed for step, agreed in self._made.items() if step >= self._step - 1}
        self._drawn = {key: drawn for key, drawn in self._drawn.items() if key[0] >= self._step}
        self._asked, self._refused, self._pauses, self._tries = set(), set(), {}, 0
        self._orphans_until = float("-inf")

    def _offer(self, view: View, now: float) -> list[Effect]:
        """The next OFFER, if none is out and one is due; else `_wake` says when to look again."""
        self._wake = None
        if not self._offering or self._out is not None or self._step in self._made:
            return []
        pauses: list[float] = []
        for seat in self._candidates(view, now):
            peer = view(seat)
            if peer is None or (seat, peer) in self._refused:
                continue
            if self._pauses.get(seat, now) <= now:
                return self._send(seat, peer)
            pauses.append(self._pauses[seat])
        self._wake = self._repairs_from if now < self._repairs_from else min(pauses, default=None)
        return []

    def _candidates(self, view: View, now: float) -> tuple[Seat, ...]:
        """The drawn partner if it is to be had; else the seats orphaned as this one is, best liked first."""
        drawn = self._drawn_seat(self._step, self._me.replica)
        if drawn is not None and not self._is_lost(drawn, self._step, view):
            return (drawn,)
        if now < self._repairs_from:
            return ()
        seats = self._orphans(view, now)
        if len(self._asked) < limits.OFFERS_MAX:
            return seats
        return tuple(seat for seat in seats if seat in self._asked)

    @property
    def _is_large(self) -> bool:
        """One sweep does not show the whole stage."""
        return self._settings.num_replicas > limits.SWEEP_SEATS_PER_RENEWAL

    def _orphans(self, view: View, now: float) -> tuple[Seat, ...]:
        """Best liked first. A large table is looked through anew only once in a while, not at every event.

        When the drawn partner trades with another, that one's drawn partner is alone as I am, and nobody sees it: all
        active seats may be such, after those seen to be alone.
        """
        if not self._is_large or now >= self._orphans_until:
            active = [seat for seat in self._others if view(seat) is not None]
            seen = [seat for seat in active if self._is_orphan(seat, view)]
            unseen = [seat for seat in active if seat not in seen] if self._is_turned_down(view) else []
            self._orphans_known = (*self._by_liking(seen), *self._by_liking(unseen))
            self._orphans_until = now + limits.OFFER_RETRY_S
        return self._orphans_known

    @property
    def _others(self) -> Iterator[Seat]:
        """The other seats of the stage."""
        seats = (Seat(self._me.stage, replica) for replica in range(self._settings.num_replicas))
        return (seat for seat in seats if seat != self._me)

    def _by_liking(self, seats: Iterable[Seat]) -> tuple[Seat, ...]:
        """In the order of the draw `repair`."""
        settings, me = self._settings, self._me
        replicas = tuple(seat.replica for seat in seats)
        order = self._repair_order(settings.seed, me.stage, self._step, me.replica, replicas)
        return tuple(Seat(me.stage, replica) for replica in order)

    def _is_orphan(self, seat: Seat, view: View) -> bool:
        """Its drawn partner rests or is not active in my view."""
        drawn = self._drawn_seat(self._step, seat.replica)
        return drawn is None or (drawn != self._me and view(drawn) is None)

    def _is_turned_down(self, view: View) -> bool:
        """The drawn partner is there and trades with another."""
        drawn = self._drawn_seat(self._step, self._me.replica)
        return drawn is not None and view(drawn) is not None and self._is_lost(drawn, self._step, view)

    def _is_lost(self, drawn: Seat, outer_step: int, view: View) -> bool:
        """My drawn partner of that step is not active in my view, or has said TAKEN: it trades with another."""
        peer = view(drawn)
        return peer is None or (outer_step == self._step and (drawn, peer) in self._refused)

    def _send(self, seat: Seat, peer: PeerId) -> list[Effect]:
        offer = Offer(self._step, self._me, seat)
        self._out = (offer, peer)
        if seat != self._drawn_seat(self._step, self._me.replica):
            self._asked.add(seat)
        return [SendOffer(offer, peer)]

    def _note(self, event: OfferAnswered, now: float) -> None:
        """AGREED binds, TAKEN is final for that holder, LATER and silence are tried again after a pause."""
        if self._out is None or event.offer != self._out[0]:
            return
        offer, peer = self._out
        self._out = None
        if event.answer is OfferAnswer.AGREED:
            self._made.setdefault(offer.outer_step, Agreed(offer.receiver, peer))
        elif event.answer is OfferAnswer.TAKEN:
            self._refused.add((offer.receiver, peer))
            if offer.receiver == self._drawn_seat(offer.outer_step, self._me.replica):
                self._orphans_until = float("-inf")  # more seats may be asked from now on
        else:
            self._pauses[offer.receiver] = now + limits.OFFER_RETRY_S
            self._tries += 1

    # --- offers of others -------------------------------------------------------------------------

    def _answer(self, offer: Offer, peer: PeerId, view: View, now: float) -> OfferAnswer:
        """Only the offer's content and the caller's own active seat count.

        Who agreed before and asks again (our answer was lost, or it restarted) hears the same, even while the
        outer step is being traded.
        """
        if not self._is_meant_for_me(offer):
            return OfferAnswer.TAKEN
        if view(offer.sender) != peer or self._step < 0 or offer.outer_step > self._step + 1:
            return OfferAnswer.LATER  # its record is still on the way to me, or it is ahead: it asks again
        caller = Agreed(offer.sender, peer)
        made = self._made.get(offer.outer_step)
        if made is not None:
            return OfferAnswer.AGREED if made == caller else OfferAnswer.TAKEN
        if offer.outer_step < self._step:
            return OfferAnswer.TAKEN
        drawn = self._drawn_seat(offer.outer_step, self._me.replica)
        if drawn is not None and drawn != offer.sender and not self._is_lost(drawn, offer.outer_step, view):
            return OfferAnswer.TAKEN
        if drawn != offer.sender and not self._offering:
            return OfferAnswer.LATER  # a new run comes together: the drawn partner may be about to show up
        is_early = self._is_large and (offer.outer_step > self._step or now < self._repairs_from)
        if drawn != offer.sender and is_early:
            return OfferAnswer.LATER  # whether the drawn partner is there is not known yet
        if self._is_asking_a_third(offer, peer):
            return OfferAnswer.LATER
        self._made[offer.outer_step] = caller
        return OfferAnswer.AGREED

    def _is_meant_for_me(self, offer: Offer) -> bool:
        """To this seat, from another seat of the stage."""
        if offer.receiver != self._me or offer.sender == self._me or offer.sender.stage != self._me.stage:
            return False
        return 0 <= offer.sender.replica < self._settings.num_replicas

    def _is_asking_a_third(self, offer: Offer, peer: PeerId) -> bool:
        """Another seat, or another node that for a moment is taken for the holder of the caller's."""
        if self._out is None:
            return False
        mine, asked = self._out
        return mine.outer_step == offer.outer_step and (mine.receiver, asked) != (offer.sender, peer)

    # --- draws ------------------------------------------------------------------------------------

    def _drawn_seat(self, outer_step: int, replica: int) -> Seat | None:
        key = (outer_step, replica)
        if key not in self._drawn:
            settings = self._settings
            self._drawn[key] = self._draw_partner(
                settings.seed, self._me.stage, outer_step, settings.num_replicas, replica
            )
        drawn = self._drawn[key]
        return None if drawn is None else Seat(self._me.stage, drawn)
