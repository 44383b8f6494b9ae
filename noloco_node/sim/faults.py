"""Carries a scenario out: draws from the seed what happens to whom and when, and does it.

Owns the plan of faults. Everything is drawn before the run begins, so that what the nodes do does not change what
happens to them. Must not know machines beyond starting, stopping and pausing their processes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from noloco_node.core import events as ev
from noloco_node.core.types import Seat
from noloco_node.sim.scenarios import Scenario
from noloco_node.sim.virtual_node import Build, VirtualNode
from noloco_node.sim.virtual_swarm import VirtualSwarm

STARTS_WITHIN_S = 4.0
COMPUTE_S = 0.7


@dataclass(frozen=True, slots=True)
class Window:
    """When faults happen, virtual seconds. All of them are over at `until_s`."""

    from_s: float
    until_s: float


class Faults:
    """`schedule` puts everything on the swarm's clock."""

    def __init__(self, swarm: VirtualSwarm, scenario: Scenario, seed: int) -> None:
        self._swarm, self._scenario = swarm, scenario
        self._random = Random(f"{seed}/faults")
        interval_s = swarm.settings.outer_interval_s
        self.window = Window(
            swarm.start_s + scenario.first * interval_s,
            swarm.start_s + scenario.last * interval_s,
        )
        table = [(s, r) for s in range(swarm.settings.num_stages) for r in range(swarm.settings.num_replicas)]
        self._seats = [Seat(*place) for place in table]

    # --- the swarm --------------------------------------------------------------------------------

    def schedule(self) -> None:
        self._people()
        nodes = list(self._swarm.nodes)
        self._add_late()
        self._processes(nodes)
        self._network(nodes)
        self._weather()

    def _people(self) -> None:
        """Who is there from the start."""
        scenario, random = self._scenario, self._random
        seats = random.sample(self._seats, len(self._seats) - round(scenario.vacant * len(self._seats)))
        for seat in sorted(seats):
            self._start_at(self._new(seat if scenario.is_seated else None), random.uniform(0.0, STARTS_WITHIN_S))
        for _ in range(round(scenario.spares * len(self._seats))):
            self._start_at(self._new(None), self._swarm.start_s - self._swarm.clock.now)

    def _add_late(self) -> None:
        for _ in range(round(self._scenario.newcomers * len(self._seats))):
            self._start_at(self._new(None), self._moment() - self._swarm.clock.now)

    def _new(self, wanted: Seat | None) -> VirtualNode:
        low, high = self._scenario.speeds
        skew_s = self._random.uniform(-self._scenario.skew_s, self._scenario.skew_s)
        first = not self._swarm.nodes
        return self._swarm.add(Build(wanted, COMPUTE_S * self._random.uniform(low, high), skew_s, not first))

    def _start_at(self, node: VirtualNode, after_s: float) -> None:
        self._swarm.clock.after(after_s, node.start)

    # --- draws ------------------------------------------------------------------------------------

    def _moment(self) -> float:
        return self._random.uniform(self.window.from_s, self.window.until_s)

    def _end(self, begins_s: float, lasts_s: tuple[float, float]) -> float:
        """Everything heals within the window."""
        return min(begins_s + self._random.uniform(*lasts_s), self.window.until_s)

    def _some(self, nodes: list[VirtualNode], share: float) -> list[VirtualNode]:
        """A fixed number of them; whoever is drawn twice is hit twice."""
        return self._random.choices(nodes, k=round(share * len(self._seats)))

    def _at(self, when_s: float, action: Callable[[], None]) -> None:
        self._swarm.clock.at(when_s, action)

    # --- processes --------------------------------------------------------------------------------

    def _processes(self, nodes: list[VirtualNode]) -> None:
        scenario = self._scenario
        for node in self._some(nodes, scenario.crashes):
            begins_s = self._moment()
            self._at(begins_s, node.crash)
            self._at(self._end(begins_s, scenario.down_s), lambda node=node: None if node.is_up else node.start())
        for node in self._some(nodes[1:], scenario.losses):
            self._at(self._moment(), lambda node=node: self._lose(node))
        for node in self._some(nodes, scenario.stops):
            begins_s = self._moment()
            self._at(begins_s, lambda node=node: node.receive(lambda: node.feed(ev.StopRequested("signal"))))
            back_s = self._end(begins_s + 20.0, scenario.down_s)
            self._at(back_s, lambda node=node: None if node.is_up else node.start())
        for node in self._some(nodes, scenario.pauses):
            begins_s = self._moment()
            self._pause(node, begins_s, self._end(begins_s, scenario.pause_s))

    @staticmethod
    def _lose(node: VirtualNode) -> None:
        """For good: a later start finds nothing to start."""
        node.crash()
        node.start = lambda: None  # type: ignore[method-assign]

    def _pause(self, node: VirtualNode, begins_s: float, ends_s: float) -> None:
        weather, clock = self._swarm.weather, self._swarm.clock

        def begin() -> None:
            weather.trouble_begins()
            node.pause()

        def end() -> None:
            node.resume()
            weather.trouble_ends(clock.now)

        self._at(begins_s, begin)
        self._at(ends_s, end)

    # --- network and DHT --------------------------------------------------------------------------

    def _network(self, nodes: list[VirtualNode]) -> None:
        weather = self._swarm.weather
        for _ in range(self._scenario.cuts):
            begins_s = self._moment()
            share = self._random.uniform(*self._scenario.isolated)
            small = self._random.sample(range(len(nodes)), max(1, round(share * len(nodes))))
            self._trouble(begins_s, self._end(begins_s, self._scenario.cut_s), weather.islands, small)
        for _ in range(self._scenario.dht_split):
            begins_s = self._moment()
            half = self._random.sample(range(len(nodes)), len(nodes) // 2)
            self._trouble(begins_s, self._end(begins_s, self._scenario.dht_s), weather.dht_islands, half)
        for _ in range(self._scenario.dht_down):
            begins_s = self._moment()
            self._dht_down(begins_s, self._end(begins_s, self._scenario.dht_s))

    def _trouble(self, begins_s: float, ends_s: float, islands: dict[int, int], small: list[int]) -> None:
        weather, swarm = self._swarm.weather, self._swarm

        def begin() -> None:
            weather.trouble_begins()
            islands.update(dict.fromkeys(small, 1))
            for node in swarm.nodes:
                node.exchanges.cut()
                node.micro_batches.watch_calls()

        def end() -> None:
            for number in small:
                islands.pop(number, None)
            weather.trouble_ends(swarm.clock.now)

        self._at(begins_s, begin)
        self._at(ends_s, end)

    def _dht_down(self, begins_s: float, ends_s: float) -> None:
        weather, clock = self._swarm.weather, self._swarm.clock

        def begin() -> None:
            weather.trouble_begins()
            weather.is_dht_up = False

        def end() -> None:
            weather.trouble_ends(clock.now)
            weather.is_dht_up = True

        self._at(begins_s, begin)
        self._at(ends_s, end)

    def _weather(self) -> None:
        faulty, weather = self._scenario.faulty, self._swarm.weather
        if faulty is None:
            return
        self._at(self.window.from_s, lambda: setattr(weather, "rates", faulty))
        self._at(self.window.until_s, lambda: setattr(weather, "rates", weather.calm))
