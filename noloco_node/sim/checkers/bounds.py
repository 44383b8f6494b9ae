"""Invariant 10: messages and bytes per seat and outer step do not grow with the swarm; buffers keep their limits."""

from __future__ import annotations

from collections.abc import Iterator

from noloco_node.core import effects as do
from noloco_node.core import events as ev
from noloco_node.core import limits
from noloco_node.core.machine import Machine
from noloco_node.core.types import Settings
from noloco_node.sim.checkers.checker import Checker
from noloco_node.sim.replica import TENSOR_BYTES
from noloco_node.sim.virtual_node import VirtualNode
from noloco_node.sim.virtual_swarm import VirtualSwarm

LINKS_MAX = 2 * limits.EXCHANGE_MEMORY_STEPS + 4
TENSORS_MAX = 6  # sent per interval, with repeats after breaks
WAKE_UPS_MAX = 20  # of the timer without any effect, per second
CALLS_MAX = 150  # per interval: hops with their answers, offers, words of the exchange


def messages_max(settings: Settings, elapsed_s: float) -> float:
    """Of one node in that time: a sweep and a record per renewal, a look-up each second, its share of calls."""
    renewals = elapsed_s / settings.renew_s + 4
    look_ups = limits.SWEEP_SEATS_PER_RENEWAL * renewals + limits.SWEEP_SEATS_PER_RENEWAL * elapsed_s
    calls = CALLS_MAX * (elapsed_s / settings.outer_interval_s + 1)
    return look_ups + limits.DHT_COPIES * renewals + calls


class Bounds(Checker):
    """Buffers at each inner step, a roster's seat at each record, traffic at the end."""

    name = "bounds"
    looks_at_records = True

    def __init__(self, swarm: VirtualSwarm) -> None:
        super().__init__(swarm)
        self._idle: dict[int, tuple[int, int]] = {}  # node -> (second, wake-ups for nothing within it)

    def after(self, node: VirtualNode, event: ev.Event, effects: list[do.Effect]) -> Iterator[str]:
        machine = node.machine
        if machine is None:
            return
        if isinstance(event, ev.TimePassed):
            if not effects:
                yield from self._wakes_for_nothing(node)
        elif isinstance(event, ev.RecordLearnt):
            kept = len(machine.membership.roster._seats.get(event.record.seat, ()))
            if kept > limits.RECORDS_PER_SEAT_MAX:
                yield f"{kept} records of seat {event.record.seat} are kept"
        elif isinstance(event, ev.InnerStepDone | ev.BoundaryTaken | ev.ExchangeMessageReceived):
            yield from (f"{what} holds {held}, the limit is {most}" for what, held, most in self._buffers(machine))
            if len(node.exchanges.links) > LINKS_MAX:
                yield f"{len(node.exchanges.links)} exchange links are kept"

    def _wakes_for_nothing(self, node: VirtualNode) -> Iterator[str]:
        second, (last, count) = int(node.clock.now), self._idle.get(node.number, (0, 0))
        count = count + 1 if second == last else 1
        self._idle[node.number] = second, count
        if count == WAKE_UPS_MAX:
            yield f"woken {count} times within a second for nothing"

    @staticmethod
    def _buffers(machine: Machine) -> Iterator[tuple[str, int, int]]:
        """Those above their limit."""
        work = machine.work
        if work is None:
            return
        desk, settings = work.desk, machine.settings
        for what, held, most in (
            ("the queue", work.flow.gate.queued, work.flow._queue_max() + limits.DRAWN_AHEAD_MAX),
            ("the memory of replays", len(work.flow._memory), limits.REPLAY_ENTRIES_MAX),
            ("the memory of closed steps", len(desk._memory._closed), limits.EXCHANGE_MEMORY_STEPS),
            ("early BEGINs", len(desk._memory._early), limits.EARLY_BEGINS_MAX),
            ("agreements", len(desk._agreement._made), 3),
            ("drawn partners", len(desk._agreement._drawn), 3 * settings.num_replicas),
        ):
            if held > most:
                yield what, held, most

    def finish(self) -> Iterator[str]:
        elapsed_s = self.swarm.clock.now - 1000.0
        most = messages_max(self.swarm.settings, elapsed_s)
        bytes_most = TENSORS_MAX * TENSOR_BYTES * (elapsed_s / self.swarm.settings.outer_interval_s + 1) + most * 400
        for node in self.swarm.nodes:
            if node.ledger.messages > most:
                yield f"{node.peer} sent {node.ledger.messages} messages, at most {most:.0f} are right"
            if node.ledger.bytes > bytes_most + CALLS_MAX * (1 << 16) * elapsed_s:
                yield f"{node.peer} sent {node.ledger.bytes} bytes"
