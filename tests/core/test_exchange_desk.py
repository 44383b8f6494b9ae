"""The desk: early messages, strangers, memory of closed steps, and what the parent asks."""

from __future__ import annotations

import pytest
from exchange_world import settings as spec

from noloco_node.core import limits
from noloco_node.core.effects import AnswerOffer, CloseExchange, Effect, OpenExchange, ReceiveTensor, SendExchange
from noloco_node.core.events import (
    BoundaryTaken,
    CorrectionAdded,
    ExchangeMessageReceived,
    ExchangeOpened,
    OfferReceived,
    TensorReceived,
    TensorVerified,
    TimePassed,
)
from noloco_node.core.exchange_desk import ExchangeDesk
from noloco_node.core.exchange_table import ExchangeState
from noloco_node.core.types import (
    Ask,
    Begin,
    ClosedStep,
    Commit,
    ExchangeMessage,
    Have,
    Offer,
    OfferAnswer,
    Outcome,
    PeerId,
    Ready,
    Seat,
    Solo,
    Wait,
)
from noloco_node.errors import LocalProtocolError

ME, YOU, THIRD = Seat(0, 0), PeerId("you"), PeerId("third")
YOUR_SEAT = Seat(0, 1)
DIGEST = b"d" * 32


def view(seat: Seat) -> PeerId | None:
    return {YOUR_SEAT: YOU, Seat(0, 2): THIRD}.get(seat)


def begin(k: int, sender: Seat = YOUR_SEAT) -> Begin:
    return Begin(k, sender, ME, 1, "float32", "shape", 400, b"y" * 32)


def hear(desk: ExchangeDesk, peer: PeerId, message: ExchangeMessage, now: float = 1.0) -> list[Effect]:
    return desk.handle(ExchangeMessageReceived(peer, message), view, now)


def new_desk(num_replicas: int = 2) -> ExchangeDesk:
    return ExchangeDesk(spec(num_replicas), ME, 1, partner=lambda *_: 1)


def agree(desk: ExchangeDesk, k: int, now: float = 0.0) -> None:
    desk.begin_phase(k, view, now)
    answered = desk.handle(OfferReceived(1, Offer(k, YOUR_SEAT, ME), YOU), view, now)
    assert answered == [AnswerOffer(1, OfferAnswer.AGREED)]


def take(desk: ExchangeDesk, k: int, now: float = 0.0) -> list[Effect]:
    return desk.boundary(BoundaryTaken(k, 400, DIGEST, "shape"), view, now)


def trade(desk: ExchangeDesk, k: int, now: float = 0.0) -> list[Effect]:
    """One paired outer step, up to COMMIT."""
    agree(desk, k, now)
    take(desk, k, now)
    desk.handle(ExchangeOpened(k, YOU), view, now)
    hear(desk, YOU, begin(k), now)
    desk.handle(TensorReceived(k), view, now)
    desk.handle(TensorVerified(k), view, now)
    return hear(desk, YOU, Ready(k), now)


def test_a_paired_step_leaves_a_correction_due_until_it_is_added() -> None:
    desk = new_desk()
    effects = trade(desk, 0)
    assert effects == [SendExchange(YOU, Commit(0)), CloseExchange(0, YOU, Outcome.PAIRED, "committed", YOUR_SEAT)]
    assert desk.correction_due == 0
    assert desk.is_open
    with pytest.raises(LocalProtocolError):
        take(desk, 1)
    desk.handle(CorrectionAdded(0), view, 1.0)
    assert desk.correction_due is None
    assert not desk.is_open
    assert desk.last_outcome is not None
    assert (desk.last_outcome.outcome, desk.last_outcome.seat) == (Outcome.PAIRED, YOUR_SEAT)


def test_a_closed_step_is_answered_from_memory_for_four_steps_then_passed() -> None:
    desk = new_desk()
    for k in range(5):
        trade(desk, k)
        desk.correction_added(k)
    for message in (Ready, Ask, Have):
        assert hear(desk, YOU, message(4)) == [SendExchange(YOU, Commit(4))]
    assert hear(desk, YOU, begin(1)) == [SendExchange(YOU, Commit(1))]
    assert hear(desk, YOU, Ask(0)) == [SendExchange(YOU, Solo(0, "passed"))]
    assert hear(desk, YOU, Ask(-3)) == [SendExchange(YOU, Solo(-3, "passed"))]
    assert limits.EXCHANGE_MEMORY_STEPS == 4


def test_a_stranger_never_hears_commit_and_never_acts() -> None:
    desk = new_desk()
    agree(desk, 0)
    take(desk, 0)
    for message in (begin(0, Seat(0, 2)), Ready(0), Ask(0), Have(0)):
        assert hear(desk, THIRD, message) == [SendExchange(THIRD, Solo(0, "other partner"))]
    for quiet in (Commit(0), Solo(0, "x"), Wait(0)):
        assert hear(desk, THIRD, quiet) == []
    assert desk.handle(ExchangeOpened(0, THIRD), view, 1.0) == []
    assert desk.state is ExchangeState.TRADING
    hear(desk, YOU, Solo(0, "deadline"))
    assert hear(desk, THIRD, Ask(0)) == [SendExchange(THIRD, Solo(0, "other partner"))]


