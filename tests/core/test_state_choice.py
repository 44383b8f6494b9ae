"""Where a seat's weights come from: own disk, donors in a drawn order, the seed."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from noloco_node.core import effects as do
from noloco_node.core import events as ev
from noloco_node.core import limits
from noloco_node.core.seats import Roster
from noloco_node.core.state_choice import StateChoice
from noloco_node.core.types import Clock, Outcome, PeerId, Seat, SeatRecord, SeatState, Settings

SETTINGS = Settings(run="r", seed=3, num_stages=2, num_replicas=8, micro_batches=4, inner_steps=5, total_outer_steps=0)
SEAT, ME = Seat(1, 0), PeerId("me")
NOW_S, LIVES_S, EXPIRES = 10.0, 60.0, 1_060_000


def record(replica: int, step: int, state: SeatState = SeatState.ACTIVE, **changes: Any) -> SeatRecord:
    plain = SeatRecord("r", Seat(1, replica), PeerId(f"p{replica}"), 1, 1, 1, EXPIRES, state, checkpoint_step=step)
    return replace(plain, **changes)


def choice(*records: SeatRecord, peer: PeerId = ME, settings: Settings = SETTINGS, **started: Any) -> StateChoice:
    roster = Roster(settings)
    for known in records:
        assert roster.learn(known, LIVES_S, NOW_S)
    made = StateChoice(settings, peer, roster)
    made.started(ev.Started(**started))
    return made


def donors(made: StateChoice) -> tuple[PeerId, ...]:
    found = made.choose(SEAT, NOW_S)
    assert isinstance(found, do.FetchState)
    return found.donors


def test_own_checkpoint_comes_first_unless_it_is_stale() -> None:
    newest = limits.STALE_STEPS_MAX + 5
    fresh = choice(record(1, newest), checkpoint_step=5, checkpoint_seat=SEAT)
    assert fresh.choose(SEAT, NOW_S) == do.LoadCheckpoint(SEAT)
    stale = choice(record(1, newest), checkpoint_step=4, checkpoint_seat=SEAT)
    assert donors(stale) == ("p1",)


def test_a_stale_checkpoint_is_better_than_none() -> None:
    assert choice(checkpoint_step=4, checkpoint_seat=SEAT).choose(SEAT, NOW_S) == do.LoadCheckpoint(SEAT)


def test_the_checkpoint_of_another_seat_of_the_stage_will_do() -> None:
    made = choice(kept=((Seat(1, 5), 7), (Seat(0, 0), 9)))
    assert made.choose(SEAT, NOW_S) == do.LoadCheckpoint(SEAT, Seat(1, 5))
    made.failed("damaged")
    assert made.choose(SEAT, NOW_S) == do.InitialiseState(SEAT)
    much_newer = choice(checkpoint_step=2, checkpoint_seat=SEAT, kept=((Seat(1, 5), 7),))
    assert much_newer.choose(SEAT, NOW_S) == do.LoadCheckpoint(SEAT, Seat(1, 5))


def test_one_that_failed_is_not_tried_again_and_one_that_was_not_asked_for_is_kept() -> None:
    made = choice(record(1, 6), checkpoint_step=5, checkpoint_seat=SEAT)
    assert made.choose(SEAT, NOW_S) == do.LoadCheckpoint(SEAT)
    made.failed("damaged")
    assert donors(made) == ("p1",)
    made.failed("busy")
    assert donors(made) == ("p1",)
    stale = choice(record(1, 90), checkpoint_step=5, checkpoint_seat=SEAT)
    assert donors(stale) == ("p1",)
    stale.failed("gone")
    assert stale.kept == {SEAT: 5}


def test_replicas_at_work_come_before_spares_and_fresh_ones_before_others() -> None:
    made = choice(
        record(1, 9, SeatState.LEAVING),
        record(2, 7),
        record(3, 9),
        record(4, 9, SeatState.JOINING),
        record(5, 1),  # stale itself
        record(6, 9),
    )
    order = donors(made)
    assert set(order[:2]) == {"p3", "p6"}
    assert order[2:] == ("p4", "p1", "p2")


def test_a_spares_checkpoint_takes_a_dead_stage_up_again() -> None:
    assert donors(choice(record(6, 4, SeatState.LEAVING))) == ("p6",)


def test_twenty_joiners_spread_over_the_donors() -> None:
    records = [record(replica, 9) for replica in range(1, 8)]
    first = Counter(donors(choice(*records, peer=PeerId(f"joiner{n}")))[0] for n in range(20))
    assert len(first) >= 5
    assert max(first.values()) <= 7


def test_the_order_is_drawn_anew_when_nobody_gave() -> None:
    made = choice(*[record(replica, 9) for replica in range(1, 8)])
    orders = set()
    for _ in range(5):
        orders.add(donors(made))
        made.failed("busy")
    assert len(orders) == 5
    assert all(len(order) <= limits.DONORS_ASKED_MAX for order in orders)


def test_the_order_is_drawn_anew_until_an_outer_step_closed_with_what_was_given() -> None:
    """Else the same donor of useless weights is asked first for ever."""
    made = choice(*[record(replica, 9) for replica in range(1, 8)])
    first, orders = donors(made), set()
    for _ in range(5):
        orders.add(donors(made))
        made.loaded()
        made.closed(Outcome.SOLO)
    assert len(orders) == 5
    made.closed(Outcome.PAIRED)
    assert donors(made) == first


def test_one_record_with_a_giant_step_does_not_make_the_others_stale() -> None:
    liar = record(7, 10**9)
    made = choice(record(1, 6), record(2, 6), liar, checkpoint_step=5, checkpoint_seat=SEAT)
    assert made.choose(SEAT, NOW_S) == do.LoadCheckpoint(SEAT)
    assert {"p1", "p2"} < set(donors(choice(record(1, 6), record(2, 6), liar)))


def test_own_weights_that_others_refuse_are_not_loaded_again() -> None:
    made = choice(record(1, 5), checkpoint_step=5, checkpoint_seat=SEAT)
    made.distrusts_own = True
    assert donors(made) == ("p1",)
    made.loaded()
    assert made.choose(SEAT, NOW_S) == do.LoadCheckpoint(SEAT)
    alone = choice(checkpoint_step=5, checkpoint_seat=SEAT)
    alone.distrusts_own = True
    assert alone.choose(SEAT, NOW_S) == do.LoadCheckpoint(SEAT)


def test_a_stage_that_has_trained_waits_and_only_reinit_draws_it_anew() -> None:
    trained = record(1, 0, outer_step=4)
    for settings, waits in ((SETTINGS, False), (replace(SETTINGS, clock=Clock.STEPS), True)):
        found = choice(trained, settings=settings).choose(SEAT, NOW_S)
        assert (found is None) == waits  # on the time clock an outer step passes without training, too
    elsewhere = record(1, 4, seat=Seat(0, 1))
    assert choice(elsewhere).choose(SEAT, NOW_S) is None
    assert choice(elsewhere, reinit_stage=True).choose(SEAT, NOW_S) == do.InitialiseState(SEAT)
