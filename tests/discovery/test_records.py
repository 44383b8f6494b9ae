from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noloco_node.core import limits
from noloco_node.core.types import Seat, SeatRecord, SeatState
from noloco_node.discovery.identity import Identity, load_or_create_identity
from noloco_node.discovery.records import SIGNATURE_DOMAIN, RecordRules, RecordVerifier, open_record, sign_record
from noloco_node.discovery.sequence import SequenceFile
from noloco_node.errors import LocalProtocolError, RecordOutOfTime, RemoteProtocolError
from noloco_node.wire import record_pb2

NOW = 1_800_000_000_000
RULES = RecordRules(run="run", num_stages=2, num_replicas=3, lease_ms=60_000, skew_max_ms=3_000)


@pytest.fixture(scope="module")
def identity(tmp_path_factory: pytest.TempPathFactory) -> Identity:
    return load_or_create_identity(tmp_path_factory.mktemp("key") / "identity.key")


@pytest.fixture
def stranger(tmp_path: Path) -> Identity:
    return load_or_create_identity(tmp_path / "stranger.key")


def record_by(identity: Identity, **changes: Any) -> SeatRecord:
    plain = SeatRecord(
        run="run",
        seat=Seat(1, 2),
        peer=identity.peer_id,
        incarnation=2**64 - 1,
        seq=NOW,
        claim=NOW - 5000,
        expires=NOW + 60_000,
        state=SeatState.ACTIVE,
        outer_step=4,
        data_next=123,
        checkpoint_step=3,
        addresses=("/ip4/198.51.100.7/tcp/4001", f"/dns4/example.org/tcp/4001/p2p/{identity.peer_id}"),
        reach="public",
        tokens_per_s=12.5,
        loss=3.25,
        version="0.1.0",
        protocol=1,
    )
    return replace(plain, **changes)


def verifier(now_ms: int = NOW) -> RecordVerifier:
    return RecordVerifier(RULES, lambda: now_ms)


def signed(message: record_pb2.SeatRecord, identity: Identity) -> bytes:
    """What a peer with its own rules might send: any message, rightly signed."""
    body = message.SerializeToString(deterministic=True)
    envelope = record_pb2.SignedRecord(record=body, signature=identity.sign(SIGNATURE_DOMAIN + body))
    return envelope.SerializeToString(deterministic=True)


def message_of(encoded: bytes) -> record_pb2.SeatRecord:
    return record_pb2.SeatRecord.FromString(record_pb2.SignedRecord.FromString(encoded).record)


def test_record_comes_back_as_it_was_signed(identity: Identity) -> None:
    record, encoded = sign_record(record_by(identity), identity)
    assert verifier().decode(encoded) == record == record_by(identity)
    assert len(encoded) <= limits.RECORD_BYTES_MAX


@settings(max_examples=50, deadline=None)
@given(
    seat=st.builds(Seat, st.integers(0, 1), st.integers(0, 2)),
    state=st.sampled_from(SeatState),
    counters=st.tuples(*[st.integers(0, 2**63)] * 3),
    loss=st.floats(allow_nan=False, allow_infinity=False),
)
def test_any_valid_record_round_trips(
    identity: Identity, seat: Seat, state: SeatState, counters: tuple[int, int, int], loss: float
) -> None:
    outer_step, data_next, seq = counters
    record = record_by(identity, seat=seat, state=state, outer_step=outer_step, data_next=data_next, seq=seq, loss=loss)
    assert verifier().decode(sign_record(record, identity)[1]) == record


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"run": "other"}, "another run"),
        ({"seat": Seat(2, 0)}, "outside the table"),
        ({"seat": Seat(0, 3)}, "outside the table"),
        ({"expires": NOW + 63_001}, "expires too late"),
        ({"expires": NOW + 10 * 365 * 86_400_000}, "expires too late"),
        ({"expires": NOW}, "expired"),
        ({"claim": NOW + 3_001}, "from the future"),
        ({"loss": math.nan}, "not finite"),
        ({"tokens_per_s": math.inf}, "not finite"),
        ({"reach": "\x1b[2J"}, "reach"),
        ({"version": "1\x1b[2J"}, "plain text"),
        ({"version": "x" * 65}, "plain text"),
        ({"addresses": ("ftp://example.org",)}, "cannot be dialled"),
        ({"addresses": ("/ip4/300.0.0.1/tcp/1",)}, "cannot be dialled"),
        (
            {"addresses": ("/ip4/198.51.100.7/tcp/1/p2p/12D3KooWQY9i4vgkKea7aNZ3UFN88MTQox1zCtZtMKPLzcyspScC",)},
            "another",
        ),
    ],
)
def test_rule_breaking_record_is_refused_with_its_reason(
    identity: Identity, changes: dict[str, Any], reason: str
) -> None:
    _, encoded = sign_record(record_by(identity, **changes), identity)
    with pytest.raises(RemoteProtocolError, match=reason):
        verifier().decode(encoded)


@pytest.mark.parametrize("changes", [{"expires": NOW}, {"expires": NOW + 63_001}, {"claim": NOW + 3_001}])
def test_times_that_do_not_fit_are_told_from_breaches(identity: Identity, changes: dict[str, Any]) -> None:
    with pytest.raises(RecordOutOfTime):
        verifier().decode(sign_record(record_by(identity, **changes), identity)[1])


def test_record_at_the_edge_of_the_rules_is_accepted(identity: Identity) -> None:
    record, encoded = sign_record(record_by(identity, expires=NOW + 63_000, claim=NOW + 3_000), identity)
    assert verifier().decode(encoded) == record


