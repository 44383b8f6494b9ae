"""Who holds which seat, as far as this node knows.

Owns the roster: verified records of peers, each with the local moment at which it ends. A record is a hint that keeps
honest nodes apart; two nodes may hold one seat for a while, and nothing here is protected by it. Must not know:
signatures (discovery checks them before), the DHT, wall clocks. `now` is the monotonic clock in seconds, while `claim`
and `expires` inside records are unix milliseconds; `lives_s` ties the two at arrival, so a jump of the wall clock
after that changes nothing. Source: DESIGN section 4.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from noloco_node.core import limits
from noloco_node.core import seed as draws
from noloco_node.core.types import PeerId, Seat, SeatRecord, SeatState, Settings

HEARSAY = PeerId("")  # who promised is not known


def standing(record: SeatRecord) -> tuple[int, bytes]:
    """Order between claims of one seat, least first: (claim, blake2b(run, seat, peer))."""
    seat = record.seat
    return record.claim, draws.digest("holder", record.run, seat.stage, seat.replica, record.peer)


class _Entry(NamedTuple):
    record: SeatRecord
    deadline: float

    def occupies(self, now: float) -> bool:
        """Live and not leaving: a `leaving` record makes its seat vacant at once."""
        return now < self.deadline and self.record.state is not SeatState.LEAVING

    def supersedes(self, other: _Entry) -> bool:
        """Of one peer's records the greatest seq counts, and none may end before the one it replaces."""
        return self.record.seq > other.record.seq and self.record.expires > other.record.expires

    def precedence(self, now: float) -> tuple[bool, int, bytes]:
        return not self.occupies(now), *standing(self.record)


