"""The table of DESIGN 5a, row by row, on one Exchange."""

from __future__ import annotations

from dataclasses import replace

import pytest

from noloco_node.core import limits
from noloco_node.core.agreement import Agreed
from noloco_node.core.effects import (
    CloseExchange,
    DropCorrection,
    Effect,
    OpenExchange,
    ReceiveTensor,
    SendExchange,
    StreamTensor,
    VerifyTensor,
)
from noloco_node.core.events import (
    BoundaryTaken,
    ExchangeMessageReceived,
    ExchangeOpened,
    TensorDamaged,
    TensorReceived,
    TensorRefused,
    TensorVerified,
    TimePassed,
)
from noloco_node.core.exchange import ROWS, Exchange
from noloco_node.core.exchange_desk import table_markdown
from noloco_node.core.exchange_table import ExchangeState, Row, markdown, rules_of
from noloco_node.core.types import (
    Ask,
    Begin,
    Commit,
    ExchangeMessage,
    Have,
    Mode,
    Outcome,
    PeerId,
    Ready,
    Seat,
    Settings,
    Solo,
    Wait,
)

K, T0, SIZE = 5, 100.0, 400
GRACE_S, MAX_S = 3.0, 20.0
SPEC = Settings("run", 1, 1, 2, 1, 1, 0, grace_s=GRACE_S, exchange_max_s=MAX_S)
LOW, HIGH = Seat(0, 0), Seat(0, 1)
YOU = PeerId("you")
MINE, THEIRS = b"m" * 32, b"t" * 32
TAKEN = BoundaryTaken(K, SIZE, MINE, "shape")


def begin(me: Seat, **changes: object) -> Begin:
    """The partner's BEGIN, as the side in seat `me` hears it."""
    other = HIGH if me == LOW else LOW
    fields: dict[str, object] = {
        "outer_step": K,
        "sender": other,
        "receiver": me,
        "incarnation": 1,
        "codec": "float32",
        "shape_hash": "shape",
        "tensor_bytes": SIZE,
        "tensor_id": THEIRS,
    }
    return Begin(**{**fields, **changes})  # type: ignore[arg-type]


class Table:
    """An exchange and what it did last."""

    def __init__(
        self, me: Seat, early: Begin | None = None, taken: BoundaryTaken = TAKEN, settings: Settings = SPEC
    ) -> None:
        self.me = me
        partner = Agreed(HIGH if me == LOW else LOW, YOU)
        self.exchange, self.did = Exchange.start(K, me, partner, 77, taken, early, settings, T0)

    def hear(self, message: ExchangeMessage, now: float = T0 + 1) -> list[Effect]:
        self.did = self.exchange.handle(ExchangeMessageReceived(YOU, message), now)
        return self.did

    def meet(self, event: object, now: float = T0 + 1) -> list[Effect]:
        self.did = self.exchange.handle(event, now)
        return self.did

    def verified(self) -> Table:
        """Streams are up and the partner's tensor is checked."""
        self.meet(ExchangeOpened(K, YOU), T0)
        self.hear(begin(self.me), T0)
        self.meet(TensorReceived(K), T0)
        self.meet(TensorVerified(K), T0)
        return self

    def in_doubt(self) -> Table:
        self.verified().hear(Have(K), T0)
        assert self.exchange.state is ExchangeState.DOUBT
        return self

    @property
    def ended(self) -> tuple[Outcome | None, str]:
        return self.exchange.outcome, self.exchange.reason


def say(message: ExchangeMessage) -> SendExchange:
    return SendExchange(YOU, message)


def closed(outcome: Outcome, reason: str, me: Seat = LOW) -> CloseExchange:
    return CloseExchange(K, YOU, outcome, reason, HIGH if me == LOW else LOW)


def test_without_a_partner_the_step_is_solo_at_once() -> None:
    exchange, effects = Exchange.start(K, LOW, None, 1, TAKEN, None, SPEC, T0)
    assert effects == [CloseExchange(K, None, Outcome.SOLO, "no partner", None)]
    assert exchange.is_closed
    assert not exchange.blocks_training(T0)
    assert exchange.next_deadline is None


def test_the_boundary_opens_the_stream_and_each_opening_says_begin() -> None:
    table = Table(LOW)
    assert table.did == [OpenExchange(K, YOU, decider=True)]
    mine = Begin(K, LOW, HIGH, 77, "float32", "shape", SIZE, MINE, 1.0)
    assert table.meet(ExchangeOpened(K, YOU)) == [say(mine)]
    again = Begin(K, LOW, HIGH, 77, "float32", "shape", SIZE, MINE, 1.0, 100, THEIRS)
    assert table.meet(ExchangeOpened(K, YOU, 100, THEIRS)) == [say(again)]


