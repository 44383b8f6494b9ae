"""What a checker is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from noloco_node.core import effects as do
from noloco_node.core import events as ev
from noloco_node.sim.virtual_node import VirtualNode
from noloco_node.sim.virtual_swarm import VirtualSwarm


class Checker:
    """Looks at a swarm after events and says, in words, what does not hold. Changes nothing.

    `kinds`: events and effects it is called after, None: every event but a record that changes nothing.
    """

    name: ClassVar[str] = ""
    kinds: ClassVar[frozenset[type] | None] = None

    def __init__(self, swarm: VirtualSwarm) -> None:
        self.swarm = swarm

    def after(self, node: VirtualNode, event: ev.Event, effects: list[do.Effect]) -> Iterable[str]:
        """`node` has handled `event`."""
        return ()

    def finish(self) -> Iterable[str]:
        """The run is over."""
        return ()
