"""Which own micro-batches ended how, by number: what a data directory can be audited with after any crash.

Owns the numbers begun, trained and dropped here since the last account was closed. The account is closed with each
checkpoint, before the file is written: every number below the `data_next` of a checkpoint on disk is then in an
account that is on disk too. Must not know files. Source: DESIGN 5, Accounts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from noloco_node.core import effects as do
from noloco_node.core import events as ev


@dataclass(slots=True)
class Own:
    """One own micro-batch that is here."""

    n: int
    is_begun: bool = False
    is_counted: bool = True
    is_trained: bool = False


@dataclass(slots=True)
class SampleLedger:
    """Fed with every event and effect of one node. `seat`, and the counts, are of the state loaded last."""

    seat: str = ""
    resent: int = 0
    late: int = 0
    replayed: int = 0
    _own: dict[int, Own] = field(default_factory=dict)  # by call
    _trained: set[int] = field(default_factory=set)
    _dropped: set[int] = field(default_factory=set)

    def event(self, event: object) -> None:
        match event:
            case ev.StateLoaded():
                self._begin()
            case ev.MicroBatchDrawn():
                self._own[event.call] = Own(event.n)
            case ev.ForwardDone() if event.loss_sum is not None and event.finite:
                self._computed(event.call)  # of the last stage: forward and backward are one job
            case ev.BackwardDone() if event.finite:
                self._computed(event.call)
            case ev.HopBroken():
                self.resent += 1
            case ev.GradientArrived() if event.replayed:
                self.replayed += 1

    def effect(self, effect: object) -> None:
        match effect:
            case do.InitialiseState() | do.LoadCheckpoint() | do.FetchState():
                self.seat = str(effect.seat)
            case do.RunForward() if effect.call in self._own:
                own = self._own[effect.call]
                own.is_begun, own.is_counted = True, effect.count
            case do.RunBackward() if effect.call in self._own:
                self._own[effect.call].is_counted = effect.count
            case do.DropGraph():
                self.late += 1
            case do.ForgetMicroBatch():
                self._end(effect.call)

    def close_account(self) -> dict[str, Any]:
        """What ended since the last call, as ranges [first, last]; `open`: begun and not ended. Counts: in all."""
        open_now = [own.n for own in self._own.values() if own.is_begun]
        account = {
            "seat": self.seat,
            "trained": ranges(self._trained),
            "dropped": ranges(self._dropped),
            "open": ranges(open_now),
            "resent": self.resent,
            "late": self.late,
            "replayed": self.replayed,
        }
        self._trained, self._dropped = set(), set()
        return account

    def _begin(self) -> None:
        """Another state, or seat: what is left of the one before is its own past."""
        self._own, self._trained, self._dropped = {}, set(), set()
        self.resent = self.late = self.replayed = 0

    def _computed(self, call: int) -> None:
        own = self._own.get(call)
        if own is not None:
            own.is_trained = own.is_counted

    def _end(self, call: int) -> None:
        own = self._own.pop(call, None)
        if own is not None and own.is_begun:
            (self._trained if own.is_trained else self._dropped).add(own.n)


def ranges(numbers: Iterable[int]) -> list[list[int]]:
    """[first, last] of every unbroken run of numbers, in order."""
    found: list[list[int]] = []
    for n in sorted(numbers):
        if found and n == found[-1][1] + 1:
            found[-1][1] = n
        else:
            found.append([n, n])
    return found
