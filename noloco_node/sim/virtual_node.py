"""One simulated node: the product's machine, and what a driver would plug it into.

Owns the process: its lives (crash, restart, stop, pause), the backlog of a paused one, its timer and its clock's error.
Carries each effect to a lane, as `driver.driver` does. Must not know what goes wrong and when (`sim.faults`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from noloco_node.core import effects as do
from noloco_node.core import events as ev
from noloco_node.core.machine import Machine
from noloco_node.core.types import PeerId, Seat, SeatRecord
from noloco_node.sim.exchange_lane import ExchangeLane
from noloco_node.sim.ledger import Ledger, Traffic
from noloco_node.sim.micro_batch_lane import MicroBatchLane
from noloco_node.sim.replica import Disk, Replica
from noloco_node.sim.seat_lane import SeatLane
from noloco_node.sim.state_lane import StateLane

if TYPE_CHECKING:
    from noloco_node.sim.virtual_swarm import VirtualSwarm

TIMER_MIN_S = 0.005  # as in the driver
CRASH_NOTICE_S = 0.05  # peers of a dead process see their calls break after this


@dataclass(frozen=True, slots=True)
class Build:
    """What kind of machine this is. `compute_s`: forward of one micro-batch; `skew_s`: its wall clock's error."""

    wanted: Seat | None = None
    compute_s: float = 0.5
    skew_s: float = 0.0
    has_initial_peers: bool = True


