"""Invariant 5: a closed step never reopens; k never falls in one process; n goes on where the state says."""

from __future__ import annotations

from collections.abc import Iterator

from noloco_node.core import effects as do
from noloco_node.core import events as ev
from noloco_node.core.types import Outcome
from noloco_node.sim.checkers.checker import Checker
from noloco_node.sim.ledger import Tenure
from noloco_node.sim.virtual_node import VirtualNode
from noloco_node.sim.virtual_swarm import VirtualSwarm


class Counters(Checker):
    name = "counters"
    kinds = frozenset((ev.StateLoaded, do.TakeBoundary, do.CloseExchange, do.AddCorrection, do.DrawMicroBatch))

    def __init__(self, swarm: VirtualSwarm) -> None:
        super().__init__(swarm)
        self._boundaries: dict[tuple[int, int], int] = {}  # (node, life) -> newest outer step
        self._drawn: dict[tuple[int, int], int] = {}  # (node, tenure) -> newest number

    def after(self, node: VirtualNode, event: ev.Event, effects: list[do.Effect]) -> Iterator[str]:
        if isinstance(event, ev.StateLoaded):
            yield from self._weights(node)
        for effect in effects:
            match effect:
                case do.TakeBoundary(outer_step):
                    yield from self._boundary(node, outer_step)
                case do.CloseExchange(outer_step):
                    yield from self._closing(node, outer_step)
                case do.AddCorrection(outer_step):
                    yield from self._correction(node, outer_step)
                case do.DrawMicroBatch(n):
                    yield from self._draw(node, n)

    @staticmethod
    def _weights(node: VirtualNode) -> Iterator[str]:
        flow = None if node.machine is None else node.machine.flow
        if flow is not None and node.replica is not None and node.replica.seat != flow.seat:
            yield f"seat {flow.seat} works with the weights of seat {node.replica.seat}"

    def _boundary(self, node: VirtualNode, outer_step: int) -> Iterator[str]:
        key = node.number, node.life
        last = self._boundaries.get(key, -1)
        self._boundaries[key] = max(last, outer_step)
        tenure = node.ledger.tenure
        if outer_step <= last:
            yield f"the boundary of outer step {outer_step} is taken after that of {last}"
        if tenure is not None and outer_step < tenure.from_step:
            yield f"the boundary of outer step {outer_step} is taken, the state began at {tenure.from_step}"

    @staticmethod
    def _closing(node: VirtualNode, outer_step: int) -> Iterator[str]:
        step = node.ledger.step(outer_step)
        if step is not None and step.closings > 1:
            yield f"outer step {outer_step} closed again"

    @staticmethod
    def _correction(node: VirtualNode, outer_step: int) -> Iterator[str]:
        step = node.ledger.step(outer_step)
        if step is None or step.outcome is not Outcome.PAIRED:
            yield f"a correction of outer step {outer_step}, which is not paired"

    def _draw(self, node: VirtualNode, n: int) -> Iterator[str]:
        tenure = node.ledger.tenure
        if tenure is None:
            return
        key = node.number, tenure.number
        last = self._drawn.get(key)
        self._drawn[key] = n
        if last is not None and n != last + 1:
            yield f"micro-batch {n} is drawn after {last}"
        if last is None and tenure.source == "checkpoint" and n != self._first(node, tenure):
            yield f"micro-batch {n} is drawn first, the checkpoint says {tenure.from_n}"

    @staticmethod
    def _first(node: VirtualNode, tenure: Tenure) -> int:
        """The checkpoint's number, unless another node held the seat meanwhile and promised more."""
        assert node.machine is not None
        roster = node.machine.membership.roster
        return max(tenure.from_n, roster.data_next(tenure.seat, apart_from=node.peer))
