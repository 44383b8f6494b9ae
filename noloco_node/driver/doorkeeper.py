"""Whom this node serves: the lease check on the record that comes with each call, strikes and bans (DESIGN 4, 9).

Owns the local bans and our own newest encoded record. Must not look anything up: a record is judged by itself and by
the records already known, so nodes that know one another go on when the DHT is gone. Who is barred by a list is told
by `config.peer_list`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from noloco_node.core import limits
from noloco_node.core.types import PeerId, Seat, SeatRecord, SeatState
from noloco_node.errors import RecordOutOfTime, RemoteProtocolError

STRIKES_HEALED_PER_S = limits.STRIKES_TO_BAN / limits.BAN_S


@dataclass(frozen=True, slots=True)
class Conduct:
    """Strikes of one peer as of `at_s`. They are forgotten bit by bit, STRIKES_TO_BAN of them in BAN_S seconds.

    A peer with STRIKES_TO_BAN of them (what was forgotten since the first ones does not save it) is banned until all
    are forgotten: for BAN_S, longer when it goes on, and for 2 * BAN_S at most after its last one.
    """

    strikes: float = 0.0
    at_s: float = 0.0
    banned: bool = False

    def left(self, now: float) -> float:
        return max(0.0, self.strikes - (now - self.at_s) * STRIKES_HEALED_PER_S)

    def is_banned(self, now: float) -> bool:
        return self.banned and self.left(now) > 0.0

    def struck(self, now: float) -> Conduct:
        strikes, banned = self.left(now) + 1.0, self.is_banned(now)
        if strikes > limits.STRIKES_TO_BAN - 1 and not banned:
            return Conduct(float(limits.STRIKES_TO_BAN), now, True)
        return Conduct(min(strikes, 2.0 * limits.STRIKES_TO_BAN), now, banned)


@dataclass(slots=True)
class Doorkeeper:
    """`Gatekeeper` port. `decode` checks a record by itself, `learn_record` hands it to the machine, `outranked`
    names the record that beats it, `clock` is monotonic seconds, `wall_ms` unix milliseconds. `barred` says why a list
    excludes a peer, "" when none does."""

    decode: Callable[[bytes], SeatRecord]
    learn_record: Callable[[SeatRecord], None]
    outranked: Callable[[SeatRecord], SeatRecord | None]
    clock: Callable[[], float]
    wall_ms: Callable[[], int]
    on_strike: Callable[[PeerId, str], None] = lambda peer, reason: None
    on_refused: Callable[[str], None] = lambda reason: None
    barred: Callable[[PeerId], str] = lambda peer: ""
    own: bytes = b""
    _conduct: dict[PeerId, Conduct] = field(default_factory=dict)
    _seen: dict[PeerId, tuple[bytes, SeatRecord]] = field(default_factory=dict)

    def own_record(self) -> bytes:
        return self.own

    def carry(self, own: bytes) -> None:
        """Our newest record, from now on shown on every call: peers that know us need not wait for the DHT."""
        self.own = own

    def admit(self, peer: PeerId, record: bytes, *, needs_lease: bool) -> str:
        """The empty string = served; else why not."""
        reason = self._refusal(peer, record, needs_lease)
        if reason:
            self.on_refused(reason)
        return reason

    def _refusal(self, peer: PeerId, record: bytes, needs_lease: bool) -> str:
        if reason := self._excluded(peer):
            return reason
        if not record:
            return "no lease" if needs_lease else ""
        try:
            known = self._accept(peer, record)
        except RecordOutOfTime as error:  # no better and no worse than no record
            return str(error) if needs_lease else ""
        except RemoteProtocolError as error:
            self.strike(peer, str(error))
            return f"bad record: {error}"
        return self._lease_fault(known) if needs_lease else ""

    def _excluded(self, peer: PeerId) -> str:
        return "banned" if self.is_banned(peer) else self.barred(peer)

    def _lease_fault(self, record: SeatRecord) -> str:
        """Nobody's fault, so no strike: a seat is being taken, given up, or was lost to an older claim."""
        if record.state is not SeatState.ACTIVE:
            return str(record.state)
        return "" if self.outranked(record) is None else "outranked"

    def learn(self, peer: PeerId, record: bytes) -> None:
        if not record or self._excluded(peer):
            return
        try:
            self._accept(peer, record)
        except RecordOutOfTime:
            return
        except RemoteProtocolError as error:
            self.strike(peer, str(error))

    def record_of(self, peer: PeerId) -> SeatRecord | None:
        """The newest record that this peer itself brought."""
        seen = self._seen.get(peer)
        return None if seen is None else seen[1]

    def leased_seat(self, peer: PeerId) -> Seat | None:
        record = self.record_of(peer)
        if record is None or record.expires <= self.wall_ms() or record.state is SeatState.LEAVING:
            return None
        return record.seat if self.outranked(record) is None else None

    def strike(self, peer: PeerId, reason: str) -> None:
        """One more fault of that peer; enough of them and it is not served for a while."""
        self._conduct[peer] = self._conduct.get(peer, Conduct()).struck(self.clock())
        self._forget_quiet_peers()
        self.on_strike(peer, reason)

    def is_banned(self, peer: PeerId) -> bool:
        conduct = self._conduct.get(peer)
        return conduct is not None and conduct.is_banned(self.clock())

    def strikes_of(self, peer: PeerId) -> float:
        """Those not yet forgotten."""
        conduct = self._conduct.get(peer)
        return 0.0 if conduct is None else conduct.left(self.clock())

    def _accept(self, peer: PeerId, encoded: bytes) -> SeatRecord:
        """Check a record once; of the same bytes again only the end is looked at."""
        seen = self._seen.get(peer)
        if seen is not None and seen[0] == encoded:
            if seen[1].expires <= self.wall_ms():
                raise RecordOutOfTime("record has expired")
            return seen[1]
        record = self.decode(encoded)
        if record.peer != peer:
            raise RemoteProtocolError("the record is another peer's")
        if len(self._seen) >= limits.PEERS_REMEMBERED_MAX:
            self._seen.pop(next(iter(self._seen)))
        self._seen[peer] = (encoded, record)
        self.learn_record(record)
        return record

    def _forget_quiet_peers(self) -> None:
        """Beyond PEERS_REMEMBERED_MAX those go whose strikes are forgotten, then the first that are not banned."""
        if len(self._conduct) > limits.PEERS_REMEMBERED_MAX:
            now = self.clock()
            self._conduct = {peer: conduct for peer, conduct in self._conduct.items() if conduct.left(now) > 0.0}
        while len(self._conduct) > limits.PEERS_REMEMBERED_MAX:
            first = next(iter(self._conduct))
            del self._conduct[next((peer for peer, conduct in self._conduct.items() if not conduct.banned), first)]
