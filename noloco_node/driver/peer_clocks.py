"""How far this node's clock is off its peers', measured by every Hello.

Owns the newest measurement of each peer and the median over them. Peers that we asked count before those that called
us: a caller cannot choose to be asked, so a crowd of strangers does not move the median. Must not know what follows.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median_high, median_low

from noloco_node.core import limits
from noloco_node.core.types import PeerId


@dataclass(frozen=True, slots=True)
class Measurement:
    ahead_s: float  # our clock minus the peer's
    asked: bool
    at_s: float  # monotonic


class PeerClocks:
    """`ClockBook` port. `wall` is our unix time, `clock` monotonic; what is less exact than `error_max_s` is no
    measurement."""

    def __init__(self, wall: Callable[[], float], clock: Callable[[], float], error_max_s: float) -> None:
        self._wall = wall
        self._clock = clock
        self._error_max_s = error_max_s
        self._found: OrderedDict[PeerId, Measurement] = OrderedDict()
        self.on_asked: Callable[[], None] = lambda: None

    def wall_s(self) -> float:
        return self._wall()

    def measured(self, peer: PeerId, ahead_s: float, error_s: float, *, asked: bool) -> None:
        known = self._found.get(peer)
        fresh_answer = known is not None and known.asked and self._is_fresh(known)
        if error_s > self._error_max_s or (fresh_answer and not asked):
            return
        self._found[peer] = Measurement(ahead_s, asked, self._clock())
        self._found.move_to_end(peer)
        if len(self._found) > limits.CLOCK_PEERS_MAX:
            self._forget_one()
        if asked:
            self.on_asked()

    def _forget_one(self) -> None:
        oldest = next(iter(self._found))
        del self._found[next((peer for peer, found in self._found.items() if not found.asked), oldest)]

    def _is_fresh(self, found: Measurement) -> bool:
        return self._clock() - found.at_s <= limits.CLOCK_SAMPLE_S

    @property
    def asked(self) -> int:
        """Peers whose answers count."""
        return sum(found.asked and self._is_fresh(found) for found in self._found.values())

    @property
    def ahead_s(self) -> float | None:
        """Median of our clock minus the peers', of two middle ones the nearer to 0: one peer's word never decides
        against another's. None before anybody told."""
        fresh = [found for found in self._found.values() if self._is_fresh(found)]
        chosen = [found.ahead_s for found in fresh if found.asked] or [found.ahead_s for found in fresh]
        return min(median_low(chosen), median_high(chosen), key=abs) if chosen else None

    def forget(self) -> None:
        """Our own clock was set: what was measured with it is void."""
        self._found.clear()
