"""The DHT of a simulated swarm: records by seat and peer, as each island of it knows them.

Owns what was stored and who can see it. A record stored while the DHT is split stays unseen elsewhere until its owner
stores the next one. Must not know signatures, machines.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from noloco_node.core.types import PeerId, Seat, SeatRecord

Island = tuple[int, int]
EVERYWHERE: Island | None = None


@dataclass(frozen=True, slots=True)
class Stored:
    record: SeatRecord
    island: Island | None  # None: seen by all


class SeatShelf:
    """Of one peer's records of a seat the newest that the reader's island holds counts."""

    def __init__(self) -> None:
        self._seats: dict[Seat, dict[PeerId, list[Stored]]] = {}

    def store(self, record: SeatRecord, island: Island | None) -> None:
        kept = self._seats.setdefault(record.seat, {}).setdefault(record.peer, [])
        kept[:] = [] if island is EVERYWHERE else [s for s in kept if s.island != island]
        kept.append(Stored(record, island))

    def read(self, seat: Seat, island: Island, now: float) -> Iterator[SeatRecord]:
        """Live records that this island sees."""
        for kept in self._seats.get(seat, {}).values():
            seen = [s.record for s in kept if s.island is EVERYWHERE or s.island == island]
            if seen:
                newest = max(seen, key=lambda record: record.seq) if len(seen) > 1 else seen[0]
                if newest.expires > now * 1000:
                    yield newest
