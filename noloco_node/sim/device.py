"""The training thread of a simulated node: one job at a time, each ends after a while.

Owns which job is out and which calls hold a graph, and writes down whatever changes parameters between a forward and
its backward. Must not know peers or the protocol.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from noloco_node.core.events import Event

if TYPE_CHECKING:
    from noloco_node.sim.virtual_node import VirtualNode


class Device:
    """`busy_with` names the job that is out; `compute_s` is the forward of one micro-batch."""

    def __init__(self, node: VirtualNode) -> None:
        self._node = node
        self.busy_with = ""
        self._generation = 0  # of states: jobs of an earlier one end unheard

    @property
    def compute_s(self) -> float:
        return self._node.build.compute_s

    def forget_all(self) -> None:
        self._generation += 1
        self.busy_with = ""

    def run(self, job: str, duration_s: float, end: Callable[[], Event], *, changes: bool = False) -> None:
        """`end` is called when the job is done and says what to tell the machine. `changes`: parameters, or a copy."""
        replica, ledger = self._node.replica, self._node.ledger
        assert replica is not None, f"{job} without a state"
        if self.busy_with:
            ledger.unquiet_changes.append(f"{job} begins while {self.busy_with} is out")
        if changes and replica.graphs:
            ledger.unquiet_changes.append(f"{job} with graphs of calls {sorted(replica.graphs)}")
        self.busy_with, generation = job, self._generation
        self._node.after(duration_s, lambda: self._ended(generation, end))

    def _ended(self, generation: int, end: Callable[[], Event]) -> None:
        if generation == self._generation:
            self.busy_with = ""
            self._node.feed(end())
