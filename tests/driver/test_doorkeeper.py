"""Whom a node serves: records judged by themselves, strikes that decay, bans that end."""

from dataclasses import replace

import pytest
from driver_bench import ME, PEER, THERE, THIRD, WALL_MS, record_of

from noloco_node.core import limits
from noloco_node.core.types import PeerId, SeatRecord, SeatState
from noloco_node.driver.doorkeeper import Doorkeeper
from noloco_node.errors import RecordOutOfTime, RemoteProtocolError

HEAL_S = limits.BAN_S / limits.STRIKES_TO_BAN  # one strike is forgotten in this time


class Door:
    """A doorkeeper whose clock, known records and ranking the test sets."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.decoded = 0
        self.records = {b"peer": record_of(PEER, lives_s=limits.BAN_S * 2), b"third": record_of(THIRD)}
        self.learnt: list[SeatRecord] = []
        self.better: SeatRecord | None = None
        self.struck: list[tuple[PeerId, str]] = []
        self.keeper = Doorkeeper(
            self._decode,
            self.learnt.append,
            lambda record: self.better,
            lambda: self.now_s,
            lambda: WALL_MS + int(self.now_s * 1000),
            on_strike=lambda peer, reason: self.struck.append((peer, reason)),
        )

    def _decode(self, encoded: bytes) -> SeatRecord:
        self.decoded += 1
        if encoded == b"old":
            raise RecordOutOfTime("record has expired")
        if encoded not in self.records:
            raise RemoteProtocolError("the signature is wrong")
        return self.records[encoded]

    def admit(self, record: bytes = b"peer", *, needs_lease: bool = True) -> str:
        return self.keeper.admit(PEER, record, needs_lease=needs_lease)


def test_peer_with_a_lease_is_served_and_its_record_learnt() -> None:
    door = Door()
    assert door.admit() == ""
    assert door.learnt == [door.records[b"peer"]]


def test_the_same_bytes_are_checked_and_learnt_once() -> None:
    door = Door()
    assert [door.admit(), door.admit(), door.admit()] == ["", "", ""]
    assert (door.decoded, len(door.learnt)) == (1, 1)


def test_stranger_without_a_record_is_served_only_where_no_lease_is_needed() -> None:
    door = Door()
    assert door.admit(b"") == "no lease"
    assert door.admit(b"", needs_lease=False) == ""
    assert door.struck == []


def test_forged_record_is_refused_with_a_strike() -> None:
    door = Door()
    assert door.admit(b"garbage") == "bad record: the signature is wrong"
    assert door.struck == [(PEER, "the signature is wrong")]
    assert door.learnt == []


def test_another_peers_record_is_refused_with_a_strike() -> None:
    door = Door()
    assert door.admit(b"third") == "bad record: the record is another peer's"
    assert len(door.struck) == 1
    assert door.learnt == []


def test_record_out_of_time_is_refused_without_a_strike_like_no_record() -> None:
    door = Door()
    assert door.admit(b"old") == "record has expired"
    assert door.admit(b"old", needs_lease=False) == ""
    door.keeper.learn(PEER, b"old")
    assert (door.struck, door.learnt) == ([], [])


def test_lease_that_lapsed_since_it_was_checked_is_not_served() -> None:
    door = Door()
    assert door.admit() == ""
    door.now_s = limits.BAN_S * 2
    assert door.admit() == "record has expired"
    assert door.struck == []


def test_outranked_peer_is_refused_without_a_strike_and_only_where_a_lease_is_needed() -> None:
    door = Door()
    door.better = record_of(ME, seat=THERE)
    assert door.admit() == "outranked"
    assert door.admit(needs_lease=False) == ""
    assert door.struck == []


def test_seat_leased_is_what_a_peer_showed_itself_and_only_while_the_lease_lives() -> None:
    door = Door()
    assert door.keeper.leased_seat(PEER) is None
    door.records[b"peer"] = replace(door.records[b"peer"], state=SeatState.JOINING)
    assert door.admit(needs_lease=False) == ""
    assert door.keeper.leased_seat(PEER) == door.records[b"peer"].seat
    door.better = record_of(ME, seat=THERE)
    assert door.keeper.leased_seat(PEER) is None
    door.better, door.now_s = None, limits.BAN_S * 2
    assert door.keeper.leased_seat(PEER) is None


def strikes(door: Door, count: int) -> None:
    for _ in range(count):
        door.keeper.strike(PEER, "rule broken")


def test_three_strikes_ban_a_peer_until_all_are_forgotten() -> None:
    door = Door()
    strikes(door, limits.STRIKES_TO_BAN - 1)
    assert door.admit() == ""
    strikes(door, 1)
    assert door.admit() == "banned"
    assert door.keeper.admit(THIRD, b"third", needs_lease=True) == ""
    door.now_s = limits.BAN_S - 1
    assert door.admit() == "banned"
    door.now_s = limits.BAN_S
    assert door.admit() == ""


def test_a_ban_that_ended_leaves_nothing_behind() -> None:
    door = Door()
    strikes(door, limits.STRIKES_TO_BAN)
    door.now_s = limits.BAN_S
    strikes(door, limits.STRIKES_TO_BAN - 1)
    assert not door.keeper.is_banned(PEER)
    strikes(door, 1)
    assert door.keeper.is_banned(PEER)


def test_whoever_goes_on_is_banned_longer_but_not_for_ever() -> None:
    door = Door()
    strikes(door, limits.STRIKES_TO_BAN + 1)
    door.now_s = limits.BAN_S + HEAL_S - 1
    assert door.keeper.is_banned(PEER)
    door.now_s = limits.BAN_S + HEAL_S
    assert not door.keeper.is_banned(PEER)
    strikes(door, 1000)
    door.now_s += 2 * limits.BAN_S
    assert not door.keeper.is_banned(PEER)


def test_three_strikes_within_the_time_of_one_ban_a_peer_for_the_full_time() -> None:
    """What was forgotten between them neither saves it nor shortens the ban."""
    door = Door()
    for _ in range(limits.STRIKES_TO_BAN):
        assert not door.keeper.is_banned(PEER)
        strikes(door, 1)
        door.now_s += HEAL_S / limits.STRIKES_TO_BAN
    door.now_s += limits.BAN_S - HEAL_S / limits.STRIKES_TO_BAN - 1
    assert door.keeper.is_banned(PEER)


def test_strikes_far_apart_never_ban() -> None:
    door = Door()
    for _ in range(20):
        strikes(door, 1)
        door.now_s += HEAL_S
        assert not door.keeper.is_banned(PEER)


def test_a_crowd_of_strangers_does_not_push_a_ban_out_of_memory() -> None:
    door = Door()
    strikes(door, limits.STRIKES_TO_BAN)
    for number in range(limits.PEERS_REMEMBERED_MAX + 50):
        door.keeper.strike(PeerId(f"stranger-{number}"), "rule broken")
    assert door.keeper.is_banned(PEER)


@pytest.mark.parametrize("state", [SeatState.JOINING, SeatState.LEAVING])
def test_seat_that_is_taken_or_given_up_is_no_lease_and_no_fault(state: SeatState) -> None:
    door = Door()
    door.records[b"peer"] = record_of(PEER, state=state)
    assert door.admit() == str(state)
    assert door.admit(needs_lease=False) == ""
    assert door.struck == []
    assert door.learnt == [door.records[b"peer"]]


def test_peer_that_a_list_bars_is_refused_everything_and_its_record_not_even_looked_at() -> None:
    door = Door()
    door.keeper.barred = lambda peer: "denied" if peer == PEER else ""
    assert [door.admit(), door.admit(needs_lease=False), door.admit(b"")] == ["denied"] * 3
    door.keeper.learn(PEER, b"peer")
    assert (door.decoded, door.struck) == (0, [])
    assert door.keeper.admit(THIRD, b"third", needs_lease=True) == ""


def test_records_that_come_with_answers_are_learnt_or_struck() -> None:
    door = Door()
    door.keeper.learn(PEER, b"")
    door.keeper.learn(PEER, b"peer")
    door.keeper.learn(PEER, b"garbage")
    assert door.learnt == [door.records[b"peer"]]
    assert len(door.struck) == 1


def test_banned_peers_records_are_not_even_looked_at() -> None:
    door = Door()
    for _ in range(limits.STRIKES_TO_BAN):
        door.keeper.strike(PEER, "rule broken")
    door.keeper.learn(PEER, b"peer")
    assert door.decoded == 0


def test_memory_of_peers_is_bounded() -> None:
    door = Door()
    for number in range(limits.PEERS_REMEMBERED_MAX + 50):
        door.keeper.strike(PeerId(f"stranger-{number}"), "rule broken")
    assert len(door.keeper._conduct) <= limits.PEERS_REMEMBERED_MAX
