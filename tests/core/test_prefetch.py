"""Mode prefetch: slow weights go to the partner before the boundary, and the exchange goes on from there."""

from __future__ import annotations

from dataclasses import replace

import pytest
from exchange_world import GRACE_S, settings

from noloco_node.core import limits
from noloco_node.core.effects import (
    CloseExchange,
    DropPrefetch,
    Effect,
    FreezeSlowWeights,
    OpenExchange,
    ReceiveTensor,
    SendExchange,
    StreamTensor,
    VerifyTensor,
)
from noloco_node.core.events import (
    BoundaryTaken,
    CorrectionAdded,
    Event,
    ExchangeMessageReceived,
    ExchangeOpened,
    OfferReceived,
    SlowWeightsFrozen,
    TensorDamaged,
    TensorReceived,
    TensorVerified,
    TimePassed,
)
from noloco_node.core.exchange_desk import ExchangeDesk
from noloco_node.core.types import (
    Ask,
    Begin,
    Commit,
    ExchangeMessage,
    Mode,
    Offer,
    Outcome,
    PeerId,
    Reached,
    Ready,
    Seat,
    Solo,
    Wait,
)

K, SIZE, SLOW = 3, 400, 250
ME, YOUR_SEAT, YOU = Seat(0, 0), Seat(0, 1), PeerId("you")
MINE, THEIRS = b"m" * 32, b"t" * 32
FROZEN = SlowWeightsFrozen(K, SIZE, MINE, "shape")
BEGIN = Begin(K, YOUR_SEAT, ME, 1, "float32", "shape", SIZE, THEIRS, ahead=True)
OWN = Begin(K, ME, YOUR_SEAT, 1, "float32", "shape", SIZE, MINE, ahead=True)
WAIT = SendExchange(YOU, Wait(K))
EXPECTED = ReceiveTensor(K, YOU, SIZE, THEIRS, ahead=True)


class Node:
    """One desk and what it did last. `holder` is who holds the partner's seat in its view."""

    def __init__(self, mode: Mode = Mode.PREFETCH) -> None:
        self.holder: PeerId | None = YOU
        self.desk = ExchangeDesk(settings(2, mode=mode), ME, 1, partner=lambda *_: 1)

    def view(self, seat: Seat) -> PeerId | None:
        return self.holder if seat == YOUR_SEAT else None

    def meet(self, event: Event, now: float = 1.0) -> list[Effect]:
        return [*self.desk.handle(event, self.view, now), *self.desk.look_ahead(self.view)]

    def hear(self, message: ExchangeMessage, now: float = 1.0) -> list[Effect]:
        return self.meet(ExchangeMessageReceived(YOU, message), now)

    def agree(self, k: int = K) -> list[Effect]:
        begun = [*self.desk.begin_phase(k, self.view, 0.0), *self.desk.look_ahead(self.view)]
        return [e for e in (*begun, *self.meet(OfferReceived(1, Offer(k, YOUR_SEAT, ME), YOU))) if is_trade(e)]

    def opened(self) -> list[Effect]:
        self.agree()
        self.meet(FROZEN)
        return self.meet(ExchangeOpened(K, YOU))

    def sending(self) -> Node:
        """Both BEGINs are over: phi travels both ways."""
        self.opened()
        self.hear(BEGIN)
        return self

    def boundary(self, now: float = 10.0) -> list[Effect]:
        before = self.desk.before_boundary(now)
        return [*before, *self.desk.boundary(BoundaryTaken(K, SIZE, MINE, "shape"), self.view, now)]


def is_trade(effect: Effect) -> bool:
    return isinstance(effect, FreezeSlowWeights | OpenExchange | StreamTensor | ReceiveTensor | DropPrefetch)


@pytest.fixture
def node() -> Node:
    return Node()


# --- before the boundary --------------------------------------------------------------------------


def test_slow_weights_are_frozen_as_soon_as_the_partner_is_agreed(node: Node) -> None:
    assert node.agree() == [FreezeSlowWeights(K)]
    assert node.meet(FROZEN) == [OpenExchange(K, YOU, decider=True)]
    assert node.meet(ExchangeOpened(K, YOU)) == [SendExchange(YOU, OWN)]
    assert node.hear(BEGIN) == [WAIT, EXPECTED, StreamTensor(K, YOU, 0)]
    assert node.meet(TimePassed()) == []


@pytest.mark.parametrize("mode", [Mode.JOINT, Mode.OVERLAP])
def test_other_modes_send_nothing_ahead(mode: Mode) -> None:
    assert Node(mode).agree() == []


def test_a_begin_that_came_before_phi_was_frozen_is_heard_then(node: Node) -> None:
    node.agree()
    assert node.hear(BEGIN) == [WAIT]
    assert node.meet(FROZEN) == [OpenExchange(K, YOU, decider=True), EXPECTED]
    assert node.meet(ExchangeOpened(K, YOU)) == [SendExchange(YOU, OWN), StreamTensor(K, YOU, 0)]


