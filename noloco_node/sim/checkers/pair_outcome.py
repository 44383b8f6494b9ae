"""Invariant 2: both sides of a pair close alike, but for a link or a side that was down from READY to the end.

Such splits are listed in the figures, not excused.
"""

from __future__ import annotations

from collections.abc import Iterator

from noloco_node.core import effects as do
from noloco_node.core import events as ev
from noloco_node.core import limits
from noloco_node.core.types import Outcome
from noloco_node.sim.checkers.checker import Checker
from noloco_node.sim.checkers.pairs import partners_steps
from noloco_node.sim.ledger import OuterStep
from noloco_node.sim.virtual_node import VirtualNode
from noloco_node.sim.virtual_swarm import VirtualSwarm


class PairOutcome(Checker):
    """`splits`: the listed exceptions, in words."""

    name = "pair_outcome"
    kinds = frozenset((do.CloseExchange,))

    def __init__(self, swarm: VirtualSwarm) -> None:
        super().__init__(swarm)
        self.splits: list[str] = []

    def after(self, node: VirtualNode, event: ev.Event, effects: list[do.Effect]) -> Iterator[str]:
        for effect in effects:
            if isinstance(effect, do.CloseExchange) and effect.peer is not None:
                step = node.ledger.step(effect.outer_step)
                if step is not None and node.machine is not None and node.machine.work is not None:
                    yield from self._compare(node, step)

    def _compare(self, node: VirtualNode, step: OuterStep) -> Iterator[str]:
        """The newest of the partner's steps; nothing is said when its process is another by now."""
        assert step.peer is not None
        partner = self.swarm.by_peer[step.peer]
        theirs = next(partners_steps(self.swarm, node, step), None)
        if theirs is None or theirs.outcome is None or theirs.outcome is step.outcome:
            return
        if theirs.life != partner.life or theirs.seat != step.partner or theirs.partner != step.seat:
            return
        paired, solo = (step, theirs) if step.outcome is Outcome.PAIRED else (theirs, step)
        told = f"outer step {step.number}: {paired.seat} closed paired, {solo.seat} solo ({solo.reason})"
        waited = solo.ready_s is not None and solo.is_closed_late
        if paired.seat > solo.seat or not waited or self._could_talk(node, partner, solo):
            yield told
        else:
            self.splits.append(told)

    def _could_talk(self, node: VirtualNode, partner: VirtualNode, follower: OuterStep) -> bool:
        """A stream was up long enough for one ASK and its answer, between READY and the follower's end."""
        assert follower.ready_s is not None
        assert follower.closed_s is not None
        link = self.swarm.links.find(follower.number, node.peer, partner.peer)
        needed_s = limits.ASK_INTERVAL_S + self.swarm.weather.round_trip_s + 0.1
        return link is not None and link.longest_up_s(follower.ready_s, follower.closed_s) > needed_s
