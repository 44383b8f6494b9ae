"""Invariant 10: messages and bytes per seat and outer step do not grow with the swarm; buffers keep their limits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import ceil

from noloco_node.core import effects as do
from noloco_node.core import events as ev
from noloco_node.core import limits
from noloco_node.core.machine import Machine
from noloco_node.core.types import Phase, Settings
from noloco_node.sim.checkers.checker import Checker
from noloco_node.sim.hop_call import ACTIVATION_BYTES
from noloco_node.sim.ledger import Traffic
from noloco_node.sim.replica import TENSOR_BYTES
from noloco_node.sim.seat_lane import LOOK_UP_BYTES, RECORD_BYTES
from noloco_node.sim.virtual_node import VirtualNode
from noloco_node.sim.virtual_swarm import VirtualSwarm

LINKS_MAX = 2 * limits.EXCHANGE_MEMORY_STEPS + 4
TENSORS_MAX = 6  # sent per interval, with repeats after breaks
WAKE_UPS_MAX = 20  # of the timer without any effect, per second
RECORDS_MAX = 4  # beside renewals: a seat won, taken up, lost, won again
ASKED_AND_ANSWERED = 2
TURNED_AWAY_MAX = 4  # hops a second that hear BUSY: while few replicas are up all ask the same ones


@dataclass(slots=True)
class Window:
    """What one node did since the last outer interval began."""

    sent: dict[Traffic, int] = field(default_factory=lambda: dict.fromkeys(Traffic, 0))  # before it
    sent_bytes: int = 0  # before it
    needy_s: set[int] = field(default_factory=set)  # seconds in which it looked for what it stood still without


def sent_max(settings: Settings, compute_s: float, needy_s: int) -> dict[Traffic, int]:
    """Messages of one node within an outer interval, whatever the number of seats.

    Look-ups: a sweep at each renewal, the vacant seats of the next stage as often, a partner each second; one sweep
    more in each second in which it stands still without a peer (`needy_s`). Hops: as if the device did nothing but
    forwards, `compute_s` each, with an activation, an ADMITTED and a gradient; BUSY to some more. Calls: an OFFER after
    each pause, words of an exchange each second, neighbours at each renewal; as many of others.
    """
    interval_s = settings.outer_interval_s
    renewals = ceil(interval_s / settings.renew_s) + 1
    sweep = min(limits.SWEEP_SEATS_PER_RENEWAL, settings.num_stages * settings.num_replicas)
    vacant = min(limits.SWEEP_SEATS_PER_RENEWAL, settings.num_replicas)
    words = interval_s / limits.HAVE_INTERVAL_S + interval_s / limits.ASK_INTERVAL_S
    offers = interval_s / limits.OFFER_RETRY_S
    return {
        Traffic.LOOK_UP: renewals * (sweep + vacant) + ceil(interval_s) + needy_s * sweep,
        Traffic.STORE: limits.DHT_COPIES * (renewals + RECORDS_MAX),
        Traffic.HOP: ceil(3 * interval_s / compute_s + TURNED_AWAY_MAX * interval_s),
        Traffic.CALL: ASKED_AND_ANSWERED * ceil(offers + words + limits.SHOWN_MAX * renewals),
        Traffic.TENSOR: TENSORS_MAX,
    }


BYTES_MAX = {
    Traffic.LOOK_UP: LOOK_UP_BYTES,
    Traffic.STORE: RECORD_BYTES,
    Traffic.HOP: ACTIVATION_BYTES,
    Traffic.CALL: RECORD_BYTES,
    Traffic.TENSOR: TENSOR_BYTES,
}
"""Of one message."""


class Bounds(Checker):
    """Buffers at each inner step, a roster's seat at each record, traffic in each outer interval."""

    name = "bounds"
    kinds = frozenset(
        (ev.TimePassed, ev.RecordLearnt, ev.InnerStepDone, ev.BoundaryTaken, ev.ExchangeMessageReceived, do.ReadSeats)
    )

    def __init__(self, swarm: VirtualSwarm) -> None:
        super().__init__(swarm)
        self._idle: dict[int, tuple[int, int]] = {}  # node -> (second, wake-ups for nothing within it)
        self._windows: dict[int, Window] = {}
        self._ends_s = swarm.clock.now
        self._next_window()

    def after(self, node: VirtualNode, event: ev.Event, effects: list[do.Effect]) -> Iterator[str]:
        machine = node.machine
        if machine is None:
            return
        if effects and self._is_needy(machine, node.clock.now):
            self._window(node).needy_s.add(int(node.clock.now))
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

    # --- traffic ----------------------------------------------------------------------------------

    @staticmethod
    def _is_needy(machine: Machine, now: float) -> bool:
        """It looks for a seat, a state, or a peer without whom it stands still; or serves a stage that ends."""
        works = machine.phase in (Phase.TRAINING, Phase.EXCHANGING) and machine.work is not None
        return not works or bool(machine.waits_for) or machine.work.flow.gate.is_starved(now)

    def _window(self, node: VirtualNode) -> Window:
        return self._windows.setdefault(node.number, Window())

    def _next_window(self) -> None:
        """An outer interval ends, another begins."""
        for words in self.finish():
            self.swarm.report(self.name, "", words)
        for node in self.swarm.nodes:
            self._windows[node.number] = Window(dict(node.ledger.sent), node.ledger.bytes)
        self._ends_s += self.swarm.settings.outer_interval_s
        self.swarm.clock.at(self._ends_s, self._next_window)

    def finish(self) -> Iterator[str]:
        for node in self.swarm.nodes:
            window = self._window(node)
            most = sent_max(self.swarm.settings, node.build.compute_s, len(window.needy_s))
            for traffic, count in node.ledger.sent.items():
                if count - window.sent[traffic] > most[traffic]:
                    sent = count - window.sent[traffic]
                    yield f"{node.peer} sent {sent} {traffic} within an outer interval, the limit is {most[traffic]}"
            sent_bytes = node.ledger.bytes - window.sent_bytes
            bytes_most = sum(BYTES_MAX[traffic] * count for traffic, count in most.items())
            if sent_bytes > bytes_most:
                yield f"{node.peer} sent {sent_bytes} bytes within an outer interval, the limit is {bytes_most}"
