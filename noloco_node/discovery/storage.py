"""What this node keeps for the swarm: seat records only, each checked, each replaced only by a later one, all bounded.

Two guards stand in front of hivemind's own storage (DESIGN 4): `SeatRecordValidator` looks at a record by itself,
`SeatStorage` at what is already kept. hivemind's storage alone would let a replayed record end a lease: it answers
False and yet lets the newer value die at the older expiry.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator

import msgpack

from noloco_node.core import limits
from noloco_node.core.types import PeerId, Seat, SeatRecord
from noloco_node.discovery.hivemind_library import (
    DHTID,
    DHTLocalStorage,
    DHTRecord,
    DictionaryDHTValue,
    RecordValidatorBase,
)
from noloco_node.discovery.records import RecordVerifier
from noloco_node.errors import RemoteProtocolError

EVICTED_SHARE = 16  # a full storage frees one part in this many at once


def seat_key(run: str, seat: Seat) -> DHTID:
    """Where the records of a seat live: one key per seat, below it one subkey per peer."""
    text = f"noloco-node/seat/v1/{run}/{seat.stage}/{seat.replica}"
    return DHTID.from_bytes(hashlib.sha1(text.encode()).digest())


def pack(value: object) -> bytes:
    """The one encoding of subkeys and values inside the DHT's messages."""
    packed: bytes = msgpack.packb(value, use_bin_type=True)
    return packed


def unpack_record(packed: bytes) -> bytes:
    """Signed record out of a stored value. Raises RemoteProtocolError."""
    if len(packed) > limits.RECORD_BYTES_MAX + 8:
        raise RemoteProtocolError("record is too large")
    try:
        encoded = msgpack.unpackb(packed, raw=False)
    except (ValueError, msgpack.UnpackException) as error:
        raise RemoteProtocolError("stored value cannot be parsed") from error
    if not isinstance(encoded, bytes) or pack(encoded) != packed:
        raise RemoteProtocolError("stored value is no record")
    return encoded


class SeatRecordValidator(RecordValidatorBase):  # type: ignore[misc]
    """Every store, and every answer to a look-up, passes here: the key is the record's seat, the subkey its peer.

    A record that ended a moment ago passes: one invalid entry makes hivemind drop a peer's whole answer, and clocks
    differ. Readers and storage check the remaining life. `refused` counts by reason.
    """

    def __init__(self, run: str, verifier: RecordVerifier) -> None:
        self._run = run
        self._verifier = verifier
        self.refused: dict[str, int] = {}

    def validate(self, record: DHTRecord) -> bool:
        try:
            self.open(record)
        except RemoteProtocolError as error:
            self.refused[str(error)] = self.refused.get(str(error), 0) + 1
            return False
        return True

    def open(self, stored: DHTRecord) -> SeatRecord:
        """Raises RemoteProtocolError."""
        record = self._verifier.decode_any_age(unpack_record(stored.value))
        if seat_key(self._run, record.seat).to_bytes() != stored.key:
            raise RemoteProtocolError("record is stored under another seat")
        if pack(record.peer) != stored.subkey:
            raise RemoteProtocolError("record is stored under another peer")
        if record.expires != round(stored.expiration_time * 1000):
            raise RemoteProtocolError("record is stored with another expiry")
        return record


class SeatStorage(DHTLocalStorage):  # type: ignore[misc]
    """Key -> peer -> record. At most `per_seat_max` records a seat and `entries_max` in all.

    Where room is needed, strangers' records that expire soonest go first; our own never do. Records of peers that
    `barred` gives a reason for are not taken: in a run with a list of peers, strangers cannot fill a seat.
    """

    def __init__(
        self,
        own_peer: PeerId,
        *,
        entries_max: int = limits.DHT_ENTRIES_MAX,
        per_seat_max: int = limits.RECORDS_PER_SEAT_MAX,
    ) -> None:
        super().__init__()
        self._own_peer = own_peer
        self._entries_max = entries_max
        self._per_seat_max = per_seat_max
        self.barred: Callable[[PeerId], str] = lambda peer: ""
        self._walk_again_s = 0.0
        self._entries = 0  # an upper bound: what expired since the last count is still in it

    def store(self, key: DHTID, value: object, expiration_time: float, subkey: object = None) -> bool:
        """Values without a subkey are no seat records."""
        return subkey is not None and self.store_subkey(key, subkey, value, expiration_time)

    def store_subkey(self, key: DHTID, subkey: object, value: object, expiration_time: float) -> bool:
        """False when what is kept lives as long or longer. The very same record again is no news and no fault."""
        if isinstance(subkey, str) and self.barred(PeerId(subkey)):
            return False
        records = self._records(key)
        kept = records.get(subkey) if records is not None else None
        if kept is not None and expiration_time <= kept.expiration_time:
            return bool(kept.value == value and kept.expiration_time == expiration_time)
        if kept is None and not self._make_room(records, subkey, expiration_time):
            return False
        stored = bool(super().store_subkey(key, subkey, value, expiration_time))
        self._entries += stored and kept is None
        return stored

    def own(self, key: DHTID) -> tuple[object, float] | None:
        """Our own record of that seat as (value, expiration time), if it lives."""
        records = self._records(key)
        kept = records.get(self._own_peer) if records is not None else None
        return None if kept is None else (kept.value, kept.expiration_time)

    def count(self) -> int:
        """Live records in all; walks through everything."""
        self._entries = sum(len(records) for _, records in self._seats())
        return self._entries

    def _records(self, key: DHTID) -> DictionaryDHTValue | None:
        found = self.get(key)
        return None if found is None else found.value

    def _seats(self) -> Iterator[tuple[DHTID, DictionaryDHTValue]]:
        return ((key, item.value) for key, item in list(self.items()))

    def _make_room(self, records: DictionaryDHTValue | None, subkey: object, expiration_time: float) -> bool:
        own = subkey == self._own_peer
        if records is not None and len(records) >= self._per_seat_max:
            return self._evict_from_seat(records, expiration_time, own=own)
        if self._entries < self._entries_max:
            return True
        if not own and time.monotonic() < self._walk_again_s:
            return False
        self._walk_again_s = time.monotonic() + limits.DHT_WALK_PAUSE_S
        return self.count() < self._entries_max or self._evict_share(expiration_time, own=own)

    def _evict_from_seat(self, records: DictionaryDHTValue, expiration_time: float, *, own: bool) -> bool:
        strangers = [(item.expiration_time, peer) for peer, item in records.items() if peer != self._own_peer]
        soonest, peer = min(strangers)
        if soonest >= expiration_time and not own:
            return False
        del records[peer]
        self._entries -= 1
        return True

    def _evict_share(self, expiration_time: float, *, own: bool) -> bool:
        """Many at once, one walk through everything each DHT_WALK_PAUSE_S at most: a flood costs little per record."""
        strangers = sorted(
            (item.expiration_time, peer, key)
            for key, records in self._seats()
            for peer, item in records.items()
            if peer != self._own_peer and (own or item.expiration_time < expiration_time)
        )
        for _, peer, key in strangers[: max(1, self._entries_max // EVICTED_SHARE)]:
            del self.data[key].value[peer]
            self._entries -= 1
        return bool(strangers)


class NoStorage(DHTLocalStorage):  # type: ignore[misc]
    """In the place of hivemind's cache, which others can fill: keeps nothing."""

    def store(self, key: DHTID, value: object, expiration_time: float, subkey: object = None) -> bool:
        return False

    def store_subkey(self, key: DHTID, subkey: object, value: object, expiration_time: float) -> bool:
        return False