def test_a_stream_that_is_up_again_goes_on_where_each_side_holds(node: Node) -> None:
    node.sending()
    assert node.meet(ExchangeOpened(K, YOU, 120, THEIRS)) == [
        SendExchange(YOU, replace(OWN, held_bytes=120, held_id=THEIRS))
    ]
    assert node.hear(replace(BEGIN, held_bytes=SLOW, held_id=MINE)) == [WAIT, StreamTensor(K, YOU, SLOW)]


def test_a_partner_that_began_anew_is_sent_all_from_zero(node: Node) -> None:
    node.sending()
    anew = replace(BEGIN, incarnation=2, tensor_id=b"u" * 32)
    assert node.hear(anew) == [WAIT, ReceiveTensor(K, YOU, SIZE, b"u" * 32, ahead=True), StreamTensor(K, YOU, 0)]


def test_nothing_is_frozen_while_a_correction_may_still_come(node: Node) -> None:
    """phi changes when c is added: only then it is fixed until the next boundary."""
    node.sending().boundary()
    node.hear(Reached(K))
    node.meet(TensorReceived(K))
    node.meet(TensorVerified(K))
    assert node.agree(K + 1) == []
    assert node.hear(Ready(K))[0] == SendExchange(YOU, Commit(K))
    assert node.desk.look_ahead(node.view) == []
    assert node.meet(CorrectionAdded(K)) == [FreezeSlowWeights(K + 1)]


def test_nothing_is_frozen_while_the_boundary_is_being_taken(node: Node) -> None:
    node.holder = None
    node.agree()
    node.desk.before_boundary(9.0)
    node.holder = YOU
    assert node.meet(OfferReceived(1, Offer(K, YOUR_SEAT, ME), YOU))[1:] == []
    assert node.desk.partner_of(K) is not None


def test_the_lost_partners_part_is_dropped_and_not_asked_for_again(node: Node) -> None:
    node.sending()
    node.holder = None
    assert node.meet(TimePassed()) == [DropPrefetch(K, YOU)]
    node.holder = YOU
    assert node.meet(TimePassed()) == []
    assert OpenExchange(K, YOU, decider=True) in node.boundary()


@pytest.mark.parametrize("event", [TensorDamaged(K, "crc"), ExchangeMessageReceived(YOU, Solo(K, "deadline"))])
def test_after_damage_or_solo_all_is_sent_after_the_boundary(node: Node, event: Event) -> None:
    node.sending()
    assert node.meet(event)[-1] == DropPrefetch(K, YOU)
    assert OpenExchange(K, YOU, decider=True) in node.boundary()


def test_a_begin_that_does_not_fit_ends_it_and_the_boundary_says_why(node: Node) -> None:
    node.opened()
    assert node.hear(replace(BEGIN, shape_hash="other")) == [WAIT, DropPrefetch(K, YOU)]
    effects = node.boundary()
    assert SendExchange(YOU, Solo(K, "other shapes")) in effects


def test_slow_weights_that_are_not_finite_are_not_sent(node: Node) -> None:
    node.agree()
    assert node.meet(replace(FROZEN, is_finite=False)) == [DropPrefetch(K, YOU)]


def test_strangers_change_nothing(node: Node) -> None:
    node.sending()
    third = PeerId("third")
    assert node.meet(ExchangeOpened(K, third)) == []
    assert node.meet(ExchangeMessageReceived(third, BEGIN)) == [SendExchange(third, Wait(K))]
    assert node.meet(ExchangeMessageReceived(third, Solo(K, ""))) == []


def test_a_seat_given_up_drops_what_was_sent_ahead(node: Node) -> None:
    node.sending()
    assert node.desk.stop(5.0) == [DropPrefetch(K, YOU)]
    assert node.meet(TimePassed()) == []


def test_a_step_passed_by_drops_it_too(node: Node) -> None:
    node.sending()
    assert node.desk.begin_phase(K + 1, node.view, 5.0)[0] == DropPrefetch(K, YOU)


# --- the boundary and after -----------------------------------------------------------------------


def test_the_boundary_goes_on_with_the_stream_and_tensor_that_are_under_way(node: Node) -> None:
    node.sending()
    assert node.boundary() == [SendExchange(YOU, Reached(K))]
    assert node.hear(Reached(K)) == [replace(EXPECTED, ahead=False)]
    assert node.meet(TensorReceived(K)) == [VerifyTensor(K)]


def test_a_partner_that_was_first_has_its_whole_tensor_checked_at_the_boundary(node: Node) -> None:
    node.sending()
    assert node.hear(Reached(K)) == [WAIT, replace(EXPECTED, ahead=False)]
    assert node.desk.partner_waits(K)
    assert node.meet(TensorReceived(K)) == []
    assert node.boundary() == [SendExchange(YOU, Reached(K)), VerifyTensor(K)]


def test_a_partner_that_only_runs_ahead_is_not_said_to_wait(node: Node) -> None:
    node.sending()
    assert not node.desk.partner_waits(K)


