"""Signed records through a real DHT of three nodes, honest ones and the other kind."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import RUN, Trio, record_of

from noloco_node.core import limits
from noloco_node.core.types import Seat, SeatRecord, SeatState
from noloco_node.discovery.dht import SwarmDiscovery, unix_ms
from noloco_node.discovery.hivemind_library import PeerID
from noloco_node.discovery.identity import load_or_create_identity
from noloco_node.discovery.records import sign_record
from noloco_node.discovery.storage import pack, seat_key
from noloco_node.errors import RemoteProtocolError

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def shove(
    attacker: SwarmDiscovery,
    victim: SwarmDiscovery,
    seat: Seat,
    subkey: Any,
    value: bytes,
    expires_s: float,
    **how: Any,
) -> bool:
    """Store whatever at one peer, past all checks on the attacker's side."""
    protocol = attacker._table._live_node().protocol
    key = seat_key(RUN, seat)
    subkeys = None if subkey is None else [subkey]
    answer = await protocol.call_store(PeerID.from_base58(victim.peer_id), [key], [value], expires_s, subkeys, **how)
    return bool(answer and answer[0])


async def test_published_record_is_read_by_every_other_node(trio: Trio, seat: Seat) -> None:
    a, b, c = trio
    record, encoded, confirmed = await b.publish(record_of(b, seat))
    assert confirmed
    assert record.addresses == b.addresses
    assert record.expires > unix_ms() + 50_000
    assert await a.read(seat) == await c.read(seat) == await b.read(seat) == [record]
    assert a.decode(encoded) == record
    assert await c.read(Seat(1, 3)) == []


async def test_one_seat_can_have_records_of_several_peers(trio: Trio, seat: Seat) -> None:
    a, b, c = trio
    records = [(await node.publish(record_of(node, seat)))[0] for node in (a, b)]
    assert sorted(await c.read(seat), key=lambda r: r.peer) == sorted(records, key=lambda r: r.peer)


async def test_leaving_record_replaces_the_active_one(trio: Trio, seat: Seat) -> None:
    _, b, c = trio
    active, _, _ = await b.publish(record_of(b, seat))
    leaving, _, _ = await b.publish(record_of(b, seat, state=SeatState.LEAVING))
    assert (leaving.seq, leaving.expires) > (active.seq, active.expires)
    assert await c.read(seat) == [leaving]


async def test_bad_stores_are_refused_and_the_honest_record_stays(trio: Trio, seat: Seat) -> None:
    honest, evil, reader = trio
    record, encoded, _ = await honest.publish(record_of(honest, seat))
    in_a_minute = record.expires / 1000

    def forged(**changes: Any) -> bytes:
        return pack(sign_record(replace(record, **changes), evil.identity)[1])

    far = unix_ms() + 10 * 365 * 86_400_000
    own_far = pack(sign_record(replace(record, peer=evil.peer_id, expires=far), evil.identity)[1])
    own = sign_record(replace(record, peer=evil.peer_id, expires=record.expires + 9), evil.identity)[1]
    attacks: list[tuple[Seat, Any, bytes, float]] = [
        (seat, record.peer, forged(expires=record.expires + 1), in_a_minute + 0.001),  # signed by the wrong key
        (seat, record.peer, pack(encoded), in_a_minute + 3600),  # honest bytes, later expiry
        (seat, evil.peer_id, pack(encoded), in_a_minute),  # honest bytes under the attacker's name
        (seat, record.peer, pack(own), in_a_minute + 0.009),  # the attacker's under the honest one's
        (Seat(1, 1), record.peer, pack(encoded), in_a_minute),  # another seat
        (seat, evil.peer_id, own_far, far / 1000),  # ten years
        (seat, evil.peer_id, pack(b"x" * 1_000_000), in_a_minute),
        (seat, evil.peer_id, b"\xc1\xff\x00", in_a_minute),
        (seat, evil.peer_id, pack({"no": "record"}), in_a_minute),
        (seat, None, pack(encoded), in_a_minute + 1),  # a plain value in the place of the whole seat
    ]
    for victim in (honest, reader):
        assert [await shove(evil, victim, *attack) for attack in attacks] == [False] * len(attacks)
    assert await reader.read(seat) == [record]
    assert sum(reader.refused_records.values()) >= len(attacks)


async def test_replayed_old_record_is_refused(trio: Trio, seat: Seat) -> None:
    honest, evil, reader = trio
    old, old_encoded, _ = await honest.publish(record_of(honest, seat))
    await asyncio.sleep(0.01)
    new, _, _ = await honest.publish(record_of(honest, seat))
    for victim in (honest, reader):
        assert not await shove(evil, victim, seat, old.peer, pack(old_encoded), old.expires / 1000)
    assert await reader.read(seat) == [new]


async def test_nobody_can_fill_our_cache(trio: Trio, seat: Seat) -> None:
    honest, evil, _ = trio
    record, encoded, _ = await honest.publish(record_of(honest, seat))
    value, expires_s = pack(encoded), record.expires / 1000
    assert not await shove(evil, honest, seat, record.peer, value, expires_s, in_cache=True)


async def test_flood_of_junk_is_bounded_and_the_honest_record_stays(trio: Trio, seat: Seat, tmp_path: Path) -> None:
    honest, evil, reader = trio
    record, _, _ = await honest.publish(record_of(honest, seat))
    node = evil._table._live_node()
    key, now = seat_key(RUN, seat), unix_ms()
    junk = [pack(os.urandom(200)) for _ in range(2000)]
    strangers = []
    for number in range(3 * limits.RECORDS_PER_SEAT_MAX):
        identity = load_or_create_identity(tmp_path / f"{number}.key")
        fake = SeatRecord(RUN, seat, identity.peer_id, 1, now, now, record.expires - 1 - number, SeatState.ACTIVE)
        strangers.append((identity.peer_id, pack(sign_record(fake, identity)[1]), fake.expires / 1000))
    target = PeerID.from_base58(reader.peer_id)
    names = [f"junk {number}" for number in range(len(junk))]
    answer = await node.protocol.call_store(target, [key] * len(junk), junk, [now / 1000 + 50] * len(junk), names)
    assert not any(answer)
    peers, values, expiries = (list(column) for column in zip(*strangers, strict=True))
    await node.protocol.call_store(target, [key] * len(peers), values, expiries, peers)
    kept = reader._table.storage.get(key).value
    assert len(kept) <= limits.RECORDS_PER_SEAT_MAX
    assert record in await reader.read(seat)


async def test_record_of_another_run_is_not_decoded(trio: Trio, seat: Seat) -> None:
    a, b, _ = trio
    foreign = replace(record_of(b, seat), run="other", expires=unix_ms() + 1000)
    with pytest.raises(RemoteProtocolError, match="another run"):
        a.decode(sign_record(foreign, b.identity)[1])
