"""Every micro-batch accounted for: the audit of all nodes' history.jsonl after a chaos run.

Owns the definition of `unaccounted`. Each first-stage seat has a data order n = 0, 1, 2 ...; one after the other, or
for a while two at once, lives of nodes work through it. A life is what lies between two `loaded` lines of one history.
It says by number what it trained and dropped, in a line before each checkpoint and one at its end. A life that was
killed lacks the last line. For each n from 0 to the last that any life named:

- trained: some life trained it; else dropped: some life gave it up (at a stop, or when nobody took it);
- else skipped: it lies between what earlier lives named and where a successor from another node's state began (the
  promise of the seat's record, about one renewal further);
- else lost with a killed process: it was open in the last account of a life that was killed, and the seat's next
  life, if any, was no restart from that life's checkpoint (which draws it again) but began beyond the promise;
- else unaccounted.

Numbers that a killed life began after its last line need no name: the next life goes on from the checkpoint, below
them, and draws them again (`redrawn`, as far as both named them). `repeated` counts numbers trained twice although
no restart from a checkpoint explains it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Line = dict[str, Any]


@dataclass(slots=True)
class SeatLife:
    """One life at one seat, from its `loaded` line on. `has_left`: the account of its end is there."""

    node: str
    seat: str
    source: str  # seed | checkpoint | kept | peer
    begun_s: float
    data_next: int
    trained: set[int] = field(default_factory=set)
    dropped: set[int] = field(default_factory=set)
    open: set[int] = field(default_factory=set)
    has_left: bool = False
    resent: int = 0
    late: int = 0
    replayed: int = 0

    @property
    def named(self) -> set[int]:
        return self.trained | self.dropped | self.open

    @property
    def first(self) -> int:
        """Where it really began: a successor is told so by the seat's record, beyond what its state says."""
        return self.data_next if self.source == "checkpoint" else min(self.named, default=self.data_next)


@dataclass(slots=True)
class Audit:
    """Sums over all seats."""

    trained: int = 0
    dropped: int = 0
    skipped: int = 0
    redrawn: int = 0
    repeated: int = 0
    lost_with_process: int = 0
    unaccounted: int = 0
    resent: int = 0
    late: int = 0
    replayed: int = 0


def audit(histories: Mapping[str, Sequence[Line]]) -> Audit:
    """`histories`: the lines of each node's history.jsonl, all of them."""
    lives = [life for node, lines in histories.items() for life in lives_of(node, lines)]
    found = Audit()
    for life in lives:
        found.resent += life.resent
        found.late += life.late
        found.replayed += life.replayed
    seats = sorted({life.seat for life in lives if life.seat.startswith("0.")})
    for seat in seats:
        _audit_seat(sorted((x for x in lives if x.seat == seat), key=lambda life: life.begun_s), found)
    return found


def lives_of(node: str, lines: Iterable[Line]) -> list[SeatLife]:
    """The lives in one history, in order."""
    lives: list[SeatLife] = []
    for line in lines:
        if line["kind"] == "loaded":
            lives.append(SeatLife(node, line["seat"], line["source"], line["unix_s"], line["data_next"]))
        elif line["kind"] == "micro_batches" and lives:
            _enter(lives[-1], line)
    return lives


def _enter(life: SeatLife, line: Line) -> None:
    life.trained |= _numbers(line["trained"])
    life.dropped |= _numbers(line["dropped"])
    life.open = _numbers(line["open"])
    life.has_left = line["data_next"] is None
    life.resent, life.late, life.replayed = line["resent"], line["late"], line["replayed"]


def _audit_seat(lives: list[SeatLife], found: Audit) -> None:
    trained: set[int] = set()
    dropped: set[int] = set()
    skipped: set[int] = set()
    reached = 0  # the first number that no life has named
    for life in lives:
        if life.source != "checkpoint":
            skipped |= set(range(reached, life.first))
        again = trained & life.trained
        redrawn = {n for n in again if life.source == "checkpoint" and n >= life.data_next}
        found.redrawn += len(redrawn)
        found.repeated += len(again - redrawn)
        trained |= life.trained
        dropped |= life.dropped
        reached = max([reached, life.first, *(n + 1 for n in life.named)])
    rest = set(range(reached)) - trained - dropped - skipped
    lost = rest & _open_at_a_kill(lives)
    found.trained += len(trained)
    found.dropped += len(dropped - trained)
    found.skipped += len(skipped - trained - dropped)
    found.lost_with_process += len(lost)
    found.unaccounted += len(rest - lost)


def _open_at_a_kill(lives: list[SeatLife]) -> set[int]:
    """What killed lives had open, where no restart from their checkpoint draws it again."""
    nexts = [*(life.source for life in lives[1:]), ""]
    killed = [life for life, after in zip(lives, nexts, strict=True) if not life.has_left and after != "checkpoint"]
    return {n for life in killed for n in life.open}


def _numbers(ranges: Iterable[Sequence[int]]) -> set[int]:
    return {n for first, last in ranges for n in range(first, last + 1)}


@dataclass(frozen=True, slots=True)
class Tokens:
    """`trained`: all that a first-stage replica ever wrote down, each node's every life. `rolled_back`: the part that
    a restart from an older checkpoint undid at its own replica."""

    trained: int
    rolled_back: int


def tokens(histories: Mapping[str, Sequence[Line]]) -> Tokens:
    """Tokens of the first stage, where each is counted once."""
    trained = rolled_back = 0
    for lines in histories.values():
        at_risk, is_first = 0, False
        for line in lines:
            if line["kind"] == "loaded":
                rolled_back += at_risk if line["source"] == "checkpoint" else 0
                at_risk, is_first = 0, line["seat"].startswith("0.")
            elif line["kind"] == "micro_batches" and line["data_next"] is not None:
                at_risk = 0
            elif line["kind"] == "inner" and is_first and line["applied"]:
                trained += line["tokens"]
                at_risk += line["tokens"]
    return Tokens(trained, rolled_back)