def test_the_grace_time_runs_until_the_partner_has_reached_its_boundary(node: Node) -> None:
    """Its BEGIN came long ago and says nothing about that."""
    node.sending().boundary(10.0)
    node.meet(TimePassed(), 10.0 + GRACE_S)
    assert node.desk.last_outcome is not None
    assert node.desk.last_outcome.reason == "partner did not begin"
    other = Node().sending()
    other.boundary(10.0)
    other.hear(Reached(K), 11.0)
    other.meet(TimePassed(), 10.0 + GRACE_S)
    assert other.desk.last_outcome is None
    assert other.desk.blocks_training(10.0 + GRACE_S)


def test_a_stream_that_comes_up_after_the_boundary_begins_in_full(node: Node) -> None:
    node.agree()
    node.meet(FROZEN)
    assert node.boundary() == []
    assert node.meet(ExchangeOpened(K, YOU)) == [SendExchange(YOU, replace(OWN, ahead=False))]
    full = replace(BEGIN, ahead=False)
    assert node.hear(full) == [replace(EXPECTED, ahead=False), StreamTensor(K, YOU, 0)]


def test_a_begin_in_full_on_a_new_stream_counts_as_reached(node: Node) -> None:
    node.sending().boundary()
    node.meet(ExchangeOpened(K, YOU, SLOW, THEIRS))
    full = replace(BEGIN, ahead=False, held_bytes=SLOW, held_id=MINE)
    assert node.hear(full) == [replace(EXPECTED, ahead=False), StreamTensor(K, YOU, SLOW)]


def test_a_partner_that_still_runs_ahead_after_our_boundary_has_not_begun(node: Node) -> None:
    node.agree()
    node.boundary(10.0)
    node.meet(ExchangeOpened(K, YOU))
    assert node.hear(BEGIN) == [EXPECTED, StreamTensor(K, YOU, 0)]
    node.meet(TimePassed(), 10.0 + GRACE_S)
    assert node.desk.last_outcome is not None
    assert node.desk.last_outcome.reason == "partner did not begin"


def test_what_was_not_frozen_in_time_is_all_sent_after_the_boundary(node: Node) -> None:
    node.agree()
    assert node.boundary() == [OpenExchange(K, YOU, decider=True)]
    assert node.meet(FROZEN) == []


def test_a_partner_lost_at_the_boundary_is_a_solo_step(node: Node) -> None:
    node.sending()
    node.holder = PeerId("other")
    effects = node.boundary()
    assert effects == [DropPrefetch(K, YOU), CloseExchange(K, None, Outcome.SOLO, "partner lost", None)]


@pytest.mark.parametrize("event", [TensorDamaged(K, "crc"), ExchangeMessageReceived(YOU, Solo(K, "deadline"))])
def test_nothing_is_dropped_while_the_boundary_is_being_taken_and_the_step_is_solo(node: Node, event: Event) -> None:
    node.sending()
    node.desk.before_boundary(9.0)
    assert not [effect for effect in node.meet(event) if isinstance(effect, DropPrefetch)]
    effects = node.desk.boundary(BoundaryTaken(K, SIZE, MINE, "shape"), node.view, 10.0)
    assert effects == [DropPrefetch(K, YOU), CloseExchange(K, None, Outcome.SOLO, "partner lost", None)]
    assert [e.message for e in node.hear(BEGIN) if isinstance(e, SendExchange)] == [Solo(K, "partner lost")]


def test_a_record_that_lapses_and_returns_while_the_boundary_is_being_taken_changes_nothing(node: Node) -> None:
    node.sending()
    node.desk.before_boundary(9.0)
    node.holder = None
    assert node.meet(TimePassed()) == []
    node.holder = YOU
    effects = node.desk.boundary(BoundaryTaken(K, SIZE, MINE, "shape"), node.view, 10.0)
    assert effects == [SendExchange(YOU, Reached(K))]


def test_a_partner_that_begins_again_and_again_is_sent_the_rest_after_the_boundary(node: Node) -> None:
    node.sending()
    answers = [node.hear(BEGIN) for _ in range(limits.PREFETCH_BEGINS_MAX + 3)]
    assert sum(isinstance(e, StreamTensor) for effects in answers for e in effects) == limits.PREFETCH_BEGINS_MAX - 1
    assert sum(e == DropPrefetch(K, YOU) for effects in answers for e in effects) == 1


def test_reached_is_answered_after_the_step_is_closed_like_begin(node: Node) -> None:
    node.sending().boundary()
    node.hear(Solo(K, "deadline"))
    (answer,) = node.hear(Reached(K))
    assert isinstance(answer, SendExchange)
    assert isinstance(answer.message, Solo)
    assert node.hear(Ask(K)) == [answer]


def test_reached_without_its_begin_says_nothing(node: Node) -> None:
    node.opened()
    node.boundary()
    assert node.hear(Reached(K)) == []
    node.meet(TimePassed(), 10.0 + GRACE_S)
    assert node.desk.last_outcome is not None