def test_only_the_lower_seat_opens_as_the_decider() -> None:
    """Of two crossing streams the decider's stays: were both followers, each would give its own up."""
    assert Table(HIGH).did == [OpenExchange(K, YOU, decider=False)]


def test_a_fitting_begin_makes_room_and_streams() -> None:
    table = Table(LOW)
    table.meet(ExchangeOpened(K, YOU))
    assert table.hear(begin(LOW)) == [ReceiveTensor(K, YOU, SIZE, THEIRS), StreamTensor(K, YOU, 0)]


@pytest.mark.parametrize(
    ("held", "digest", "offset"), [(100, MINE, 100), (SIZE, MINE, SIZE), (100, THEIRS, 0), (SIZE + 1, MINE, 0)]
)
def test_a_repeated_begin_streams_from_the_offset_the_partner_holds(held: int, digest: bytes, offset: int) -> None:
    table = Table(LOW)
    table.meet(ExchangeOpened(K, YOU))
    table.hear(begin(LOW))
    table.meet(ExchangeOpened(K, YOU))
    assert table.hear(begin(LOW, held_bytes=held, held_id=digest)) == [StreamTensor(K, YOU, offset)]


def test_an_early_begin_streams_only_after_our_own_begin() -> None:
    table = Table(LOW, begin(LOW))
    assert table.did == [OpenExchange(K, YOU, decider=True), ReceiveTensor(K, YOU, SIZE, THEIRS)]
    assert table.exchange.deadline == T0 + MAX_S
    assert table.meet(ExchangeOpened(K, YOU))[1:] == [StreamTensor(K, YOU, 0)]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"sender": Seat(0, 2)}, "other seats"),
        ({"receiver": Seat(0, 2)}, "other seats"),
        ({"codec": "int8"}, "other codec"),
        ({"shape_hash": "x"}, "other shapes"),
        ({"tensor_bytes": SIZE + 4}, "other size"),
        ({"weight": 0.5}, "other weight"),
    ],
)
@pytest.mark.parametrize("early", [False, True])
def test_a_begin_that_does_not_fit_is_solo_with_the_reason(
    changes: dict[str, object], reason: str, early: bool
) -> None:
    bad = begin(LOW, **changes)
    table = Table(LOW, bad) if early else Table(LOW)
    did = table.did[1:] if early else table.hear(bad)
    assert did == [say(Solo(K, reason)), closed(Outcome.SOLO, reason)]


def test_no_begin_within_the_grace_time_is_solo() -> None:
    table = Table(LOW)
    assert table.exchange.next_deadline == T0 + GRACE_S
    assert table.exchange.blocks_training(T0 + GRACE_S - 0.01)
    assert not table.exchange.blocks_training(T0 + GRACE_S)
    reason = "partner did not begin"
    assert table.meet(TimePassed(), T0 + GRACE_S) == [say(Solo(K, reason)), closed(Outcome.SOLO, reason)]


def test_the_trade_ends_exchange_max_s_after_the_boundary_however_often_begin_comes() -> None:
    table = Table(LOW)
    for late in (1.0, 2.0, 10.0):
        table.hear(begin(LOW), T0 + late)
        assert table.exchange.deadline == T0 + MAX_S
    table.meet(TimePassed(), T0 + MAX_S)
    assert table.ended == (Outcome.SOLO, "deadline")


def test_the_decider_says_have_each_second_once_its_copy_is_verified() -> None:
    table = Table(LOW)
    table.meet(ExchangeOpened(K, YOU), T0)
    table.hear(begin(LOW), T0)
    assert table.meet(TensorReceived(K), T0) == [VerifyTensor(K)]
    assert table.meet(TensorReceived(K), T0) == [], "a repeated END is checked once"
    assert table.meet(TensorVerified(K), T0) == [say(Have(K))]
    assert table.meet(TimePassed(), T0 + 0.5) == []
    assert table.meet(TimePassed(), T0 + limits.HAVE_INTERVAL_S) == [say(Have(K))]
    assert table.exchange.next_deadline == T0 + 2 * limits.HAVE_INTERVAL_S


def test_ready_commits_before_anything_else() -> None:
    table = Table(LOW).verified()
    assert table.hear(Ready(K)) == [say(Commit(K)), closed(Outcome.PAIRED, "committed")]
    assert table.exchange.correction_due


