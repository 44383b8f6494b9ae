"""The roster: who holds which seat by the records known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from noloco_node.core import limits
from noloco_node.core.seats import Roster, standing
from noloco_node.core.types import PeerId, Seat, SeatRecord, SeatState, Settings

SETTINGS = Settings(run="r", seed=1, num_stages=2, num_replicas=4, micro_batches=4, inner_steps=5, total_outer_steps=0)
WALL_MS = 1_700_000_000_000  # unix ms at monotonic 0
SEAT = Seat(1, 2)


def record(peer: str = "a", *, at: float = 0.0, lease_s: float = 60.0, **fields: object) -> SeatRecord:
    """Signed at monotonic second `at`."""
    now_ms = WALL_MS + int(at * 1000)
    base = SeatRecord(
        run="r",
        seat=SEAT,
        peer=PeerId(peer),
        incarnation=1,
        seq=now_ms,
        claim=WALL_MS,
        expires=now_ms + int(lease_s * 1000),
        state=SeatState.ACTIVE,
    )
    return replace(base, **fields)  # type: ignore[arg-type]


def learn(roster: Roster, record: SeatRecord, now: float) -> bool:
    return roster.learn(record, (record.expires - WALL_MS) / 1000 - now, now)


@pytest.fixture
def roster() -> Roster:
    return Roster(SETTINGS)


def test_the_earliest_claim_holds_the_seat(roster: Roster) -> None:
    late, early = record("a", claim=WALL_MS - 5), record("b", claim=WALL_MS - 9)
    assert learn(roster, late, 0)
    assert learn(roster, early, 0)
    assert roster.holder(SEAT, 0) == early
    assert roster.outranked(late, 0) == early
    assert roster.outranked(early, 0) is None


def test_equal_claims_are_decided_by_the_hash_of_run_seat_and_peer(roster: Roster) -> None:
    rivals = [record(peer) for peer in "abcdef"]
    for rival in rivals:
        learn(roster, rival, 0)
    assert roster.holder(SEAT, 0) == min(rivals, key=standing)
    elsewhere = [replace(rival, seat=Seat(0, 0)) for rival in rivals]
    assert [r.peer for r in sorted(rivals, key=standing)] != [r.peer for r in sorted(elsewhere, key=standing)]


def test_of_one_peer_the_greatest_seq_counts(roster: Roster) -> None:
    old, new = record(at=0), record(at=20, outer_step=3)
    assert learn(roster, new, 21)
    assert not learn(roster, old, 21)
    assert not learn(roster, new, 21)
    assert roster.holder(SEAT, 21) == new


def test_a_record_with_greater_seq_but_earlier_end_is_refused(roster: Roster) -> None:
    kept = record(at=20)
    learn(roster, kept, 20)
    assert not learn(roster, record(at=21, lease_s=10), 21)
    assert not learn(roster, record(at=21, expires=kept.expires), 21)
    assert roster.holder(SEAT, 21) == kept


def test_an_older_record_with_a_later_end_is_refused(roster: Roster) -> None:
    learn(roster, record(at=20, lease_s=30), 20)
    assert not learn(roster, record(at=10, lease_s=60), 20)


def test_a_record_ends_with_its_lease(roster: Roster) -> None:
    learn(roster, record(at=0), 0)
    assert roster.next_expiry(0) == 60
    assert roster.holder(SEAT, 59.9) is not None
    assert roster.holder(SEAT, 60) is None
    assert roster.next_expiry(60) is None


def test_a_record_lives_at_most_lease_and_skew_from_its_arrival(roster: Roster) -> None:
    learn(roster, record(at=0, lease_s=1000), 0)
    assert roster.next_expiry(0) == 63


def test_a_wall_clock_jump_after_arrival_changes_nothing(roster: Roster) -> None:
    """The deadline is fixed at arrival by the monotonic clock."""
    roster.learn(record(at=0, claim=WALL_MS - 10**9), 60.0, 0.0)
    assert roster.holder(SEAT, 30) is not None


@pytest.mark.parametrize(
    "bad",
    [
        record(run="other"),
        record(seat=Seat(2, 0)),
        record(seat=Seat(0, 4)),
        record(seat=Seat(-1, 0)),
        record(claim=WALL_MS + 3_001),
        record(at=-61),
    ],
)
def test_refused_records_leave_no_trace(roster: Roster, bad: SeatRecord) -> None:
    assert not learn(roster, bad, 0)
    assert roster.records(0) == ()
    assert roster.outer_step_seen(bad.seat.stage) == 0


def test_a_lifetime_that_is_no_number_is_refused(roster: Roster) -> None:
    assert not roster.learn(record(), float("nan"), 0)
    assert not roster.learn(record(), float("inf"), 0)


def test_a_claim_within_the_clock_skew_is_taken(roster: Roster) -> None:
    assert learn(roster, record(claim=WALL_MS + 2_999), 0)


def test_joining_occupies_the_seat_for_claims_and_is_vacant_for_draws(roster: Roster) -> None:
    learn(roster, record(state=SeatState.JOINING), 0)
    assert roster.holder(SEAT, 0) is not None
    assert roster.active_holder(SEAT, 0) is None
    assert roster.stage_active(1, 0) == ()
    assert not roster.claimable(SEAT, 0)


def test_leaving_makes_the_seat_vacant_at_once(roster: Roster) -> None:
    learn(roster, record(at=0), 0)
    learn(roster, record(at=10, state=SeatState.LEAVING), 10)
    assert roster.holder(SEAT, 10) is None
    assert roster.claimable(SEAT, 10)
    assert roster.next_expiry(10) is None


def test_after_leaving_an_older_record_does_not_come_back(roster: Roster) -> None:
    learn(roster, record(at=10, state=SeatState.LEAVING), 10)
    assert not learn(roster, record(at=0), 11)
    assert roster.holder(SEAT, 11) is None


def test_a_seat_is_claimable_only_skew_after_its_last_record_ended(roster: Roster) -> None:
    learn(roster, record(at=0), 0)
    assert roster.claimable_at(SEAT, 0) == 63
    assert not roster.claimable(SEAT, 62)
    assert roster.claimable(SEAT, 63)
    assert roster.claimable(SEAT, 0, apart_from=PeerId("a"))


def test_the_best_claims_survive_a_flood_of_records(roster: Roster) -> None:
    crowd = [record(f"peer{i}", claim=WALL_MS - i) for i in range(50)]
    for one in crowd:
        learn(roster, one, 0)
    live = roster.live(SEAT, 0)
    assert len(live) == limits.RECORDS_PER_SEAT_MAX
    assert live[0] == crowd[-1]
    assert not learn(roster, record("straggler", claim=WALL_MS), 0)


def test_ended_records_make_room_first(roster: Roster) -> None:
    for i in range(limits.RECORDS_PER_SEAT_MAX):
        learn(roster, record(f"peer{i}", claim=WALL_MS - 10**6), 0)
    assert learn(roster, record("late", at=61), 61)
    assert [r.peer for r in roster.live(SEAT, 61)] == ["late"]


def test_records_tell_one_holder_per_seat_in_seat_order(roster: Roster) -> None:
    learn(roster, record("a"), 0)
    learn(roster, record("b", claim=WALL_MS - 1), 0)
    learn(roster, record("c", seat=Seat(0, 3), state=SeatState.JOINING), 0)
    assert [(r.seat, r.peer) for r in roster.records(0)] == [(Seat(0, 3), "c"), (SEAT, "b")]
    assert [r.peer for r in roster.stage_active(1, 0)] == ["b"]


def test_progress_of_a_seat_outlives_its_records(roster: Roster) -> None:
    learn(roster, record(data_next=700, outer_step=5, checkpoint_step=4), 0)
    learn(roster, record("b", data_next=20), 0)
    assert roster.holder(SEAT, 500) is None
    assert roster.data_next(SEAT) == 700
    assert roster.outer_step_seen(1) == 5
    assert roster.outer_step_seen(0) == 0
