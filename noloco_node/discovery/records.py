"""Seat records: signing, encoding, and every check a stranger's record must pass (DESIGN 4).

Owns the wire form and the rules. Knows no DHT and no sockets; the clock is an argument. A record is accepted only in
the one form this code would write itself, so two different byte strings never mean the same record.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from google.protobuf.message import DecodeError, Message

from noloco_node.core import limits
from noloco_node.core.types import PeerId, Seat, SeatRecord, SeatState
from noloco_node.discovery.addresses import parse_address
from noloco_node.discovery.identity import Identity, verify
from noloco_node.errors import LocalProtocolError, RecordOutOfTime, RemoteProtocolError
from noloco_node.wire import record_pb2

SIGNATURE_DOMAIN: Final = b"noloco-node/seat-record/v1\0"
SIGNATURE_BYTES: Final = 64
WORD_CHARACTERS_MAX: Final = 64
REACHES: Final = ("public", "private", "relay", "unknown")
STATES: Final = {
    SeatState.JOINING: record_pb2.SEAT_STATE_JOINING,
    SeatState.ACTIVE: record_pb2.SEAT_STATE_ACTIVE,
    SeatState.LEAVING: record_pb2.SEAT_STATE_LEAVING,
}
STATES_BY_NUMBER: Final = {number: state for state, number in STATES.items()}
PLAIN_FIELDS: Final = (  # same name and type on both sides
    *("run", "peer", "incarnation", "seq", "claim", "expires", "outer_step", "data_next", "checkpoint_step"),
    *("reach", "tokens_per_s", "loss", "version", "protocol"),
)


M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True)
class RecordRules:
    """What a record of this run must fit into."""

    run: str
    num_stages: int
    num_replicas: int
    lease_ms: int
    skew_max_ms: int


def sign_record(record: SeatRecord, identity: Identity) -> tuple[SeatRecord, bytes]:
    """Encode and sign. Addresses at the end of the list are left out where the record would grow too large."""
    addresses = record.addresses[: limits.RECORD_ADDRESSES_MAX]
    while True:
        record = replace(record, addresses=addresses)
        encoded = _signed(_to_message(record), identity)
        if len(encoded) <= limits.RECORD_BYTES_MAX:
            return record, encoded
        if not addresses:
            raise LocalProtocolError(f"own record takes {len(encoded)} bytes without any address")
        addresses = addresses[:-1]


def _signed(message: record_pb2.SeatRecord, identity: Identity) -> bytes:
    body = _encode(message)
    return _encode(record_pb2.SignedRecord(record=body, signature=identity.sign(SIGNATURE_DOMAIN + body)))


class RecordVerifier:
    """Decodes records of others. Remembers which byte strings were right, as the same ones come again and again."""

    def __init__(self, rules: RecordRules, now_ms: Callable[[], int]) -> None:
        self._rules = rules
        self._now_ms = now_ms
        self._verified: OrderedDict[bytes, SeatRecord] = OrderedDict()

    def decode(self, encoded: bytes) -> SeatRecord:
        """A live record of this run. Raises RemoteProtocolError with a short reason; RecordOutOfTime for its times."""
        record = self.decode_any_age(encoded)
        if record.expires <= self._now_ms():
            raise RecordOutOfTime("record has expired")
        return record

    def decode_any_age(self, encoded: bytes) -> SeatRecord:
        """The same, but one that ended a moment ago passes: clocks differ, and storage drops it anyway."""
        record = self._verified.get(encoded)
        if record is None:
            record = open_record(encoded)
            self._remember(bytes(encoded), record)
        check_rules(record, self._rules, self._now_ms())
        return record

    def _remember(self, encoded: bytes, record: SeatRecord) -> None:
        self._verified[encoded] = record
        if len(self._verified) > limits.VERIFIED_RECORDS_MAX:
            self._verified.popitem(last=False)


def open_record(encoded: bytes) -> SeatRecord:
    """Form and signature, nothing that depends on the run or the time. Raises RemoteProtocolError."""
    if len(encoded) > limits.RECORD_BYTES_MAX:
        raise RemoteProtocolError("record is too large")
    envelope = _parse(record_pb2.SignedRecord(), bytes(encoded))
    record = _from_message(_parse(record_pb2.SeatRecord(), envelope.record))
    if _encode(envelope) != encoded or _encode(_to_message(record)) != envelope.record:
        raise RemoteProtocolError("record is not in canonical form")
    _check_form(record)
    if len(envelope.signature) != SIGNATURE_BYTES:
        raise RemoteProtocolError("record has no signature")
    if not verify(record.peer, SIGNATURE_DOMAIN + envelope.record, envelope.signature):
        raise RemoteProtocolError("record is not signed by its peer")
    return record


def check_rules(record: SeatRecord, rules: RecordRules, now_ms: int) -> None:
    """Raises RemoteProtocolError when the record belongs to another run or to no seat; RecordOutOfTime when its times
    do not fit this clock.
    """
    if record.run != rules.run:
        raise RemoteProtocolError("record belongs to another run")
    if record.seat.stage >= rules.num_stages or record.seat.replica >= rules.num_replicas:
        raise RemoteProtocolError("record names a seat outside the table")
    if record.expires > now_ms + rules.lease_ms + rules.skew_max_ms:
        raise RecordOutOfTime("record expires too late")
    if record.claim > now_ms + rules.skew_max_ms:
        raise RecordOutOfTime("record claims its seat from the future")


def _parse(message: M, encoded: bytes) -> M:
    try:
        message.ParseFromString(encoded)
    except DecodeError as error:
        raise RemoteProtocolError("record cannot be parsed") from error
    message.DiscardUnknownFields()  # type: ignore[attr-defined]  # missing in the type stubs
    return message


def _encode(message: Message) -> bytes:
    return message.SerializeToString(deterministic=True)


def _to_message(record: SeatRecord) -> record_pb2.SeatRecord:
    message = record_pb2.SeatRecord(
        seat=record_pb2.Seat(stage=record.seat.stage, replica=record.seat.replica),
        state=STATES[record.state],
        addresses=record.addresses,
    )
    for name in PLAIN_FIELDS:
        setattr(message, name, getattr(record, name))
    return message


def _from_message(message: record_pb2.SeatRecord) -> SeatRecord:
    state = STATES_BY_NUMBER.get(message.state)
    if state is None:
        raise RemoteProtocolError("record names no known state")
    plain = {name: getattr(message, name) for name in PLAIN_FIELDS}
    seat = Seat(message.seat.stage, message.seat.replica)
    return SeatRecord(seat=seat, state=state, addresses=tuple(message.addresses), **plain)


def _check_form(record: SeatRecord) -> None:
    if not (math.isfinite(record.tokens_per_s) and math.isfinite(record.loss)):
        raise RemoteProtocolError("record holds a number that is not finite")
    if record.reach not in REACHES:
        raise RemoteProtocolError("record names no known reach")
    if len(record.version) > WORD_CHARACTERS_MAX or not (record.version.isascii() and record.version.isprintable()):
        raise RemoteProtocolError("record's version is not plain text")
    if len(record.addresses) > limits.RECORD_ADDRESSES_MAX:
        raise RemoteProtocolError("record has too many addresses")
    for text in record.addresses:
        _check_address(text, record.peer)


def _check_address(text: str, peer: PeerId) -> None:
    try:
        address = parse_address(text)
    except ValueError as error:
        raise RemoteProtocolError("record holds an address that cannot be dialled") from error
    if address.peer is not None and address.peer != peer:
        raise RemoteProtocolError("record holds another peer's address")