def test_ready_at_the_deadline_commits_and_after_it_does_not() -> None:
    assert Table(LOW).verified().hear(Ready(K), T0 + MAX_S)[0] == say(Commit(K))
    late = Table(LOW).verified()
    did = late.hear(Ready(K), T0 + MAX_S + 0.001)
    assert did == [say(Solo(K, "deadline")), DropCorrection(K), closed(Outcome.SOLO, "deadline")]


def test_ready_without_a_verified_copy_does_nothing() -> None:
    table = Table(LOW)
    table.hear(begin(LOW))
    assert table.hear(Ready(K)) == []
    assert table.exchange.state is ExchangeState.TRADING


def test_the_follower_is_ready_once_it_has_both_have_and_the_verified_tensor() -> None:
    assert Table(HIGH).verified().hear(Have(K)) == [say(Ready(K))]
    early = Table(HIGH)
    early.hear(begin(HIGH))
    assert early.hear(Have(K)) == []
    early.meet(TensorReceived(K))
    assert early.meet(TensorVerified(K)) == [say(Ready(K))]
    assert early.exchange.state is ExchangeState.DOUBT


def test_the_follower_never_says_have_and_the_decider_never_ready() -> None:
    follower = Table(HIGH).verified()
    assert follower.did == []
    assert follower.hear(Ready(K)) == []
    decider = Table(LOW).verified()
    assert decider.hear(Have(K)) == []
    assert decider.exchange.state is ExchangeState.TRADING


@pytest.mark.parametrize("me", [LOW, HIGH])
def test_a_damaged_or_refused_tensor_is_solo_and_the_partner_is_told(me: Seat) -> None:
    damaged = Table(me)
    damaged.hear(begin(me))
    assert damaged.meet(TensorDamaged(K, "crc")) == [
        say(Solo(K, "tensor damaged")),
        closed(Outcome.SOLO, "tensor damaged", me),
    ]
    refused = Table(me)
    refused.hear(begin(me))
    refused.meet(TensorReceived(K))
    refused.meet(TensorRefused(K, "norm"))
    assert refused.ended == (Outcome.SOLO, "tensor refused")
    assert say(Solo(K, "tensor refused")) in refused.did


@pytest.mark.parametrize(("said", "known"), [("tensor refused", "tensor refused"), ("<script>", "other")])
def test_a_partners_solo_closes_with_a_reason_of_the_fixed_set(said: str, known: str) -> None:
    table = Table(LOW).verified()
    assert table.hear(Solo(K, said)) == [DropCorrection(K), closed(Outcome.SOLO, f"partner: {known}")]


def test_an_unasked_commit_is_solo_because_an_earlier_incarnation_was_paired() -> None:
    table = Table(HIGH).verified()
    table.hear(Commit(K))
    assert table.ended == (Outcome.SOLO, "closed before a restart")


def test_ask_makes_a_decider_that_holds_the_tensor_say_have_and_another_wait() -> None:
    assert Table(LOW).verified().hear(Ask(K)) == [say(Have(K))]
    assert Table(LOW).hear(Ask(K)) == [say(Wait(K))]


def test_a_partner_that_began_anew_is_received_anew() -> None:
    table = Table(LOW).verified()
    other = begin(LOW, incarnation=2, tensor_id=b"n" * 32)
    did = table.hear(other)
    assert did[:2] == [DropCorrection(K), ReceiveTensor(K, YOU, SIZE, b"n" * 32)]
    assert table.hear(Ready(K)) == []
    assert table.exchange.next_deadline == T0 + MAX_S, "HAVE is no longer repeated"


def test_a_verdict_on_a_replaced_tensor_is_void() -> None:
    table = Table(LOW)
    table.meet(ExchangeOpened(K, YOU))
    table.hear(begin(LOW))
    table.meet(TensorReceived(K))
    assert table.hear(begin(LOW, incarnation=2))[0] == DropCorrection(K)
    assert table.meet(TensorReceived(K)) == [VerifyTensor(K)]
    assert table.meet(TensorVerified(K)) == [], "that was the first one"
    assert table.meet(TensorVerified(K)) == [say(Have(K))]


def test_doubt_answers_have_with_ready_and_commits_on_commit() -> None:
    table = Table(HIGH).in_doubt()
    assert table.hear(Have(K)) == [say(Ready(K))]
    assert table.hear(begin(HIGH)) == [say(Ready(K))]
    assert table.hear(Commit(K)) == [closed(Outcome.PAIRED, "committed", HIGH)]
    assert table.exchange.correction_due
    assert table.hear(Commit(K)) == [], "a closed step never reopens"