class VirtualNode:
    """`machine` is None while the process is down. `life` counts processes; what an earlier one began is not heard."""

    def __init__(self, swarm: VirtualSwarm, number: int, build: Build) -> None:
        self.swarm, self.number, self.build = swarm, number, build
        self.clock, self.weather = swarm.clock, swarm.weather
        self.peer = PeerId(f"peer{number}")
        self.machine: Machine | None = None
        self.replica: Replica | None = None
        self.record: SeatRecord | None = None
        self.left: do.Leave | None = None
        self.life = 0
        self.paused_since_s: float | None = None
        self.disk, self.ledger = Disk(), Ledger()
        self.seats, self.states = SeatLane(self), StateLane(self)
        self.micro_batches, self.exchanges = MicroBatchLane(self), ExchangeLane(self)
        self._backlog: list[Callable[[], None]] = []
        self._timer_s = float("inf")
        self._met: dict[PeerId, int] = {}  # seq of the newest record each peer brought
        lanes = (self.seats, self.states, self.micro_batches, self.exchanges)
        self._executors: dict[type, Callable[[Any], None]] = {
            effect: execute for lane in lanes for effect, execute in lane.executors().items()
        }

    # --- life -------------------------------------------------------------------------------------

    @property
    def is_up(self) -> bool:
        return self.machine is not None

    @property
    def is_paused(self) -> bool:
        return self.paused_since_s is not None

    @property
    def wall_ms(self) -> int:
        return int((self.clock.now + self.build.skew_s) * 1000)

    def start(self) -> None:
        """A process begins, with what is on the disk."""
        self.life += 1
        self.left, self.record, self.replica = None, None, None
        self._met.clear()
        settings, incarnation = self.swarm.settings, self.number * 1000 + self.life
        self.machine = Machine(settings, self.peer, incarnation, self.build.wanted, start_s=self.swarm.start_s)
        seat = self.build.wanted if self.build.wanted in self.disk.files else self.disk.newest_seat()
        newest = None if seat is None else self.disk.newest(seat)
        step = None if newest is None else newest.outer_step
        kept = tuple((s, self.disk.files[s][-1].outer_step) for s in sorted(self.disk.files) if s != seat)
        self.feed(ev.Started(step, seat, has_initial_peers=self.build.has_initial_peers, kept=kept))

    def crash(self) -> None:
        """The process is gone, at once."""
        self.machine, self.replica, self.record = None, None, None
        self.life += 1
        self._note_pause()
        self.paused_since_s, self._timer_s = None, float("inf")
        self._backlog.clear()
        self.seats.forget_all()
        self.states.uploads = 0
        self.micro_batches.process_ended()
        self.exchanges.process_ended()

    def pause(self) -> None:
        """SIGSTOP: nothing is handled, what comes waits."""
        if not self.is_paused and self.is_up:
            self.paused_since_s = self.clock.now
            self.micro_batches.watch_calls()
            self.exchanges.watch_links()

    def resume(self) -> None:
        """SIGCONT: the backlog in order, the timer before or after it."""
        if self.paused_since_s is None:
            return
        self._note_pause()
        self.paused_since_s = None
        backlog, self._backlog = self._backlog, []
        if self.weather.random.random() < 0.5:
            self._timer_fired(self.life)
        life = self.life
        for action in backlog:
            if life == self.life and not self.is_paused:
                action()
        self._timer_fired(self.life)

    def _note_pause(self) -> None:
        if self.paused_since_s is not None:
            self.ledger.pauses.append((self.paused_since_s, self.clock.now))

    def leave(self, effect: do.Leave) -> None:
        self.crash()
        self.left = effect

    # --- events -----------------------------------------------------------------------------------

    def feed(self, event: ev.Event, *, is_last: bool = True) -> None:
        """Give the machine one event and carry out what it says; not from within an effect.

        `is_last`: no other follows at this very moment, which would set the timer anew.
        """
        machine = self.machine
        if machine is None:
            return
        now = self.clock.now
        effects = machine.handle(event, now)
        for effect in effects:
            self._executors[type(effect)](effect)
        self.swarm.witness(self, event, effects)
        if is_last and self.machine is machine:
            self._set_timer(machine)

    def receive(self, action: Callable[[], None]) -> None:
        """Something reached this process."""
        if self.is_paused:
            self._backlog.append(action)
        elif self.is_up:
            action()

    def later(self, delay_s: float, event: ev.Event) -> None:
        self.after(delay_s, lambda: self.feed(event))

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """In this life only."""
        life = self.life
        self.clock.after(delay_s, lambda: self.receive(action) if life == self.life else None)

    def _set_timer(self, machine: Machine) -> None:
        deadline = machine.next_deadline()
        if deadline is None:
            return
        due = max(deadline, self.clock.now + TIMER_MIN_S)
        if due < self._timer_s:
            self._timer_s, life = due, self.life
            self.clock.at(due, lambda: self._timer_due(life, due))

    def _timer_due(self, life: int, due: float) -> None:
        """One that an earlier timer has overtaken is void."""
        if life == self.life and due == self._timer_s and not self.is_paused:
            self._timer_fired(life)

    def _timer_fired(self, life: int) -> None:
        if life != self.life or self.machine is None:
            return
        self._timer_s = float("inf")
        deadline = self.machine.next_deadline()
        if deadline is not None and deadline <= self.clock.now:
            self.feed(ev.TimePassed())
        elif self.machine is not None:
            self._set_timer(self.machine)

    # --- peers ------------------------------------------------------------------------------------

    def learn(self, record: SeatRecord) -> None:
        """One of several, or brought by a call: another event follows at once."""
        lives_s = (record.expires - self.wall_ms) / 1000
        if lives_s > 0:
            self.feed(ev.RecordLearnt(record, lives_s), is_last=False)

    def admits(self, caller: VirtualNode, record: SeatRecord | None) -> bool:
        """The doorkeeper: a caller is served by its lease; its record is learnt once."""
        if record is None or record.expires <= self.wall_ms or self.machine is None:
            return False
        self.meet(caller, record)
        machine = self.machine
        return machine is not None and machine.membership.roster.outranked(record, self.clock.now) is None

    def meet(self, peer: VirtualNode, record: SeatRecord | None) -> None:
        if record is not None and self._met.get(peer.peer) != record.seq:
            self._met[peer.peer] = record.seq
            self.learn(record)

    def counts(self, traffic: Traffic, message_bytes: int = 200, messages: int = 1) -> None:
        """Messages go out; `message_bytes` in all."""
        self.ledger.sent[traffic] += messages
        self.ledger.bytes += message_bytes
