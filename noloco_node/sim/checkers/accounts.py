"""Invariant 6: an id is added once per replica within its memory; at the origin sent = trained + dropped + open."""

from __future__ import annotations

from collections.abc import Iterator

from noloco_node.core import effects as do
from noloco_node.core import events as ev
from noloco_node.core import limits
from noloco_node.core.types import MicroBatchId
from noloco_node.sim.checkers.checker import Checker
from noloco_node.sim.ledger import Tenure
from noloco_node.sim.virtual_node import VirtualNode
from noloco_node.sim.virtual_swarm import VirtualSwarm


class Accounts(Checker):
    """The ledger counts what the device did and what was freed; the machine's accounts must say the same."""

    name = "accounts"
    kinds = frozenset((ev.ForwardDone, ev.BackwardDone, do.ForgetMicroBatch, do.Leave))

    def __init__(self, swarm: VirtualSwarm) -> None:
        super().__init__(swarm)
        self._added: dict[tuple[int, int], dict[MicroBatchId, int]] = {}  # (node, tenure) -> id -> inner step
        self._seen: dict[tuple[int, int], int] = {}

    def after(self, node: VirtualNode, event: ev.Event, effects: list[do.Effect]) -> Iterator[str]:
        tenure = node.ledger.tenure
        if tenure is None:
            return
        if isinstance(event, ev.BackwardDone | ev.ForwardDone):
            yield from self._once(node, tenure)
        if any(isinstance(effect, do.ForgetMicroBatch | do.Leave) for effect in effects):
            yield from self._balance(node, tenure)

    def _once(self, node: VirtualNode, tenure: Tenure) -> Iterator[str]:
        key = node.number, tenure.number
        known, seen = self._added.setdefault(key, {}), self._seen.get(key, 0)
        for micro_batch, inner_step in tenure.added[seen:]:
            last = known.get(micro_batch)
            if last is not None and inner_step - last < limits.REPLAY_MEMORY_STEPS:
                yield f"{micro_batch} is added in inner step {inner_step} and was in {last}"
            known[micro_batch] = inner_step
        self._seen[key] = len(tenure.added)

    @staticmethod
    def _balance(node: VirtualNode, tenure: Tenure) -> Iterator[str]:
        machine = node.machine
        if machine is None:  # it has left
            if tenure.open and tenure.life == node.life - 1:  # what a killed process had open died with it
                yield f"{len(tenure.open)} micro-batches are open at the end"
            return
        if machine.flow is None:
            return
        accounts, counted = machine.flow.accounts, (tenure.trained, tenure.dropped, len(tenure.open))
        said = accounts.trained, accounts.dropped, accounts.sent - accounts.trained - accounts.dropped
        if machine.flow.is_first and said != counted:
            yield f"(trained, dropped, open) is {counted}, the accounts say {said}"
