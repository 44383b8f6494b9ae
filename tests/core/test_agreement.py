"""With whom: the rules of DESIGN 5a on one agreement."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from agreement_stage import peer, seat, spec, view_of

from noloco_node.core import limits, pairing
from noloco_node.core.agreement import Agreed, Agreement
from noloco_node.core.effects import AnswerOffer, Effect, SendOffer
from noloco_node.core.events import OfferAnswered, OfferReceived, TimePassed
from noloco_node.core.types import Offer, OfferAnswer, PeerId, Seat

ME = Seat(0, 0)
NUM = 5


def pairs(*drawn: tuple[int, int]) -> Callable[[int, int, int, int, int], int | None]:
    """A draw, the same at every outer step."""
    table = dict(drawn) | {b: a for a, b in drawn}
    return lambda seed, stage, step, num, replica: table.get(replica)


def in_order(seed: int, stage: int, step: int, replica: int, others: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(others))


def agreement(*drawn: tuple[int, int], num_replicas: int = NUM) -> Agreement:
    return Agreement(spec(num_replicas), ME, pairs(*drawn), in_order)


def offer(step: int, sender: int, receiver: int = 0) -> Offer:
    return Offer(step, seat(sender), seat(receiver))


def sent_to(effects: list[Effect]) -> list[int]:
    return [e.offer.receiver.replica for e in effects if isinstance(e, SendOffer)]


def answer_to(one: Agreement, sender: int, step: int, view: Callable[[Seat], PeerId | None]) -> OfferAnswer:
    effects = one.handle(OfferReceived(9, offer(step, sender), peer(sender)), view, 0.0)
    return next(e.answer for e in effects if isinstance(e, AnswerOffer))


def test_the_drawn_partner_is_offered_first_and_only() -> None:
    one = agreement((0, 3))
    effects = one.begin_phase(4, view_of(1, 2, 3, 4), 0.0)
    assert effects == [SendOffer(Offer(4, ME, seat(3)), peer(3))]
    assert one.handle(TimePassed(), view_of(1, 2, 3, 4), 1.0) == []


def test_agreed_is_kept_for_its_step_and_ends_the_search() -> None:
    one = agreement((0, 3))
    view = view_of(1, 2, 3)
    one.begin_phase(4, view, 0.0)
    assert one.handle(OfferAnswered(Offer(4, ME, seat(3)), OfferAnswer.AGREED), view, 0.1) == []
    assert one.partner_of(4) == Agreed(seat(3), peer(3))
    assert one.partner_of(5) is None
    assert one.next_deadline is None


def turned_down(*drawn: tuple[int, int], view: Callable[[Seat], PeerId | None]) -> tuple[Agreement, list[Effect]]:
    """An agreement for step 4 whose drawn partner, 3, has said TAKEN, and what it did then."""
    one = agreement((0, 3), *drawn, num_replicas=7)
    one.begin_phase(4, view, 0.0)
    return one, one.handle(OfferAnswered(Offer(4, ME, seat(3)), OfferAnswer.TAKEN), view, 0.1)


def test_taken_by_the_drawn_partner_is_final_for_the_step() -> None:
    view = view_of(3)
    one, effects = turned_down(view=view)
    assert effects == []
    assert one.handle(TimePassed(), view, 50.0) == []
    assert sent_to(one.begin_phase(5, view, 60.0)) == [3]


def test_a_seat_whose_drawn_partner_trades_with_another_asks_those_seen_alone_then_all_others() -> None:
    view = view_of(1, 2, 3, 5, 6)  # 4 is vacant
    one, effects = turned_down((1, 2), (4, 5), view=view)
    asked = []
    while sent := sent_to(effects):
        asked += sent
        effects = one.handle(OfferAnswered(Offer(4, ME, seat(sent[0])), OfferAnswer.TAKEN), view, 1.0)
    assert asked == [5, 6, 1, 2], "5's partner is vacant, 6 rests; 1 and 2 may have lost each other unseen"


def test_a_seat_whose_drawn_partner_trades_with_another_agrees_with_whoever_asks_in_this_step() -> None:
    view = view_of(1, 3)
    one, _ = turned_down((1, 2), view=view)
    one.handle(OfferAnswered(Offer(4, ME, seat(1)), OfferAnswer.TAKEN), view, 0.2)
    assert answer_to(one, 1, 5, view) is OfferAnswer.TAKEN, "for the next step the drawn partner is there"
    assert answer_to(one, 1, 4, view) is OfferAnswer.AGREED
    assert one.partner_of(4) == Agreed(seat(1), peer(1))
    assert one.handle(TimePassed(), view, 50.0) == []


def test_a_new_holder_of_the_drawn_seat_is_waited_for_again() -> None:
    one, _ = turned_down((1, 2), view=view_of(3))
    anew = {seat(1): peer(1), seat(3): PeerId("new")}.get
    assert answer_to(one, 1, 4, anew) is OfferAnswer.TAKEN
    assert one.partner_of(4) is None


@pytest.mark.parametrize("answer", [None, OfferAnswer.LATER])
def test_silence_and_later_are_tried_again_after_a_pause(answer: OfferAnswer | None) -> None:
    one = agreement((0, 3))
    view = view_of(3)
    one.begin_phase(4, view, 0.0)
    assert one.handle(OfferAnswered(Offer(4, ME, seat(3)), answer), view, 2.0) == []
    assert one.next_deadline == 2.0 + limits.OFFER_RETRY_S
    assert one.handle(TimePassed(), view, 2.4) == []
    assert sent_to(one.handle(TimePassed(), view, 2.0 + limits.OFFER_RETRY_S)) == [3]


def test_without_its_partner_a_seat_asks_the_others_so_orphaned_one_at_a_time() -> None:
    one = agreement((0, 3), (1, 2))  # 4 rests, 3 is vacant; 1 and 2 have each other
    view = view_of(1, 2, 4)
    assert sent_to(one.begin_phase(0, view, 0.0)) == [4]
    assert one.handle(TimePassed(), view, 0.5) == []


def test_a_taken_orphan_makes_way_for_the_next() -> None:
    one = agreement((0, 3), (1, 5), (2, 6), num_replicas=7)  # 3, 5, 6 vacant; 4 rests
    view = view_of(1, 2, 4)
    assert sent_to(one.begin_phase(0, view, 0.0)) == [1]
    assert sent_to(one.handle(OfferAnswered(Offer(0, ME, seat(1)), OfferAnswer.TAKEN), view, 0.1)) == [2]
    assert sent_to(one.handle(OfferAnswered(Offer(0, ME, seat(2)), None), view, 0.2)) == [4]
    assert one.handle(OfferAnswered(Offer(0, ME, seat(4)), OfferAnswer.TAKEN), view, 0.3) == []
    assert sent_to(one.handle(TimePassed(), view, 1.2)) == [2]


def test_no_more_than_eight_orphans_are_asked() -> None:
    num = 40
    one = Agreement(spec(num), ME, lambda *_: None, in_order)
    view = view_of(*range(1, num))
    effects, asked = one.begin_phase(0, view, 0.0), []
    while sent := sent_to(effects):
        asked += sent
        effects = one.handle(OfferAnswered(Offer(0, ME, seat(sent[0])), OfferAnswer.TAKEN), view, 1.0)
    assert asked == list(range(1, 1 + limits.OFFERS_MAX))


def test_a_drawn_partner_that_turns_active_is_offered_then() -> None:
    one = agreement((0, 3), (1, 2))
    assert one.begin_phase(0, view_of(1, 2), 0.0) == []
    assert one.seat_sought(view_of(1, 2)) == seat(3)
    assert sent_to(one.handle(TimePassed(), view_of(1, 2, 3), 5.0)) == [3]


def test_a_new_holder_of_a_seat_that_said_taken_is_asked_afresh() -> None:
    one = agreement((0, 3))
    one.begin_phase(0, view_of(3), 0.0)
    one.handle(OfferAnswered(Offer(0, ME, seat(3)), OfferAnswer.TAKEN), view_of(3), 0.1)
    assert sent_to(one.handle(TimePassed(), lambda s: PeerId("new") if s == seat(3) else None, 0.2)) == [3]


def test_a_lone_replica_offers_nothing() -> None:
    one = Agreement(spec(1), ME)
    assert one.begin_phase(0, view_of(), 0.0) == []
    assert one.next_deadline is None


def test_the_drawn_partner_is_agreed_with_for_this_step_and_the_next() -> None:
    one = agreement((0, 3))
    view = view_of(1, 3)
    one.begin_phase(4, view_of(), 0.0)
    assert answer_to(one, 3, 3, view) is OfferAnswer.TAKEN
    assert answer_to(one, 3, 4, view) is OfferAnswer.AGREED
    assert answer_to(one, 3, 5, view) is OfferAnswer.AGREED
    assert answer_to(one, 3, 6, view) is OfferAnswer.LATER, "it is ahead and may ask again"
    assert one.partner_of(6) is None
    assert one.partner_of(5) == Agreed(seat(3), peer(3))


def test_others_are_taken_while_the_drawn_partner_is_active() -> None:
    one = agreement((0, 3))
    one.begin_phase(4, view_of(1, 3), 0.0)
    assert answer_to(one, 1, 5, view_of(1, 3)) is OfferAnswer.TAKEN
    assert answer_to(one, 1, 5, view_of(1)) is OfferAnswer.AGREED


def test_later_while_an_offer_to_a_third_is_out() -> None:
    one = agreement((0, 3), (1, 5), (2, 6), num_replicas=7)
    view = view_of(1, 2)
    assert sent_to(one.begin_phase(0, view, 0.0)) == [1]
    assert answer_to(one, 2, 0, view) is OfferAnswer.LATER
    assert answer_to(one, 2, 1, view) is OfferAnswer.AGREED, "the offer that is out concerns another step"


def test_later_while_an_offer_is_out_to_another_holder_of_the_callers_seat() -> None:
    """Both would say AGREED, and one of the two holders would wait for nobody."""
    one = agreement((0, 3))
    (sent,) = one.begin_phase(0, lambda there: PeerId("elder") if there == seat(3) else None, 0.0)
    assert sent.peer == "elder"
    assert answer_to(one, 3, 0, view_of(3)) is OfferAnswer.LATER


def test_crossing_offers_agree() -> None:
    one = agreement((0, 3))
    view = view_of(3)
    assert sent_to(one.begin_phase(0, view, 0.0)) == [3]
    assert answer_to(one, 3, 0, view) is OfferAnswer.AGREED
    one.handle(OfferAnswered(Offer(0, ME, seat(3)), OfferAnswer.AGREED), view, 0.1)
    assert one.partner_of(0) == Agreed(seat(3), peer(3))


def test_an_agreement_is_never_replaced() -> None:
    one = agreement((0, 3))
    one.begin_phase(0, view_of(), 0.0)
    assert answer_to(one, 3, 0, view_of(3)) is OfferAnswer.AGREED
    assert answer_to(one, 1, 0, view_of(1)) is OfferAnswer.TAKEN
    assert one.handle(TimePassed(), view_of(1), 1.0) == []
    moved = one.handle(
        OfferReceived(1, offer(0, 3), PeerId("new")), lambda s: PeerId("new") if s == seat(3) else None, 2.0
    )
    assert moved == [AnswerOffer(1, OfferAnswer.TAKEN)]
    assert one.partner_of(0) == Agreed(seat(3), peer(3))


def test_a_repeated_offer_of_the_partner_hears_agreed_again_even_after_the_boundary() -> None:
    one = agreement((0, 3))
    one.begin_phase(0, view_of(), 0.0)
    assert answer_to(one, 3, 0, view_of(3)) is OfferAnswer.AGREED
    one.end_phase(0)
    assert answer_to(one, 3, 0, view_of(3)) is OfferAnswer.AGREED
    assert answer_to(one, 1, 0, view_of(1)) is OfferAnswer.TAKEN


@pytest.mark.parametrize(
    "bad",
    [
        Offer(0, seat(3), seat(1)),  # meant for another seat
        Offer(0, Seat(1, 3), ME),  # of another stage
        Offer(0, seat(0), ME),  # from my own seat
        Offer(0, seat(99), ME),  # from no seat at all
        Offer(-1, seat(3), ME),
    ],
)
def test_an_improper_offer_is_taken(bad: Offer) -> None:
    one = agreement((0, 3))
    one.begin_phase(0, view_of(), 0.0)
    assert one.handle(OfferReceived(1, bad, peer(3)), view_of(1, 3), 0.0)[0] == AnswerOffer(1, OfferAnswer.TAKEN)
    assert one.partner_of(bad.outer_step) is None


def test_a_caller_not_known_to_hold_its_seat_may_ask_again_once_its_record_is_here() -> None:
    one = agreement((0, 3))
    one.begin_phase(0, view_of(), 0.0)
    assert answer_to(one, 3, 0, view_of()) is OfferAnswer.LATER
    assert one.partner_of(0) is None
    assert answer_to(one, 3, 0, view_of(3)) is OfferAnswer.AGREED


def test_before_the_first_phase_nothing_is_agreed() -> None:
    one = agreement((0, 3))
    assert answer_to(one, 3, 0, view_of(3)) is OfferAnswer.LATER
    assert one.partner_of(0) is None


def test_an_answer_after_the_boundary_changes_nothing() -> None:
    one = agreement((0, 3))
    one.begin_phase(0, view_of(3), 0.0)
    one.end_phase(0)
    one.handle(OfferAnswered(Offer(0, ME, seat(3)), OfferAnswer.AGREED), view_of(3), 0.1)
    assert one.partner_of(0) is None
    assert one.partner_of(1) is None


def test_a_large_table_is_not_looked_through_at_every_event() -> None:
    """Views change all the time in a large swarm; orphans found once are taken for known for a moment."""
    seen: list[Seat] = []

    def view(seat: Seat) -> PeerId | None:
        seen.append(seat)
        return None

    agreement = Agreement(spec(num_replicas=1000), seat(0))
    agreement.begin_phase(0, view, 0.0)
    looked = len(seen)
    for _ in range(10):
        agreement.handle(TimePassed(), view, 0.1)
    assert len(seen) - looked <= 10 * limits.OFFERS_MAX


def test_in_a_large_stage_the_drawn_partner_is_looked_up_before_others_are_offered_to() -> None:
    """What is not known there is not vacant: offers to others at once would leave both drawn partners alone."""
    large = spec(num_replicas=limits.SWEEP_SEATS_PER_RENEWAL + 2)
    drawn = pairing.partner(large.seed, 0, 0, large.num_replicas, 0)
    orphan = next(r for r in range(1, large.num_replicas) if r != drawn)
    agreement = Agreement(large, seat(0))
    assert agreement.begin_phase(0, view_of(orphan), 0.0) == []
    early = OfferReceived(1, Offer(0, seat(orphan), seat(0)), peer(orphan))
    assert agreement.handle(early, view_of(orphan), 1.0) == [AnswerOffer(1, OfferAnswer.LATER)]
    assert agreement.next_deadline == limits.PARTNER_LOOK_S
    assert agreement.handle(TimePassed(), view_of(orphan), limits.PARTNER_LOOK_S) != []