class Roster:
    """Records by seat and peer, at most `limits.RECORDS_PER_SEAT_MAX` a seat and none outside the seat table."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._seats: dict[Seat, dict[PeerId, _Entry]] = {}
        self._promised: dict[Seat, dict[PeerId, int]] = {}  # the greatest two, of different peers
        self._outer_step: dict[int, int] = {}
        self._checkpoint_step: dict[int, int] = {}

    # --- learning ---------------------------------------------------------------------------------

    def learn(self, record: SeatRecord, lives_s: float, now: float) -> bool:
        """Take a verified record that ends in `lives_s` by the local wall clock (uncapped). True if it is news.

        Refused: other run, seat outside the table, ended, claimed more than skew_max_s in the future, older than what
        is known of this peer, or behind RECORDS_PER_SEAT_MAX better claims. It lives at most lease_s + skew_max_s.
        """
        if self.knows(record) or not self._acceptable(record, lives_s):
            return False
        settings = self._settings
        entry = _Entry(record, now + min(lives_s, settings.lease_s + settings.skew_max_s))
        entries = self._seats.setdefault(record.seat, {})
        known = entries.get(record.peer)
        if known is not None and not entry.supersedes(known):
            return False
        entries[record.peer] = entry
        self._remember_progress(record)
        self._forget(entries, now)
        return record.peer in entries

    def knows(self, record: SeatRecord) -> bool:
        """This record of the peer is known, or a newer one: it is no news."""
        known = self._seats.get(record.seat, {}).get(record.peer)
        return known is not None and known.record.seq >= record.seq

    def _acceptable(self, record: SeatRecord, lives_s: float) -> bool:
        settings, in_table = self._settings, self._in_table(record.seat)
        wall_now_ms = record.expires - lives_s * 1000
        claimed = record.claim <= wall_now_ms + settings.skew_max_s * 1000
        return record.run == settings.run and in_table and lives_s > 0 and claimed

    def _in_table(self, seat: Seat) -> bool:
        return 0 <= seat.stage < self._settings.num_stages and 0 <= seat.replica < self._settings.num_replicas

    def _remember_progress(self, record: SeatRecord) -> None:
        seat, stage = record.seat, record.seat.stage
        self.note_promise(seat, record.data_next, record.peer)
        self._outer_step[stage] = max(self._outer_step.get(stage, 0), record.outer_step, record.checkpoint_step)
        self._checkpoint_step[stage] = max(self._checkpoint_step.get(stage, 0), record.checkpoint_step)

    def note_promise(self, seat: Seat, data_next: int, peer: PeerId = HEARSAY) -> None:
        """A holder of the seat promised not to pass that number; HEARSAY: so a donor or our own checkpoint says."""
        if data_next <= 0 or not self._in_table(seat):
            return
        promised = self._promised.setdefault(seat, {})
        promised[peer] = max(promised.get(peer, 0), min(data_next, limits.DATA_NEXT_MAX))
        if len(promised) > 2:
            del promised[min(promised, key=lambda of: promised[of])]

    def _forget(self, entries: dict[PeerId, _Entry], now: float) -> None:
        """Drop what ended more than skew_max_s ago, then the worst beyond the limit."""
        for peer in [p for p, entry in entries.items() if now > entry.deadline + self._settings.skew_max_s]:
            del entries[peer]
        while len(entries) > limits.RECORDS_PER_SEAT_MAX:
            del entries[max(entries, key=lambda peer: entries[peer].precedence(now))]

    # --- one seat ---------------------------------------------------------------------------------

    def live(self, seat: Seat, now: float) -> tuple[SeatRecord, ...]:
        """Records that occupy the seat (joining or active, not ended), best claim first."""
        occupying = [e.record for e in self._seats.get(seat, {}).values() if e.occupies(now)]
        return tuple(sorted(occupying, key=standing) if len(occupying) > 1 else occupying)

    def holder(self, seat: Seat, now: float) -> SeatRecord | None:
        """The live record with the least (claim, hash), whatever its state but leaving."""
        entries = self._seats.get(seat)
        if entries is None:
            return None
        if len(entries) == 1:
            (entry,) = entries.values()
            return entry.record if entry.occupies(now) else None
        occupying = [entry.record for entry in entries.values() if entry.occupies(now)]
        return min(occupying, key=standing) if len(occupying) > 1 else next(iter(occupying), None)

    def active_holder(self, seat: Seat, now: float) -> SeatRecord | None:
        """The holder if it is active: a joining one is vacant for pairing and routing."""
        holder = self.holder(seat, now)
        return holder if holder is not None and holder.state is SeatState.ACTIVE else None

    def outranked(self, record: SeatRecord, now: float) -> SeatRecord | None:
        """The better record of another peer for the same seat, if one is known. `record` need not be known."""
        holder = self.holder(record.seat, now)
        if holder is None or holder.peer == record.peer or standing(holder) >= standing(record):
            return None
        return holder

    def claimable_at(self, seat: Seat, now: float, apart_from: PeerId | None = None) -> float:
        """When the seat may be claimed by what is known: `now`, or skew_max_s past the end of its last live record.

        A seat left by a `leaving` record is free at once. Records of the peer `apart_from` are not counted.
        """
        entries = self._seats.get(seat, {})
        ends = [
            entry.deadline + self._settings.skew_max_s
            for peer, entry in entries.items()
            if peer != apart_from and entry.record.state is not SeatState.LEAVING
        ]
        return max([now, *ends])

    def claimable(self, seat: Seat, now: float, apart_from: PeerId | None = None) -> bool:
        return self.claimable_at(seat, now, apart_from) <= now

    def data_next(self, seat: Seat, apart_from: PeerId | None = None) -> int:
        """Where a successor in the seat begins: the greatest number that any holder promised not to pass.

        Not counted: what the peer `apart_from` promised itself.
        """
        promised = self._promised.get(seat, {})
        return max((number for peer, number in promised.items() if peer != apart_from), default=0)

    def promises(self, stage: int, apart_from: PeerId | None = None) -> dict[int, int]:
        """`data_next` by replica, of all seats of the stage of which one is known."""
        found = {seat.replica: self.data_next(seat, apart_from) for seat in self._promised if seat.stage == stage}
        return {replica: found[replica] for replica in sorted(found) if found[replica] > 0}

    # --- the table --------------------------------------------------------------------------------

    def records(self, now: float) -> tuple[SeatRecord, ...]:
        """Holder of every seat known to be occupied, in seat order."""
        return tuple(self._holders(now))

    def _holders(self, now: float) -> Iterator[SeatRecord]:
        for seat in sorted(self._seats):
            holder = self.holder(seat, now)
            if holder is not None:
                yield holder

    def _of_stage(self, stage: int) -> list[Seat]:
        """Its seats of which a record is known, in order."""
        return sorted(seat for seat in self._seats if seat.stage == stage)

    def stage_active(self, stage: int, now: float) -> tuple[SeatRecord, ...]:
        """Records of the stage's active holders, in order of their replicas."""
        holders = (self.active_holder(seat, now) for seat in self._of_stage(stage))
        return tuple(record for record in holders if record is not None)

    def donors(self, stage: int, now: float, apart_from: PeerId | None = None) -> tuple[SeatRecord, ...]:
        """Of each peer the newest live record that tells of a checkpoint of the stage, in seat order.

        One that says `leaving` counts: its peer may still be there, as a spare or in another seat (DESIGN 4).
        """
        found: dict[PeerId, SeatRecord] = {}
        for seat in self._of_stage(stage):
            for peer, entry in self._seats[seat].items():
                record, known = entry.record, found.get(peer)
                is_newer = known is None or record.seq > known.seq
                if peer != apart_from and now < entry.deadline and record.checkpoint_step >= 1 and is_newer:
                    found[peer] = record
        return tuple(found.values())

    def checkpoint_seen(self, stage: int) -> int:
        """Greatest outer step of a checkpoint that any record of the stage ever showed here."""
        return self._checkpoint_step.get(stage, 0)

    def outer_step_seen(self, stage: int) -> int:
        """Greatest outer step that any record of the stage ever showed here: above 0, the stage has been trained."""
        return self._outer_step.get(stage, 0)

    def next_expiry(self, now: float) -> float | None:
        """When the next occupying record ends, if no other comes."""
        entries = (entry for seat in self._seats.values() for entry in seat.values())
        return min((entry.deadline for entry in entries if entry.occupies(now)), default=None)
