"""Invariant 1: c is added at most once, only with the partner agreed, from the same two tensors on both sides."""

from __future__ import annotations

from collections.abc import Iterator

from noloco_node.core import effects as do
from noloco_node.core import events as ev
from noloco_node.core.types import Outcome
from noloco_node.sim.checkers.checker import Checker
from noloco_node.sim.checkers.pairs import partners_steps
from noloco_node.sim.ledger import OuterStep
from noloco_node.sim.virtual_node import VirtualNode


class CorrectionOnce(Checker):
    name = "correction_once"
    kinds = frozenset((ev.CorrectionAdded,))

    def after(self, node: VirtualNode, event: ev.Event, effects: list[do.Effect]) -> Iterator[str]:
        assert isinstance(event, ev.CorrectionAdded)
        step = node.ledger.step(event.outer_step)
        if step is not None:
            yield from self._own(node, step)
            yield from self._pair(node, step)

    def _own(self, node: VirtualNode, step: OuterStep) -> Iterator[str]:
        if step.added > 1:
            yield f"c of outer step {step.number} was added {step.added} times"
        if step.outcome is not Outcome.PAIRED:
            yield f"c of outer step {step.number} was added, which closed {step.outcome}"
        agreed = node.ledger.agreed.get((step.tenure, step.number), [])
        if (step.partner, step.peer) not in agreed:
            yield f"outer step {step.number} was paired with {step.peer} in {step.partner}, agreed was {agreed}"
        if len(agreed) > 1:
            yield f"more than one partner was agreed for outer step {step.number}: {agreed}"

    def _pair(self, node: VirtualNode, step: OuterStep) -> Iterator[str]:
        """Whoever added c computed with one of our tensors must have taken it with the other of ours."""
        for theirs in partners_steps(self.swarm, node, step):
            if theirs.added and theirs.digest in step.digests and theirs.digests != step.digests:
                yield f"outer step {step.number}: {step.peer} mixed other tensors"
