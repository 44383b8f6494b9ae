"""The two guards in front of hivemind's storage, without any network."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from noloco_node.core import limits
from noloco_node.core.types import PeerId, Seat, SeatRecord, SeatState
from noloco_node.discovery.dht import unix_ms
from noloco_node.discovery.hivemind_library import DHTID, DHTRecord, keep_time
from noloco_node.discovery.identity import Identity, load_or_create_identity
from noloco_node.discovery.records import RecordRules, RecordVerifier, sign_record
from noloco_node.discovery.storage import NoStorage, SeatRecordValidator, SeatStorage, pack, seat_key
from noloco_node.driver.clock import SteadyClock
from noloco_node.telemetry.instruments import resident_bytes

RULES = RecordRules(run="run", num_stages=2, num_replicas=4, lease_ms=60_000, skew_max_ms=3_000)
OWN = PeerId("own")


@pytest.fixture
def identity(tmp_path: Path) -> Identity:
    return load_or_create_identity(tmp_path / "identity.key")


@pytest.fixture
def validator() -> SeatRecordValidator:
    return SeatRecordValidator("run", RecordVerifier(RULES, unix_ms))


def record_by(identity: Identity) -> SeatRecord:
    now = unix_ms()
    return SeatRecord("run", Seat(0, 1), identity.peer_id, 1, now, now, now + 60_000, SeatState.ACTIVE)


def stored(record: SeatRecord, encoded: bytes) -> DHTRecord:
    key = seat_key("run", record.seat).to_bytes()
    return DHTRecord(key, pack(record.peer), pack(encoded), record.expires / 1000)


def test_honest_record_is_valid(identity: Identity, validator: SeatRecordValidator) -> None:
    assert validator.validate(stored(*sign_record(record_by(identity), identity)))


def test_record_is_valid_only_where_it_belongs(identity: Identity, validator: SeatRecordValidator) -> None:
    honest = stored(*sign_record(record_by(identity), identity))
    elsewhere = [
        replace(honest, key=seat_key("run", Seat(0, 2)).to_bytes()),
        replace(honest, key=seat_key("other run", Seat(0, 1)).to_bytes()),
        replace(honest, subkey=pack("12D3KooWQY9i4vgkKea7aNZ3UFN88MTQox1zCtZtMKPLzcyspScC")),
        replace(honest, subkey=pack(None)),  # how hivemind marks a plain value
        replace(honest, expiration_time=honest.expiration_time + 3600),
        replace(honest, value=pack("text")),
        replace(honest, value=pack(b"junk")),
        replace(honest, value=b"\xc1"),
        replace(honest, value=honest.value + b"\0"),
        replace(honest, value=pack(b"x" * 100_000)),
    ]
    assert [validator.validate(record) for record in elsewhere] == [False] * len(elsewhere)
    assert sum(validator.refused.values()) == len(elsewhere)


def test_one_record_that_just_ended_does_not_spoil_an_answer(
    identity: Identity, validator: SeatRecordValidator
) -> None:
    ended = replace(record_by(identity), expires=unix_ms() - 500)
    assert validator.validate(stored(*sign_record(ended, identity)))


def in_s(seconds: float) -> float:
    return time.time() + seconds


def test_replayed_record_is_refused_and_does_not_shorten_the_newer_one() -> None:
    storage, key = SeatStorage(OWN), DHTID(1)
    soon, later = in_s(0.4), in_s(30)
    assert storage.store_subkey(key, "peer", b"old", soon)
    assert storage.store_subkey(key, "peer", b"new", later)
    assert not storage.store_subkey(key, "peer", b"old", soon)
    time.sleep(0.6)  # the old expiry passes
    assert storage.get(key).value.get("peer").value == b"new"


def test_the_same_record_again_is_acknowledged_and_another_with_its_expiry_is_not() -> None:
    storage, key, at = SeatStorage(OWN), DHTID(1), in_s(30)
    assert storage.store_subkey(key, "peer", b"record", at)
    assert storage.store_subkey(key, "peer", b"record", at)
    assert not storage.store_subkey(key, "peer", b"other", at)
    assert storage.count() == 1


@pytest.mark.parametrize("jump_s", [-3600.0, 3600.0])
def test_wall_clock_set_in_mid_run_neither_ends_records_nor_lets_them_live_on(
    jump_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    wall_s, running_s = [1_800_000_000.0], [50.0]
    steady = SteadyClock(lambda: wall_s[0], lambda: running_s[0])
    monkeypatch.setattr(time, "time", lambda: wall_s[0])
    try:
        keep_time(steady.now_s)
        storage, key, began_s = SeatStorage(OWN), DHTID(1), wall_s[0]
        assert storage.store_subkey(key, "old", b"old", began_s + 10)
        wall_s[0] += jump_s
        assert storage.store_subkey(key, "new", b"new", began_s + 60)
        assert storage.count() == 2
        running_s[0] += 20
        assert storage.count() == 1
        running_s[0] += 60
        assert storage.count() == 0
    finally:
        keep_time()


def test_value_without_a_peer_is_refused() -> None:
    storage = SeatStorage(OWN)
    assert not storage.store(DHTID(1), b"plain", in_s(30))
    assert storage.count() == 0


def test_full_seat_gives_up_the_strangers_record_that_ends_first() -> None:
    storage, key = SeatStorage(OWN, per_seat_max=3), DHTID(1)
    assert storage.store_subkey(key, OWN, b"mine", in_s(10))
    assert storage.store_subkey(key, "p1", b"1", in_s(20))
    assert storage.store_subkey(key, "p2", b"2", in_s(30))
    assert not storage.store_subkey(key, "p3", b"3", in_s(15))
    assert storage.store_subkey(key, "p4", b"4", in_s(25))
    assert {peer for peer, _ in storage.get(key).value.items()} == {OWN, "p2", "p4"}
    assert storage.own(key) is not None


def test_flood_is_bounded_and_our_own_record_stays() -> None:
    storage = SeatStorage(OWN, entries_max=100)
    assert storage.store_subkey(DHTID(0), OWN, b"mine", in_s(5))
    for number in range(1000):
        storage.store_subkey(DHTID(number % 90), f"peer {number}", b"x", in_s(20 + number / 100))
        assert storage.count() <= 100
    assert storage.own(DHTID(0)) is not None


def test_hundred_thousand_records_are_bounded_in_number_and_memory_and_our_own_stay() -> None:
    storage, value = SeatStorage(OWN), b"x" * 300
    ours = [DHTID(number) for number in range(4)]
    for key in ours:
        assert storage.store_subkey(key, OWN, value, in_s(60))
    before = resident_bytes()
    for number in range(100_000):
        storage.store_subkey(DHTID(4 + number // limits.RECORDS_PER_SEAT_MAX), f"peer {number}", value, in_s(90))
    assert storage.count() <= limits.DHT_ENTRIES_MAX
    assert all(storage.own(key) is not None for key in ours)
    assert resident_bytes() - before < 96 << 20


def test_flood_of_a_full_storage_costs_few_walks_through_it(monkeypatch: pytest.MonkeyPatch) -> None:
    walks, storage, at = [0], SeatStorage(OWN, entries_max=100), in_s(60)
    counted = storage.count
    monkeypatch.setattr(storage, "count", lambda: walks.append(1) or counted())
    for number in range(5000):
        storage.store_subkey(DHTID(number), "peer", b"x", at)
    assert sum(walks) <= 1 + 10 / limits.DHT_WALK_PAUSE_S
    assert counted() <= 100


def test_record_of_a_barred_peer_is_not_kept_and_takes_nobodys_place() -> None:
    storage, key = SeatStorage(OWN, per_seat_max=2), DHTID(1)
    storage.barred = lambda peer: "not allowed" if peer.startswith("stranger") else ""
    assert storage.store_subkey(key, "friend", b"x", in_s(20))
    for number in range(50):
        assert not storage.store_subkey(key, f"stranger {number}", b"x", in_s(60))
    assert [peer for peer, _ in storage.get(key).value.items()] == ["friend"]


def test_our_own_record_enters_a_full_storage() -> None:
    storage = SeatStorage(OWN, entries_max=10, per_seat_max=10)
    for number in range(10):
        assert storage.store_subkey(DHTID(number), "peer", b"x", in_s(60))
    assert storage.store_subkey(DHTID(3), OWN, b"mine", in_s(5))
    assert storage.own(DHTID(3)) is not None
    assert storage.count() <= 10


def test_expired_records_make_room() -> None:
    storage = SeatStorage(OWN, entries_max=2)
    assert storage.store_subkey(DHTID(1), "a", b"x", in_s(0.1))
    assert storage.store_subkey(DHTID(2), "b", b"x", in_s(0.1))
    time.sleep(0.2)
    assert storage.store_subkey(DHTID(3), "c", b"x", in_s(0.05))


def test_cache_that_others_could_fill_keeps_nothing() -> None:
    cache = NoStorage()
    assert not cache.store(DHTID(1), b"x", in_s(60))
    assert not cache.store_subkey(DHTID(1), "peer", b"x", in_s(60))
    assert len(cache) == 0
