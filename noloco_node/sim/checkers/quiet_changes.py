"""Invariant 7: parameters change only with nothing between forward and backward, one device job at a time."""

from __future__ import annotations

from collections.abc import Iterator

from noloco_node.core import effects as do
from noloco_node.core import events as ev
from noloco_node.sim.checkers.checker import Checker
from noloco_node.sim.virtual_node import VirtualNode


class QuietChanges(Checker):
    """The device writes down what it was made to do."""

    name = "quiet_changes"

    def after(self, node: VirtualNode, event: ev.Event, effects: list[do.Effect]) -> Iterator[str]:
        if node.ledger.unquiet_changes:
            yield from node.ledger.unquiet_changes
            node.ledger.unquiet_changes.clear()
