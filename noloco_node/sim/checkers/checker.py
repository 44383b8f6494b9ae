"""What a checker is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from noloco_node.core import effects as do
from noloco_node.core import events as ev
from noloco_node.sim.virtual_node import VirtualNode
from noloco_node.sim.virtual_swarm import VirtualSwarm


class Checker:
    """Looks at a swarm after every event and says, in words, what does not hold. Changes nothing."""

    name: ClassVar[str] = ""
    looks_at_records: ClassVar[bool] = False  # also at those that change nothing

    def __init__(self, swarm: VirtualSwarm) -> None:
        self.swarm = swarm

    def after(self, node: VirtualNode, event: ev.Event, effects: list[do.Effect]) -> Iterable[str]:
        """`node` has handled `event`."""
        return ()

    def finish(self) -> Iterable[str]:
        """The run is over."""
        return ()
