"""Many simulated nodes, their network, and the checkers that look at each event.

Owns the run: its one generator, the digest of all that happened (same seed, same digest), and the violations found.
Must not know scenarios.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from random import Random
from struct import Struct
from typing import TYPE_CHECKING
from zlib import crc32

from noloco_node.core import effects as do
from noloco_node.core import events as ev
from noloco_node.core.types import PeerId, Settings
from noloco_node.sim.link_book import LinkBook
from noloco_node.sim.replica import Frozen
from noloco_node.sim.seat_shelf import SeatShelf
from noloco_node.sim.virtual_clock import VirtualClock
from noloco_node.sim.virtual_node import Build, VirtualNode
from noloco_node.sim.weather import Rates, Weather

if TYPE_CHECKING:
    from noloco_node.sim.checkers.checker import Checker

VIOLATIONS_MAX = 5  # what follows is mostly their consequence
EVENT_CODES = {kind: code for code, kind in enumerate(ev.Event.__args__)}  # type: ignore[attr-defined]
EFFECT_CODES = {kind: code for code, kind in enumerate(do.Effect.__args__)}  # type: ignore[attr-defined]
MARK = Struct("<dHB")


@dataclass(frozen=True, slots=True)
class Violation:
    """What did not hold. `checker` is its name, or `fault` when the code raised."""

    checker: str
    at_s: float
    node: str
    words: str


class VirtualSwarm:
    """`start_s` is the start of outer step 0 on the time clock."""

    def __init__(self, settings: Settings, seed: int, rates: Rates, start_s: float = 1030.0) -> None:
        self.settings, self.start_s = settings, start_s
        self.clock = VirtualClock()
        self.weather = Weather(Random(f"{seed}/network"), rates)
        self.shelf, self.links = SeatShelf(), LinkBook()
        self.tensors: dict[bytes, Frozen] = {}  # by digest
        self.nodes: list[VirtualNode] = []
        self.by_peer: dict[PeerId, VirtualNode] = {}
        self.checkers: list[Checker] = []
        self._watchers: dict[type, tuple[Checker, ...]] = {}  # by kind of event or effect
        self._always: tuple[Checker, ...] = ()
        self.violations: list[Violation] = []
        self.events = 0
        self.digest = 0

    def add(self, build: Build) -> VirtualNode:
        node = VirtualNode(self, len(self.nodes), build)
        self.nodes.append(node)
        self.by_peer[node.peer] = node
        return node

    def has_company(self, node: VirtualNode) -> bool:
        """Some other node can be reached."""
        return any(n is not node and n.is_up and self.weather.links(n.number, node.number) for n in self.nodes)

    # --- the run ----------------------------------------------------------------------------------

    def run(self, until_s: float, stop: Callable[[], bool] = lambda: False) -> None:
        """Until that time, `stop`, or too many violations. Whatever raises is a violation too."""
        try:
            self.clock.run(until_s, lambda: stop() or len(self.violations) >= VIOLATIONS_MAX)
        except Exception as error:  # noqa: BLE001 - the border of the code under test
            place = traceback.extract_tb(error.__traceback__)[-1]
            words = f"{type(error).__name__}: {error} ({place.name}, line {place.lineno})"
            self.violations.append(Violation("fault", self.clock.now, "", words))

    def finish(self) -> None:
        """The run is over: what must hold at the end."""
        for checker in self.checkers:
            for words in checker.finish():
                self.report(checker.name, "", words)

    def witness(self, node: VirtualNode, event: ev.Event, effects: list[do.Effect]) -> None:
        """One event was handled and its effects are on their way."""
        self.events += 1
        kinds = [type(effect) for effect in effects]
        mark = MARK.pack(self.clock.now, node.number, EVENT_CODES[type(event)])
        self.digest = crc32(mark + bytes([EFFECT_CODES[kind] for kind in kinds]), self.digest)
        for checker in self._who_looks(type(event), kinds):
            for words in checker.after(node, event, effects):
                self.report(checker.name, node.peer, words)

    def _who_looks(self, event: type, effects: list[type]) -> Iterable[Checker]:
        """Most events are records that change nothing: few checkers look at them."""
        concerned = self._watchers[event]
        if not effects:
            return concerned if event is ev.RecordLearnt else (*self._always, *concerned)
        return dict.fromkeys((*self._always, *concerned, *chain(*[self._watchers[effect] for effect in effects])))

    def report(self, checker: str, node: str, words: str) -> None:
        if len(self.violations) < VIOLATIONS_MAX:
            self.violations.append(Violation(checker, self.clock.now, node, words))

    # --- all nodes --------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Every node that runs has left."""
        return all(not node.is_up for node in self.nodes)

    def watch(self, checkers: Iterable[Checker]) -> None:
        self.checkers = list(checkers)
        self._always = tuple(checker for checker in self.checkers if checker.kinds is None)
        for kind in (*EVENT_CODES, *EFFECT_CODES):
            self._watchers[kind] = tuple(c for c in self.checkers if c.kinds is not None and kind in c.kinds)
