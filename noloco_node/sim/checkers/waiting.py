"""Invariant 3: nobody waits for a partner beyond grace_s (not begun) and exchange_max_s (in all)."""

from __future__ import annotations

from collections.abc import Iterator

from noloco_node.core import effects as do
from noloco_node.core import events as ev
from noloco_node.core import limits
from noloco_node.core.exchange import patience
from noloco_node.core.types import Phase
from noloco_node.sim.checkers.checker import Checker
from noloco_node.sim.ledger import OuterStep
from noloco_node.sim.virtual_node import VirtualNode
from noloco_node.sim.virtual_swarm import VirtualSwarm

TOLERANCE_S = 0.05  # of timers
HOLD_MAX_S = limits.OFFER_TRIES_MAX * (limits.UNARY_DEADLINE_S + limits.OFFER_RETRY_S)


class Waiting(Checker):
    name = "waiting"

    def __init__(self, swarm: VirtualSwarm) -> None:
        super().__init__(swarm)
        self._patience = patience(swarm.settings)
        self._open: dict[int, OuterStep] = {}  # by node number
        self._held_s: dict[int, float] = {}  # by node number: its next boundary is due and held back, since when

    def after(self, node: VirtualNode, event: ev.Event, effects: list[do.Effect]) -> Iterator[str]:
        if isinstance(event, ev.BoundaryTaken):
            self._watch(node, event.outer_step)
        if node.number in self._open:
            yield from self._judge(node, self._open[node.number])

    def _watch(self, node: VirtualNode, outer_step: int) -> None:
        """Look again when time is up, should nothing happen then."""
        step = node.ledger.step(outer_step)
        if step is None:
            return
        self._open[node.number] = step
        for limit_s in (self._patience.begin_s, self._patience.in_all_s):
            self.swarm.clock.at(step.begun_s + limit_s + 2 * TOLERANCE_S, lambda: self._look(node, step))

    def _look(self, node: VirtualNode, step: OuterStep) -> None:
        if self._open.get(node.number) is step and node.is_up and not node.is_paused:
            for words in self._judge(node, step):
                self.swarm.report(self.name, node.peer, words)

    def _judge(self, node: VirtualNode, step: OuterStep) -> Iterator[str]:
        tenure = node.ledger.tenure
        is_over = step.closed_s is not None or step.life != node.life
        if is_over or tenure is None or tenure.number != step.tenure:
            del self._open[node.number]
            self._held_s.pop(node.number, None)
            return
        now = self.swarm.clock.now
        limit_s = self._patience.begin_s if step.begin_heard_s is None else self._patience.in_all_s
        resumed_s = node.ledger.pauses[-1][1] if node.ledger.pauses else 0.0
        if now <= max(step.begun_s + limit_s, resumed_s) + TOLERANCE_S:
            return
        if step.ready_s is None:
            yield f"outer step {step.number} still trades {now - step.begun_s:.2f} s after its boundary"
        elif self._stands_still(node):
            yield f"the optimizer waits {now - step.begun_s:.2f} s after the boundary of outer step {step.number}"

    def _stands_still(self, node: VirtualNode) -> bool:
        """A complete inner step, a free device, and nothing is done with them, though no boundary that is due waits for
        the answers to its OFFERs, as long as those may take."""
        machine = node.machine
        if machine is None or machine.work is None or machine.phase not in (Phase.TRAINING, Phase.EXCHANGING):
            return False
        work, now = machine.work, node.clock.now
        is_held = work.desk.awaits_answer and machine.clock.is_due(work.flow.seat.stage, now)
        if is_held and now <= self._held_s.setdefault(node.number, now) + HOLD_MAX_S:
            return False
        gate, is_free = work.flow.gate, not node.micro_batches.device.busy_with
        return is_free and gate.is_complete(now) and not machine.clock.is_over
