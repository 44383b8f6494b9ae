"""What the network is like at the moment: who reaches whom, how fast, how much is lost.

Owns islands (of the network and of the DHT), delays, rates, and since when everybody reaches everybody. Must not know
calls, machines. All chance comes from the one generator it is given.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True)
class Rates:
    """Chances per message or tensor, 0 to 1; delays in seconds."""

    delay_s: float = 0.02
    jitter_s: float = 0.02  # drawn anew for each message, so calls overtake one another
    loss: float = 0.0  # a lost message breaks its call or stream
    double: float = 0.0  # the message comes twice
    damaged: float = 0.0  # tensors with a wrong digest
    refused: float = 0.0  # tensors with a norm out of range
    dht_delay_s: float = 0.05


class Weather:
    """`islands` maps a node's number to its part of a cut network; a node not named is on island 0."""

    def __init__(self, random: Random, calm: Rates) -> None:
        self.random = random
        self.calm = self.rates = calm
        self.islands: dict[int, int] = {}
        self.dht_islands: dict[int, int] = {}
        self.is_dht_up = True
        self._troubles = 0
        self._healed_s = float("-inf")

    # --- trouble and its end ----------------------------------------------------------------------

    def trouble_begins(self) -> None:
        """Somebody cannot be reached by somebody from now on."""
        self._troubles += 1

    def trouble_ends(self, now: float) -> None:
        self._troubles -= 1
        self._healed_s = now

    def healed_s(self, now: float) -> float:
        """Since when all nodes that run can reach one another; `now` while they cannot."""
        return now if self._troubles else self._healed_s

    # --- messages ---------------------------------------------------------------------------------

    def links(self, one: int, other: int) -> bool:
        return not self.islands or self.islands.get(one, 0) == self.islands.get(other, 0)

    def delay_s(self) -> float:
        return self.rates.delay_s + self.rates.jitter_s * self.random.random()

    @property
    def round_trip_s(self) -> float:
        """The longest a message and its answer may take."""
        return 2 * (self.rates.delay_s + self.rates.jitter_s)

    def loses(self) -> bool:
        return self._happens(self.rates.loss)

    def doubles(self) -> bool:
        return self._happens(self.rates.double)

    def damages(self) -> bool:
        return self._happens(self.rates.damaged)

    def refuses(self) -> bool:
        return self._happens(self.rates.refused)

    def _happens(self, rate: float) -> bool:
        return rate > 0.0 and self.random.random() < rate

    # --- DHT --------------------------------------------------------------------------------------

    def dht_island(self, node: int) -> tuple[int, int]:
        """Who shares a view of the DHT with whom."""
        return self.islands.get(node, 0), self.dht_islands.get(node, 0)

    def dht_delay_s(self) -> float:
        return self.rates.dht_delay_s * (0.5 + self.random.random())