def test_a_step_not_reached_makes_the_partner_wait_and_its_begin_is_used_at_the_boundary() -> None:
    desk = new_desk()
    agree(desk, 3)
    assert hear(desk, YOU, begin(3)) == [SendExchange(YOU, Wait(3))]
    assert hear(desk, YOU, Ask(3)) == [SendExchange(YOU, Wait(3))]
    assert hear(desk, YOU, Ready(3)) == []
    assert take(desk, 3) == [OpenExchange(3, YOU, decider=True), ReceiveTensor(3, YOU, 400, b"y" * 32)]


def test_early_begins_are_few_and_the_partners_is_never_pushed_out() -> None:
    desk = new_desk()
    agree(desk, 3)
    hear(desk, YOU, begin(3))
    for n in range(50):
        hear(desk, PeerId(f"stranger{n}"), begin(4))
    hear(desk, YOU, begin(9))
    assert len(desk._memory._early) == limits.EARLY_BEGINS_MAX
    assert ReceiveTensor(3, YOU, 400, b"y" * 32) in take(desk, 3)


def test_an_early_begin_of_a_skipped_step_is_forgotten() -> None:
    desk = new_desk()
    agree(desk, 3)
    hear(desk, YOU, begin(3))
    desk.begin_phase(6, view, 1.0)
    assert desk._memory._early == {}
    assert hear(desk, YOU, begin(3)) == [SendExchange(YOU, Solo(3, "passed"))]


def test_the_deadline_is_judged_before_the_message_is() -> None:
    desk = new_desk()
    agree(desk, 0)
    take(desk, 0)
    late = hear(desk, YOU, begin(0), now=3.5)
    reason = "partner did not begin"
    assert late == [
        SendExchange(YOU, Solo(0, reason)),
        CloseExchange(0, YOU, Outcome.SOLO, reason, YOUR_SEAT),
        SendExchange(YOU, Solo(0, reason)),
    ]


def test_a_seat_with_another_holder_at_the_boundary_is_lost() -> None:
    desk = new_desk()
    agree(desk, 0)
    taken = BoundaryTaken(0, 400, DIGEST, "shape")
    effects = desk.boundary(taken, lambda seat: PeerId("new") if seat == YOUR_SEAT else None, 0.0)
    assert effects == [CloseExchange(0, None, Outcome.SOLO, "partner lost", None)]
    assert hear(desk, YOU, begin(0)) == [SendExchange(YOU, Solo(0, "partner lost"))]


def test_a_restarted_node_answers_for_the_outcome_of_its_checkpoint() -> None:
    desk = new_desk()
    desk.recall(ClosedStep(6, Outcome.PAIRED, "", YOUR_SEAT, YOU))
    desk.begin_phase(7, view, 0.0)
    assert hear(desk, YOU, Ask(6)) == [SendExchange(YOU, Commit(6))]
    assert hear(desk, THIRD, Ask(6)) == [SendExchange(THIRD, Solo(6, "other partner"))]
    assert hear(desk, YOU, Ask(5)) == [SendExchange(YOU, Solo(5, "passed"))]


def test_stop_closes_what_is_open_and_can_be_said_twice() -> None:
    desk = new_desk()
    agree(desk, 0)
    take(desk, 0)
    assert desk.blocks_training(0.5)
    assert desk.partner == YOUR_SEAT
    assert CloseExchange(0, YOU, Outcome.SOLO, "next step due", YOUR_SEAT) in desk.stop(1.0)
    assert desk.stop(1.0) == []
    assert not desk.blocks_training(1.0)
    assert desk.partner is None


def test_deadlines_of_offers_and_of_the_exchange_are_both_kept() -> None:
    desk = new_desk()
    assert desk.next_deadline(0.0) is None
    agree(desk, 0)
    take(desk, 0, now=10.0)
    assert desk.next_deadline(10.0) == 13.0
    desk.begin_phase(1, view, 10.0)
    assert desk.handle(TimePassed(), view, 13.0)[-1] == CloseExchange(
        0, YOU, Outcome.SOLO, "partner did not begin", YOUR_SEAT
    )
    assert desk.state is ExchangeState.CLOSED


def test_tensor_news_of_another_step_is_ignored() -> None:
    desk = new_desk()
    agree(desk, 0)
    assert desk.state is ExchangeState.TRAINING
    take(desk, 0)
    hear(desk, YOU, begin(0))
    assert desk.handle(TensorReceived(1), view, 1.0) == []
