"""The DHT as this project uses it: signed seat records under (seat, peer), on hivemind's DHTNode.

Owns the DHTNode, what this node keeps for others, and the honest answer to "did anybody else take it". hivemind's own
`get` and `store` are not used: `get` merges strangers' answers into our own storage past every guard, and `store` says
True when only the local copy exists. Its routing table, traversal and wire protocol are.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from typing import Any

from noloco_node.core import limits
from noloco_node.core.types import PeerId, Seat, SeatRecord
from noloco_node.discovery.hivemind_library import (
    DHTID,
    P2P,
    DHTNode,
    DHTRecord,
    PeerID,
    dht_pb2,
    dht_time_s,
)
from noloco_node.discovery.look_ups import LookUp, LookUps
from noloco_node.discovery.records import RecordVerifier
from noloco_node.discovery.storage import NoStorage, SeatRecordValidator, SeatStorage, pack, seat_key
from noloco_node.errors import PeerLost, RemoteProtocolError

log = logging.getLogger(__name__)


class SeatTable:
    """Find and store records of seats. `node_id` follows from the peer id, so a restart keeps the place in the DHT."""

    def __init__(self, run: str, peer_id: PeerId, verifier: RecordVerifier, *, client_mode: bool) -> None:
        self._run = run
        self._peer_id = peer_id
        self._client_mode = client_mode
        self._node_id = DHTID.from_bytes(hashlib.sha1(peer_id.encode()).digest())
        self._node: DHTNode | None = None
        self._look_ups: LookUps  # of the node
        self.validator = SeatRecordValidator(run, verifier)
        self.storage = SeatStorage(peer_id)
        self.own_elsewhere: SeatRecord | None = None  # what others held of our own before the latest store

    async def start(self, p2p: P2P) -> None:
        """Join nothing yet; answer others from now on. What was kept before a restart of the daemon stays."""
        node = await DHTNode.create(
            p2p=p2p,
            node_id=self._node_id,
            initial_peers=None,
            bucket_size=limits.DHT_BUCKET,
            num_replicas=limits.DHT_COPIES,
            wait_timeout=limits.DHT_RPC_DEADLINE_S,
            cache_locally=False,
            cache_nearest=0,
            cache_on_store=False,
            cache_refresh_before_expiry=0,
            reuse_get_requests=False,
            blacklist_time=limits.DHT_SILENT_S,
            backoff_rate=1.0,  # hivemind's doubles without end: a peer that was away for an hour stays unheard
            client_mode=self._client_mode,
            record_validator=self.validator,
            ensure_bootstrap_success=False,
            strict=False,
        )
        node.protocol.storage, node.protocol.cache = self.storage, NoStorage()
        self._node, self._look_ups = node, LookUps(node, self._node_id)

    def stop(self) -> None:
        """Ask and answer no more. The handlers die with the daemon's connection."""
        if self._node is not None:
            self._node.is_alive = False
            self._look_ups.stop()
        self._node = None

    @property
    def peers(self) -> frozenset[PeerId]:
        """Peers in the routing table: those that answered lately."""
        if self._node is None:
            return frozenset()
        return frozenset(PeerId(peer.to_base58()) for peer in self._node.protocol.routing_table.peer_id_to_uid)

    async def greet(self, peer: PeerId) -> float:
        """Get to know a peer that we are connected to. Returns its clock minus ours, seconds. Raises PeerLost."""
        node, remote = self._live_node(), PeerID.from_base58(peer)
        request = dht_pb2.PingRequest(peer=node.protocol.node_info, validate=False)
        asked_at = dht_time_s()
        try:
            answer = await node.protocol.get_stub(remote).rpc_ping(request, timeout=limits.DHT_RPC_DEADLINE_S)
            node_id = DHTID.from_bytes(answer.peer.node_id) if answer.peer.node_id else None
        except Exception as error:  # whatever hivemind raises, also of an impossible node id: no answer to work with
            await node.protocol.update_routing_table(None, remote, responded=False)
            raise PeerLost(f"no answer from {peer}: {error}") from error
        if node_id is not None:
            await node.protocol.update_routing_table(node_id, remote, responded=True)
        return float(answer.dht_time - (asked_at + dht_time_s()) / 2)

    async def explore(self) -> None:
        """Fill the routing table with the peers nearest to ourselves."""
        await self._look_up(self._node_id)

    async def find(self, seat: Seat) -> tuple[list[SeatRecord], int]:
        """Valid records of a seat, of each peer the newest, and how many peers answered. Raises PeerLost."""
        key = seat_key(self._run, seat)
        look_up = await self._look_up(key)
        return self._newest(key, [*look_up.found, self._kept(key)]), look_up.answered

    def kept(self, seat: Seat) -> list[SeatRecord]:
        """Valid records of a seat that lie here."""
        key = seat_key(self._run, seat)
        return self._newest(key, [self._kept(key)])

    def _newest(self, key: DHTID, found: list[Any]) -> list[SeatRecord]:
        newest: dict[PeerId, SeatRecord] = {}
        for record in (record for values in found for record in self._opened(key, values)):
            if record.peer not in newest or newest[record.peer].seq < record.seq:
                newest[record.peer] = record
        return list(newest.values())

    async def store(self, record: SeatRecord, encoded: bytes) -> bool:
        """Keep our own record here and at the peers nearest to its key. True when another peer took it."""
        key, value, expiration_time = seat_key(self._run, record.seat), pack(encoded), record.expires / 1000
        self.storage.store_subkey(key, record.peer, value, expiration_time)
        try:
            look_up = await self._look_up(key, alone=True)  # a lease hangs on it
            nearest = look_up.nearest[: limits.DHT_COPIES]
            found = (held for held in self._newest(key, look_up.found) if held.peer == self._peer_id)
            self.own_elsewhere = next(found, None)
            protocol = self._live_node().protocol
            async with asyncio.timeout(limits.DHT_DEADLINE_S):
                answers = await asyncio.gather(
                    *(protocol.call_store(peer, [key], [value], expiration_time, [record.peer]) for peer in nearest)
                )
        except (PeerLost, TimeoutError):
            return False
        return any(answer is not None and any(answer) for answer in answers)

    async def _look_up(self, key: DHTID, *, alone: bool = False) -> LookUp:
        """Raises PeerLost."""
        self._live_node()
        return await self._look_ups.of(key, alone=alone)

    def _kept(self, key: DHTID) -> Any:
        kept = self.storage.get(key)
        return kept.value if kept is not None else None

    def _opened(self, key: DHTID, values: Any) -> list[SeatRecord]:
        records = []
        for peer, item in list(values.items()) if values is not None else ():
            try:
                stored = DHTRecord(key.to_bytes(), pack(peer), item.value, item.expiration_time)
                records.append(self.validator.open(stored))
            except RemoteProtocolError:
                continue
        return records

    def _live_node(self) -> DHTNode:
        if self._node is None:
            raise PeerLost("the libp2p daemon is down")
        return self._node
