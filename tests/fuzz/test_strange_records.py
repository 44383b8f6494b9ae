"""Records, addresses and names of peers that strangers publish."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strange_bytes import TEXTS, bounded_memory, few, messages, spoiled

from noloco_node.core import limits
from noloco_node.core.types import Seat, SeatRecord, SeatState
from noloco_node.discovery.addresses import parse_address, parse_announced, parse_listen, parse_peer
from noloco_node.discovery.hivemind_library import DHTRecord
from noloco_node.discovery.identity import Identity, load_or_create_identity, peer_public_key, verify
from noloco_node.discovery.records import SIGNATURE_DOMAIN, RecordRules, RecordVerifier, open_record, sign_record
from noloco_node.discovery.storage import SeatRecordValidator, pack, unpack_record
from noloco_node.errors import RemoteProtocolError
from noloco_node.wire import record_pb2

NOW = 1_800_000_000_000
RULES = RecordRules("run", 2, 3, 60_000, 3_000)
refused = suppress(RemoteProtocolError)


@pytest.fixture(scope="module")
def identity(tmp_path_factory: pytest.TempPathFactory) -> Identity:
    return load_or_create_identity(tmp_path_factory.mktemp("key") / "identity.key")


@pytest.fixture(scope="module")
def honest(identity: Identity) -> bytes:
    record = SeatRecord("run", Seat(1, 2), identity.peer_id, 1, NOW, NOW - 1, NOW + 60_000, SeatState.ACTIVE)
    return sign_record(record, identity)[1]


@few
@given(data=st.data())
def test_spoiled_record_is_refused_or_the_very_record(honest: bytes, data: st.DataObject) -> None:
    encoded = data.draw(spoiled(honest))
    with refused:
        RecordVerifier(RULES, lambda: NOW).decode(encoded)
        assert encoded == honest


@few
@given(message=messages(record_pb2.SeatRecord))
def test_rightly_signed_record_of_odd_values_is_refused_or_fits_every_rule(identity: Identity, message: object) -> None:
    """Not what an honest node would sign: values at and beyond every edge, under a good signature."""
    message.peer = identity.peer_id  # type: ignore[attr-defined]
    body = message.SerializeToString(deterministic=True)  # type: ignore[attr-defined]
    signed = record_pb2.SignedRecord(record=body, signature=identity.sign(SIGNATURE_DOMAIN + body))
    with refused:
        record = open_record(signed.SerializeToString(deterministic=True))
        assert record.peer == identity.peer_id
        assert len(record.addresses) <= limits.RECORD_ADDRESSES_MAX
        assert record.version.isprintable()


@few
@given(data=st.data())
def test_stored_value_is_a_record_or_refused(honest: bytes, data: st.DataObject) -> None:
    packed = data.draw(spoiled(pack(honest), b"\x91" * 2000, b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff"))
    validator = SeatRecordValidator("run", RecordVerifier(RULES, lambda: NOW))
    with refused:
        assert isinstance(unpack_record(packed), bytes)
    key, subkey, expires_s = data.draw(st.tuples(st.binary(max_size=30), st.binary(max_size=70), st.floats(0, 1e300)))
    assert validator.validate(DHTRecord(key, subkey, packed, expires_s)) is False


def test_stored_value_that_announces_gigabytes_costs_none() -> None:
    for packed in (b"\xc6\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xdd\xff\xff\xff\xff", b"x" * (64 << 20)):
        with bounded_memory(), pytest.raises(RemoteProtocolError):
            unpack_record(packed)


@few
@given(text=TEXTS | st.text("/ip4tcpudns6d0123456789.:aZ-", max_size=90))
def test_any_text_is_an_address_or_no_address(text: str) -> None:
    for parse in (parse_address, parse_announced, parse_listen, parse_peer):
        with suppress(ValueError):
            assert str(parse(text))


@few
@given(text=TEXTS | st.text("123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz", min_size=50, max_size=54))
def test_any_text_is_a_peer_id_or_none(text: str) -> None:
    with suppress(ValueError):
        assert len(peer_public_key(text)) == 32
    assert not verify(text, b"message", bytes(64))