def test_doubt_drops_c_on_solo() -> None:
    table = Table(HIGH).in_doubt()
    did = table.hear(Solo(K, "deadline"))
    assert did == [DropCorrection(K), closed(Outcome.SOLO, "partner: deadline", HIGH)]


def test_doubt_outlives_the_own_deadline_training_on_and_asking_each_second() -> None:
    table = Table(HIGH).in_doubt()
    assert table.exchange.blocks_training(T0 + MAX_S - 0.01)
    assert table.exchange.next_deadline == T0 + MAX_S
    assert table.meet(TimePassed(), T0 + MAX_S) == [say(Ask(K))]
    assert not table.exchange.blocks_training(T0 + MAX_S)
    assert table.meet(TimePassed(), T0 + MAX_S + 0.5) == []
    assert table.meet(TimePassed(), T0 + MAX_S + limits.ASK_INTERVAL_S) == [say(Ask(K))]
    assert table.meet(ExchangeOpened(K, YOU), T0 + MAX_S + 1.2) == [say(Ask(K))]
    assert table.hear(Wait(K), T0 + MAX_S + 1.3) == []
    assert table.exchange.state is ExchangeState.DOUBT


def test_doubt_ends_when_the_decider_began_anew() -> None:
    table = Table(HIGH).in_doubt()
    did = table.hear(begin(HIGH, incarnation=2, tensor_id=b"n" * 32))
    reason = "partner restarted"
    assert did == [say(Solo(K, reason)), DropCorrection(K), closed(Outcome.SOLO, reason, HIGH)]


def test_doubt_ends_at_the_next_boundary() -> None:
    table = Table(HIGH).in_doubt()
    did = table.exchange.force_close(T0 + 60)
    assert did == [say(Solo(K, "doubt")), DropCorrection(K), closed(Outcome.SOLO, "doubt", HIGH)]


def test_late_news_of_a_closed_exchange_does_nothing() -> None:
    table = Table(LOW)
    table.meet(TimePassed(), T0 + GRACE_S)
    for event in (ExchangeOpened(K, YOU), TensorReceived(K), TensorVerified(K), TensorRefused(K, ""), TimePassed()):
        assert table.meet(event, T0 + 50) == []
    assert table.exchange.force_close(T0 + 60) == []


def test_two_rows_for_one_case_are_refused() -> None:
    with pytest.raises(ValueError, match="two rows"):
        rules_of([*ROWS, ROWS[1]])


def test_the_printed_table_has_every_row_and_all_states() -> None:
    lines = table_markdown().splitlines()
    assert lines[:2] == ["| state | event | then |", "|---|---|---|"]
    states = [line.split("|")[1].split(",")[0].strip() for line in lines[2:]]
    assert states == sorted(states, key=["TRAINING", "AHEAD", "TRADING", "DOUBT", "CLOSED"].index)
    assert set(states) == {"TRAINING", "AHEAD", "TRADING", "DOUBT", "CLOSED"}
    assert markdown([Row(ExchangeState.DOUBT, Have, "a", "b", lambda *_: [])]).endswith("| DOUBT | a | b |\n")


# --- modes ----------------------------------------------------------------------------------------

OVERLAP = replace(SPEC, mode=Mode.OVERLAP, outer_interval_s=60.0)


def test_x_that_is_not_finite_is_never_sent() -> None:
    table = Table(LOW, taken=replace(TAKEN, is_finite=False))
    assert table.ended == (Outcome.SOLO, "own tensor not finite")
    assert table.did == [closed(Outcome.SOLO, "own tensor not finite")]


@pytest.mark.parametrize(("settings", "waits"), [(SPEC, True), (OVERLAP, False)])
def test_only_joint_holds_training_up(settings: Settings, waits: bool) -> None:
    table = Table(HIGH, settings=settings)
    assert table.exchange.blocks_training(T0 + 1) is waits
    table.in_doubt()
    assert table.exchange.blocks_training(T0 + 1) is waits
    assert table.exchange.is_pending(T0 + 1)


def test_overlap_waits_half_an_outer_step_for_the_partner_and_asks_in_the_other_half() -> None:
    late = Table(LOW, settings=OVERLAP)
    assert late.meet(TimePassed(), T0 + 29.9) == []
    late.meet(TimePassed(), T0 + 30.0)
    assert late.ended == (Outcome.SOLO, "partner did not begin")
    doubtful = Table(HIGH, settings=OVERLAP).in_doubt()
    assert doubtful.meet(TimePassed(), T0 + 29.9) == []
    assert doubtful.meet(TimePassed(), T0 + 30.0) == [say(Ask(K))]
    assert not doubtful.exchange.is_pending(T0 + 30.0)
