"""Whom this node serves: the lease check on the record that comes with each call, strikes and bans (DESIGN 4, 9).

Owns the local bans and our own newest encoded record. Must not look anything up: a record is judged by itself and by
the records already known, so nodes that know one another go on when the DHT is gone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from noloco_node.core import limits
from noloco_node.core.types import PeerId, SeatRecord
from noloco_node.errors import RecordOutOfTime, RemoteProtocolError


@dataclass(slots=True)
class Conduct:
    """Strikes of one peer; they decay one by one, each `limits.BAN_S / STRIKES_TO_BAN` seconds."""

    strikes: float
    at_s: float


@dataclass(slots=True)
class Doorkeeper:
    """`Gatekeeper` port. `decode` checks a record by itself, `learn_record` hands it to the machine, `outranked`
    names the record that beats it, `clock` is monotonic seconds, `wall_ms` unix milliseconds."""

    decode: Callable[[bytes], SeatRecord]
    learn_record: Callable[[SeatRecord], None]
    outranked: Callable[[SeatRecord], SeatRecord | None]
    clock: Callable[[], float]
    wall_ms: Callable[[], int]
    on_strike: Callable[[PeerId, str], None] = lambda peer, reason: None
    on_refused: Callable[[str], None] = lambda reason: None
    own: bytes = b""
    _conduct: dict[PeerId, Conduct] = field(default_factory=dict)
    _seen: dict[PeerId, tuple[bytes, SeatRecord]] = field(default_factory=dict)

    def own_record(self) -> bytes:
        return self.own

    def admit(self, peer: PeerId, record: bytes, *, needs_lease: bool) -> str:
        """The empty string = served; else why not."""
        reason = self._refusal(peer, record, needs_lease)
        if reason:
            self.on_refused(reason)
        return reason

    def _refusal(self, peer: PeerId, record: bytes, needs_lease: bool) -> str:
        if self.is_banned(peer):
            return "banned"
        if not record:
            return "no lease" if needs_lease else ""
        try:
            known = self._accept(peer, record)
        except RecordOutOfTime as error:  # no better and no worse than no record
            return str(error) if needs_lease else ""
        except RemoteProtocolError as error:
            self.strike(peer, str(error))
            return f"bad record: {error}"
        if needs_lease and self.outranked(known) is not None:
            return "outranked"
        return ""

    def learn(self, peer: PeerId, record: bytes) -> None:
        if not record or self.is_banned(peer):
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

    def strike(self, peer: PeerId, reason: str) -> None:
        """One more fault of that peer; enough of them and it is not served for a while."""
        self._conduct[peer] = Conduct(self._strikes(peer) + 1.0, self.clock())
        self._forget_quiet_peers()
        self.on_strike(peer, reason)

    def is_banned(self, peer: PeerId) -> bool:
        return self._strikes(peer) > limits.STRIKES_TO_BAN - 1

    def _strikes(self, peer: PeerId) -> float:
        conduct = self._conduct.get(peer)
        if conduct is None:
            return 0.0
        healed = (self.clock() - conduct.at_s) * limits.STRIKES_TO_BAN / limits.BAN_S
        return max(0.0, conduct.strikes - healed)

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
        if len(self._conduct) > limits.PEERS_REMEMBERED_MAX:
            self._conduct = {p: c for p, c in self._conduct.items() if self._strikes(p) > 0.0}
        while len(self._conduct) > limits.PEERS_REMEMBERED_MAX:
            self._conduct.pop(next(iter(self._conduct)))