def test_too_many_addresses_are_refused(identity: Identity) -> None:
    message = message_of(sign_record(record_by(identity), identity)[1])
    del message.addresses[:]
    message.addresses.extend(["/ip4/198.51.100.7/tcp/1"] * (limits.RECORD_ADDRESSES_MAX + 1))
    with pytest.raises(RemoteProtocolError, match="too many addresses"):
        verifier().decode(signed(message, identity))


def test_oversized_record_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(RemoteProtocolError, match="too large"):
        verifier().decode(b"\0" * (limits.RECORD_BYTES_MAX + 1))


def test_own_record_drops_addresses_rather_than_grow_too_large(identity: Identity) -> None:
    wide = tuple(f"/dns4/{'a' * 60}.{'b' * 60}.{'c' * 60}.org/tcp/{port}" for port in range(8))
    record, encoded = sign_record(record_by(identity, addresses=wide * 2), identity)
    assert len(encoded) <= limits.RECORD_BYTES_MAX
    assert 0 < len(record.addresses) <= limits.RECORD_ADDRESSES_MAX
    assert record.addresses == wide[: len(record.addresses)]


def test_own_record_that_cannot_fit_is_our_bug(identity: Identity) -> None:
    with pytest.raises(LocalProtocolError):
        sign_record(record_by(identity, run="x" * 3000), identity)


def test_signature_of_another_key_is_refused(identity: Identity, stranger: Identity) -> None:
    _, encoded = sign_record(record_by(identity), stranger)
    with pytest.raises(RemoteProtocolError, match="not signed by its peer"):
        verifier().decode(encoded)


def test_signature_over_the_bare_record_is_refused(identity: Identity) -> None:
    body = record_pb2.SignedRecord.FromString(sign_record(record_by(identity), identity)[1]).record
    bare = record_pb2.SignedRecord(record=body, signature=identity.sign(body)).SerializeToString()
    with pytest.raises(RemoteProtocolError, match="not signed by its peer"):
        verifier().decode(bare)


def test_missing_signature_is_refused(identity: Identity) -> None:
    body = record_pb2.SignedRecord.FromString(sign_record(record_by(identity), identity)[1]).record
    with pytest.raises(RemoteProtocolError, match="no signature"):
        verifier().decode(record_pb2.SignedRecord(record=body).SerializeToString())


def test_every_single_bit_flip_is_refused(identity: Identity) -> None:
    _, encoded = sign_record(record_by(identity, addresses=()), identity)
    for bit in range(8 * len(encoded)):
        flipped = bytearray(encoded)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(RemoteProtocolError):
            verifier().decode(bytes(flipped))


def test_every_truncation_is_refused(identity: Identity) -> None:
    _, encoded = sign_record(record_by(identity), identity)
    for length in range(len(encoded)):
        with pytest.raises(RemoteProtocolError):
            verifier().decode(encoded[:length])


@pytest.mark.parametrize("junk", [b"\0", b"\x1a\x01x", b"\x18\x05"])
def test_trailing_junk_is_refused(identity: Identity, junk: bytes) -> None:
    _, encoded = sign_record(record_by(identity), identity)
    with pytest.raises(RemoteProtocolError):
        verifier().decode(encoded + junk)


def test_signed_junk_inside_the_record_is_refused(identity: Identity) -> None:
    body = record_pb2.SignedRecord.FromString(sign_record(record_by(identity), identity)[1]).record
    for padded in (body + b"\xf8\x07\x01", body + b"\x58\x00"):  # an unknown field; data_next once more
        envelope = record_pb2.SignedRecord(record=padded, signature=identity.sign(SIGNATURE_DOMAIN + padded))
        with pytest.raises(RemoteProtocolError, match="canonical"):
            verifier().decode(envelope.SerializeToString(deterministic=True))


def test_record_without_a_seat_field_is_not_canonical(identity: Identity) -> None:
    message = message_of(sign_record(record_by(identity, seat=Seat(0, 0)), identity)[1])
    message.ClearField("seat")
    with pytest.raises(RemoteProtocolError, match="canonical"):
        verifier().decode(signed(message, identity))


def test_remembered_record_is_still_checked_against_the_clock(identity: Identity) -> None:
    now = [NOW]
    checker = RecordVerifier(RULES, lambda: now[0])
    _, encoded = sign_record(record_by(identity), identity)
    checker.decode(encoded)
    now[0] = NOW + 60_000
    with pytest.raises(RemoteProtocolError, match="expired"):
        checker.decode(encoded)
    checker.decode_any_age(encoded)
    now[0] = NOW - 3_600_000
    with pytest.raises(RemoteProtocolError, match="expires too late"):
        checker.decode(encoded)


@given(st.binary(max_size=300))
def test_arbitrary_bytes_never_raise_anything_else(junk: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        open_record(junk)


def test_sequence_numbers_grow_across_restarts_and_a_clock_set_back(tmp_path: Path) -> None:
    path = tmp_path / "sequence"
    first = SequenceFile(path)
    numbers = [first.next(1000), first.next(1000), first.next(900)]
    again = SequenceFile(path)
    numbers += [again.next(500), again.next(5000)]
    assert numbers == [1000, 1001, 1002, 1003, 5000]


def test_damaged_sequence_file_leaves_it_to_the_clock(tmp_path: Path) -> None:
    path = tmp_path / "sequence"
    path.write_text("not a number")
    assert SequenceFile(path).next(1000) == 1000
