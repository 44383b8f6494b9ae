"""The other side of a closed outer step, as the partner's ledger has it."""

from __future__ import annotations

from collections.abc import Iterator

from noloco_node.sim.ledger import OuterStep
from noloco_node.sim.virtual_node import VirtualNode
from noloco_node.sim.virtual_swarm import VirtualSwarm


def partners_steps(swarm: VirtualSwarm, node: VirtualNode, step: OuterStep) -> Iterator[OuterStep]:
    """What the partner lived through at the same number with this node, newest first; more than one after crashes."""
    if step.peer is None:
        return
    for theirs in reversed(swarm.by_peer[step.peer].ledger.steps):
        if theirs.number == step.number and theirs.peer == node.peer:
            yield theirs
