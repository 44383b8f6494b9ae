"""`SwarmDiscovery`, the port `Discovery`: this node's identity, its libp2p daemon, the DHT and the streams, as one.

Owns the start and stop order of those parts and what is filled into our own records. Decides nothing about seats.
Importing it imports hivemind and torch.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from noloco_node.core import limits
from noloco_node.core.types import PeerId, Seat, SeatRecord, SeatState
from noloco_node.discovery.address_book import AddressBook
from noloco_node.discovery.addresses import (
    Address,
    is_public,
    parse_address,
    parse_announced,
    parse_listen,
    parse_peer,
    worth_announcing,
)
from noloco_node.discovery.bootstrap import Bootstrap
from noloco_node.discovery.control import DaemonControl
from noloco_node.discovery.daemon import Daemon
from noloco_node.discovery.hivemind_library import P2P
from noloco_node.discovery.identity import Identity, IdentityLock, load_or_create_identity
from noloco_node.discovery.records import RecordRules, RecordVerifier, sign_record
from noloco_node.discovery.seat_table import SeatTable
from noloco_node.discovery.sequence import SequenceFile
from noloco_node.discovery.settings import DiscoverySettings
from noloco_node.discovery.streams import Libp2pStreams
from noloco_node.errors import BadConfig, DiskFailed, IdentityInUse, PeerLost

SEQUENCE_FILE = "record-sequence"


def unix_ms() -> int:
    return time.time_ns() // 1_000_000


class SwarmDiscovery:
    """Implements `ports.Discovery`. `on_daemon(up, reason)` is told when p2pd dies and when it is back."""

    def __init__(
        self,
        settings: DiscoverySettings,
        *,
        now_ms: Callable[[], int] = unix_ms,
        on_daemon: Callable[[bool, str], None] | None = None,
    ) -> None:
        self.on_signed: Callable[[bytes], None] = lambda encoded: None  # our newest record, before the DHT has it
        self._settings = settings
        self._now_ms = now_ms
        self._on_daemon = on_daemon
        self._lock = IdentityLock(settings.identity_path, settings.data_dir)
        self._sequence = SequenceFile(settings.data_dir / SEQUENCE_FILE)
        self._last_expires: dict[Seat, int] = {}
        self._last_seq: dict[Seat, int] = {}
        self._rules = RecordRules(
            run=settings.run,
            num_stages=settings.num_stages,
            num_replicas=settings.num_replicas,
            lease_ms=round(settings.lease_s * 1000),
            skew_max_ms=round(settings.skew_max_s * 1000),
        )
        self._verifier = RecordVerifier(self._rules, now_ms)
        self._started = False

    async def start(self) -> None:
        """Up and answering when it returns, joined or not. Raises BadConfig, BadIdentity, IdentityInUse, PortInUse,
        DaemonFailed, DiskFailed; nothing is left behind then."""
        listen = tuple(_parsed(parse_listen, text, "listen address") for text in self._settings.listen)
        announce = tuple(_parsed(parse_announced, text, "announced address") for text in self._settings.announce)
        peers = [_parsed(parse_peer, text, "initial peer") for text in self._settings.initial_peers]
        self._make_data_dir()
        self._identity = load_or_create_identity(self._settings.identity_path)
        self._lock.acquire()
        self._build(listen, announce, _by_peer(peers, self._identity.peer_id))
        try:
            await self._daemon.start()
            await self._bootstrap.start()
        except BaseException:
            await self.close()
            raise

    def _make_data_dir(self) -> None:
        try:
            self._settings.data_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DiskFailed(
                f"cannot make the data directory {self._settings.data_dir}: {error.strerror}",
                "Choose a data directory that can be written.",
            ) from error

    def _build(
        self,
        listen: tuple[Address, ...],
        announce: tuple[Address, ...],
        initial: dict[PeerId, tuple[Address, ...]],
    ) -> None:
        self._announce = announce
        self._loopback = any(address.ip is not None and address.ip.is_loopback for address in listen)
        self._book = AddressBook(loopback=self._loopback)
        self._streams = Libp2pStreams(self._book)
        self._table = SeatTable(
            self._settings.run, self._identity.peer_id, self._verifier, client_mode=self._settings.reach.client_mode
        )
        self._bootstrap = Bootstrap(initial, self._table, self._streams, self._book)
        self._daemon = Daemon(self._settings, self._identity, listen, on_up=self._attach, on_down=self._detach)
        self._started = True

    async def _attach(self, p2p: P2P, control: DaemonControl) -> None:
        await self._streams.attach(p2p, control)
        await self._table.start(p2p)
        self._bootstrap.hurry()
        if self._on_daemon is not None:
            self._on_daemon(True, "")

    def _detach(self, reason: str) -> None:
        self._streams.detach()
        self._table.stop()
        if self._on_daemon is not None:
            self._on_daemon(False, reason)

    async def close(self) -> None:
        if self._started:
            await self._bootstrap.close()
            await self._streams.close()
            self._table.stop()
            await self._daemon.close()
        self._lock.release()

    # --- what the driver asks ---------------------------------------------------------------------

    @property
    def identity(self) -> Identity:
        return self._identity

    @property
    def peer_id(self) -> PeerId:
        return self._identity.peer_id

    @property
    def streams(self) -> Libp2pStreams:
        return self._streams

    @property
    def addresses(self) -> tuple[str, ...]:
        """How others can dial us, each with /p2p/<peer id>, the public ones first."""
        known = self._announce or worth_announcing(
            self._daemon.addresses, loopback=self._loopback, allow_private=self._settings.reach.allow_private
        )
        return tuple(str(address.with_peer(self.peer_id)) for address in known)[: limits.RECORD_ADDRESSES_MAX]

    @property
    def reach(self) -> str:
        """public | private | relay | unknown, as far as our own addresses tell."""
        addresses = [parse_address(text) for text in self.addresses]
        if self._settings.reach.force:
            return self._settings.reach.force
        if any(not address.relayed and is_public(address) for address in addresses):
            return "public"
        if any(address.relayed for address in addresses):
            return "relay"
        return "private" if addresses else "unknown"

    @property
    def bootstrapped(self) -> bool:
        """A peer answers, or no initial peers are configured."""
        return self._bootstrap.joined

    @property
    def peers(self) -> frozenset[PeerId]:
        """Peers in the DHT's routing table."""
        return self._table.peers

    def bar(self, barred: Callable[[PeerId], str]) -> None:
        """Keep no records, for the DHT, of peers that `barred` gives a reason for."""
        self._table.storage.barred = barred

    @property
    def clock_offset_s(self) -> float | None:
        """Clock of the bootstrap peers minus ours (median), None before any answered."""
        return self._bootstrap.clock_offset_s

    @property
    def daemon_restarts(self) -> int:
        return self._daemon.restarts

    @property
    def daemon_pid(self) -> int | None:
        return self._daemon.pid

    @property
    def refused_records(self) -> dict[str, int]:
        """Records that strangers wanted stored, or answered with, and that broke a rule; by reason."""
        return dict(self._table.validator.refused)

    async def read(self, seat: Seat) -> list[SeatRecord]:
        """Verified live records of the seat. Raises PeerLost when initial peers are configured and nobody answers."""
        records, answered = await self._table.find(seat)
        if not answered and self._settings.initial_peers:
            raise PeerLost("no peer of the DHT answers")
        return self._live(records)

    def kept(self, seat: Seat) -> list[SeatRecord]:
        """Verified live records of the seat that this node keeps for the DHT."""
        return self._live(self._table.kept(seat))

    def _live(self, records: list[SeatRecord]) -> list[SeatRecord]:
        live = [record for record in records if record.expires > self._now_ms()]
        for record in live:
            self._learn_addresses(record)
        return live

    async def publish(self, record: SeatRecord, *, carried: bool = True) -> tuple[SeatRecord, bytes, bool]:
        """Fill seq, expires, addresses and reach, sign, store; `on_signed` hears of it if `carried`.

        Never raises for the network's sake. Raises IdentityInUse when another process signed a record of this seat with
        our key since our last one.
        """
        now = self._now_ms()
        filled = replace(
            record,
            peer=self.peer_id,
            seq=self._sequence.next(now),
            expires=self._next_expires(record.seat, now),
            addresses=self.addresses,
            reach=self.reach if record.reach == "unknown" else record.reach,
        )
        signed, encoded = sign_record(filled, self._identity)
        if carried:
            self.on_signed(encoded)
        confirmed = False
        with suppress(PeerLost):
            confirmed = await self._table.store(signed, encoded)
            self._check_alone_with_key(signed)
        self._last_seq[signed.seat] = signed.seq
        return signed, encoded, confirmed

    def _check_alone_with_key(self, ours: SeatRecord) -> None:
        found, last = self._table.own_elsewhere, self._last_seq.get(ours.seat)
        if found is None or last is None or found.incarnation == ours.incarnation:
            return
        if last < found.seq and found.state is not SeatState.LEAVING:
            raise IdentityInUse(
                f"another process uses this node's key: it signed a record of seat {ours.seat}",
                "End that process, or give one of the two a data directory and key of its own.",
            )

    def decode(self, encoded: bytes) -> SeatRecord:
        """Check a record that came on a call, and remember its addresses. Raises RemoteProtocolError."""
        record = self._verifier.decode(encoded)
        self._learn_addresses(record)
        return record

    def _learn_addresses(self, record: SeatRecord) -> None:
        if record.peer != self.peer_id:
            self._book.learn(record)

    def _next_expires(self, seat: Seat, now_ms: int) -> int:
        """Above the last one of this seat, or the record would not replace it; never beyond what others accept."""
        rules = self._rules
        above_last = min(self._last_expires.get(seat, 0) + 1, now_ms + rules.lease_ms + rules.skew_max_ms)
        expires = max(now_ms + rules.lease_ms, above_last)
        self._last_expires[seat] = expires
        return expires


def _parsed(parse: Callable[[str], Address], text: str, what: str) -> Address:
    try:
        return parse(text)
    except ValueError as error:
        raise BadConfig(f"{what} {text!r}: {error}", "Example: /ip4/203.0.113.7/tcp/4001/p2p/12D3Koo...") from error


def _by_peer(addresses: list[Address], own: PeerId) -> dict[PeerId, tuple[Address, ...]]:
    grouped: dict[PeerId, tuple[Address, ...]] = {}
    for address in addresses:
        peer = PeerId(address.peer or "")
        if peer != own:
            grouped[peer] = (*grouped.get(peer, ()), address)
    return grouped
