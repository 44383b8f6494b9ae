"""Invariant 8: two nodes work in one seat for at most lease_s + settle_s + skew_max_s once all can reach all."""

from __future__ import annotations

from collections.abc import Iterator

from noloco_node.core import effects as do
from noloco_node.core import events as ev
from noloco_node.core.types import Seat
from noloco_node.sim.checkers.checker import Checker
from noloco_node.sim.virtual_node import VirtualNode
from noloco_node.sim.virtual_swarm import VirtualSwarm


class OneHolder(Checker):
    name = "one_holder"

    def __init__(self, swarm: VirtualSwarm) -> None:
        super().__init__(swarm)
        settings = swarm.settings
        self._bound_s = settings.lease_s + settings.settle_s + settings.skew_max_s
        self._seat_of: dict[int, Seat] = {}  # by node number, while it works there
        self._workers: dict[Seat, set[int]] = {}
        self._doubled_s: dict[Seat, float] = {}  # since when a seat has two

    def after(self, node: VirtualNode, event: ev.Event, effects: list[do.Effect]) -> Iterator[str]:
        machine = node.machine
        seat = None if machine is None or machine.work is None else machine.membership.seat
        if self._seat_of.get(node.number) != seat:
            self._moves(node, seat)
        if seat in self._doubled_s:
            yield from self._judge(seat)

    def _moves(self, node: VirtualNode, seat: Seat | None) -> None:
        old = self._seat_of.pop(node.number, None)
        if old is not None:
            self._workers[old].discard(node.number)
        if seat is not None:
            self._seat_of[node.number] = seat
            self._workers.setdefault(seat, set()).add(node.number)
        for changed in (old, seat):
            if changed is not None:
                self._count(changed)

    def _working(self, seat: Seat) -> list[VirtualNode]:
        """Of those seen in the seat the ones whose process runs and still works there."""
        nodes = (self.swarm.nodes[number] for number in sorted(self._workers[seat]))
        return [n for n in nodes if n.machine is not None and n.machine.work is not None]

    def _count(self, seat: Seat) -> None:
        if len(self._working(seat)) > 1:
            self._doubled_s.setdefault(seat, self.swarm.clock.now)
        else:
            self._doubled_s.pop(seat, None)

    def _judge(self, seat: Seat) -> Iterator[str]:
        self._count(seat)
        since_s = self._doubled_s.get(seat)
        now = self.swarm.clock.now
        if since_s is None:
            return
        lasted_s = now - max(since_s, self.swarm.weather.healed_s(now))
        if lasted_s > self._bound_s:
            peers = [n.peer for n in self._working(seat)]
            yield f"seat {seat} is held by {peers} for {lasted_s:.1f} s though all can reach all"
