"""Invariant 4: what one side of a pair adds to phi the other takes away, exactly."""

from __future__ import annotations

from collections.abc import Iterator

from noloco_node.core import effects as do
from noloco_node.core import events as ev
from noloco_node.sim.checkers.checker import Checker
from noloco_node.sim.checkers.pairs import partners_steps
from noloco_node.sim.virtual_node import VirtualNode


class PairSum(Checker):
    """Weights are Fractions, so there is nothing to round."""

    name = "pair_sum"
    kinds = frozenset((ev.CorrectionAdded,))

    def after(self, node: VirtualNode, event: ev.Event, effects: list[do.Effect]) -> Iterator[str]:
        assert isinstance(event, ev.CorrectionAdded)
        step = node.ledger.step(event.outer_step)
        if step is None or step.c is None:
            return
        if step.phi_moved != step.c:
            yield f"outer step {step.number}: phi moved by {step.phi_moved}, c is {step.c}"
        for theirs in partners_steps(self.swarm, node, step):
            if theirs.c is not None and theirs.digests == step.digests and theirs.c + step.c != 0:
                yield f"outer step {step.number}: the sum of the pair's phi moved by {theirs.c + step.c}"
