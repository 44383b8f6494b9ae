"""Carries effects out and turns their ends into events. Decides nothing about the algorithm.

Owns the event queue, the timer, the running tasks and the tensors in flight (by call handle). Everything runs on one
event loop; the machine is called synchronously, so an incoming call has its answer when `feed` returns.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from noloco_node.core import effects as do
from noloco_node.core import events as ev
from noloco_node.core import limits
from noloco_node.core.farewell import PUBLISH_WAIT_S
from noloco_node.core.machine import Machine
from noloco_node.core.types import ExchangeMessage, Offer, OfferAnswer, PeerId, Seat, SeatRecord, SeatState
from noloco_node.driver.barring import departures
from noloco_node.driver.clock import running_s
from noloco_node.driver.doorkeeper import Doorkeeper
from noloco_node.driver.exchange_lane import ExchangeLane
from noloco_node.driver.hop_rules import HopForm, HopRules
from noloco_node.driver.introductions import Introductions
from noloco_node.driver.micro_batch_lane import MicroBatchLane
from noloco_node.driver.state_lane import Excerpt, StateLane, StateShelf
from noloco_node.driver.status import machine_status
from noloco_node.errors import IdentityInUse, NolocoError, PeerLost, RemoteProtocolError
from noloco_node.ports import (
    Discovery,
    HopAnswer,
    HopHeader,
    MicroBatch,
    Observer,
    PeerNetwork,
    StateFile,
    StateParts,
    Trainer,
)

READS_AT_ONCE_MAX = limits.SWEEP_SEATS_PER_RENEWAL  # discovery lets them travel together

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the driver is plugged into. `make_trainer` builds the trainer of a seat, `checkpoints` names the newest
    complete local checkpoint file and its outer step."""

    discovery: Discovery
    observer: Observer
    make_trainer: Callable[[Seat], Trainer]
    checkpoints: Callable[[Seat], tuple[Path, int] | None]
    state_dir: Path
    progress: Callable[[], tuple[float, float]] = lambda: (0.0, 0.0)  # tokens per second and loss, for the record
    version: str = ""
    protocol: int = limits.PROTOCOL_VERSION
    clock: Callable[[], float] = running_s
    wall_ms: Callable[[], int] = lambda: int(time.time() * 1000)
    hop_form: HopForm | None = None
    seats_on_disk: Callable[[], Sequence[Seat]] = tuple  # that have a checkpoint here
    excerpt: Callable[[Path, StateParts], Excerpt] = lambda path, parts: (b"", ())
    fetched_parts: StateParts = StateParts.SLOW  # what is asked of a donor

    @property
    def shelf(self) -> StateShelf:
        return StateShelf(self.state_dir, self.checkpoints, self.seats_on_disk, self.excerpt, self.fetched_parts)


class Driver:
    """Runs one machine. `network` is set by `plug` before `run`, since the network needs the driver's handlers."""

    def __init__(self, machine: Machine, around: Surroundings) -> None:
        self.machine = machine
        self.around = around
        self.network: PeerNetwork | None = None
        self.trainer: Trainer | None = None
        self.doorkeeper = Doorkeeper(
            decode=around.discovery.decode,
            learn_record=self._learn,
            outranked=lambda record: machine.membership.roster.outranked(record, around.clock()),
            clock=around.clock,
            wall_ms=around.wall_ms,
        )
        self.hop_rules = HopRules(machine.settings, around.hop_form)
        self.introductions = Introductions(machine.peer, around.clock, self.doorkeeper.strike)
        self.micro_batches = MicroBatchLane(self)
        self.exchanges = ExchangeLane(self)
        self.states = StateLane(
            self,
            machine,
            around.shelf,
            around.make_trainer,
            forget_all=self._forget_all,
            strike=self.doorkeeper.strike,
        )
        self.last_progress_s = around.clock()
        self._events: deque[ev.Event] = deque()
        self._handling = False
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._publishing = asyncio.Lock()
        self._ended: asyncio.Future[do.Leave] | None = None
        self._tickets = itertools.count(1)
        self._executors: dict[type, Callable[[Any], None]] = {
            do.ReadSeats: self.as_task(self._read_seats),
            do.PublishRecord: self.as_task(self._publish),
            do.AnnounceCheckpoint: self.as_task(self._announce_checkpoint),
            do.ShowRecord: self.as_task(self._show_record),
            do.RunInnerStep: self.as_task(self._run_inner_step),
            do.Leave: self._leave,
            **self.micro_batches.executors(),
            **self.exchanges.executors(),
            **self.states.executors(),
        }

    # --- life -------------------------------------------------------------------------------------

    def plug(self, network: PeerNetwork) -> None:
        self.network = network

    async def run(self, started: ev.Started) -> do.Leave:
        """Until the machine leaves. Raises NolocoError when something fatal happened."""
        self._ended = asyncio.get_running_loop().create_future()
        self.feed(started)
        try:
            left = await self._ended
            if self.states.written is not None:
                path = await self.states.written  # what it says about the disk must be heard
                log.info("the last checkpoint is on disk: %s", path.name)
            return left
        except IdentityInUse:
            raise  # the seat is the other process's now
        except NolocoError:
            await self._say_goodbye()
            raise
        finally:
            await self._close()

    async def _say_goodbye(self) -> None:
        """Ended by a fault: the seat is free at once, not only when the lease has run out."""
        effects = self.machine.membership.leave(self.around.clock())
        with contextlib.suppress(TimeoutError, NolocoError, OSError):  # the fault that ended us is what counts
            async with asyncio.timeout(PUBLISH_WAIT_S):
                for effect in effects:
                    if isinstance(effect, do.PublishRecord):
                        await self._publish(effect)

    def stop(self, reason: str) -> None:
        self.feed(ev.StopRequested(reason))

    @property
    def is_saved(self) -> bool:
        """The last checkpoint begun is on disk, or none was begun."""
        return self.states.is_saved

    def give_up(self, reason: str) -> None:
        """The grace time of a stop is over: leave with what is saved."""
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(do.Leave(f"{reason}: grace time over"))

    def fail(self, error: BaseException) -> None:
        """Something fatal: `run` raises it."""
        if self._ended is not None and not self._ended.done():
            self._ended.set_exception(error)

    async def _close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.trainer is not None:
            await self.trainer.close()

    # --- events -----------------------------------------------------------------------------------

    def feed(self, event: ev.Event) -> None:
        """Give the machine one event and carry out what it says. Safe to call from within an effect."""
        self._events.append(event)
        if self._handling or (self._ended is not None and self._ended.done()):
            return
        self._handling = True
        try:
            while self._events:
                self._handle(self._events.popleft())
        except Exception as error:  # noqa: BLE001 - the machine or an executor broke: the node must end, loudly
            self.fail(error)
        finally:
            self._handling = False
        self._set_timer()

    def _handle(self, event: ev.Event) -> None:
        self.around.observer.event(event)
        for effect in self.machine.handle(event, self.around.clock()):
            self.around.observer.effect(effect)
            self._executors[type(effect)](effect)
        self.states.follow(self.machine.membership.seat)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline_s = self.machine.next_deadline()
        if deadline_s is not None and self._ended is not None and not self._ended.done():
            delay_s = max(0.005, deadline_s - self.around.clock())
            self._timer = asyncio.get_running_loop().call_later(delay_s, self.feed, ev.TimePassed())

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run an effect to its end; an error nobody expected ends the node."""
        task = asyncio.get_running_loop().create_task(self._guard(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _guard(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - a task's boundary; `fail` carries it to `run`
            self.fail(error)

    def as_task(self, execute: Callable[[Any], Coroutine[Any, Any, None]]) -> Callable[[Any], None]:
        def start(effect: Any) -> None:
            self.spawn(execute(effect))

        return start

    @property
    def peers(self) -> PeerNetwork:
        if self.network is None:
            raise RuntimeError("the driver runs without a network: call plug() first")
        return self.network

    @property
    def device(self) -> Trainer:
        if self.trainer is None:
            raise RuntimeError("a device job came before the seat's trainer was made")
        return self.trainer

    # --- seats ------------------------------------------------------------------------------------

    async def _read_seats(self, effect: do.ReadSeats) -> None:
        turn = asyncio.Semaphore(READS_AT_ONCE_MAX)

        async def read(seat: Seat) -> bool:
            async with turn:
                try:
                    records, reached = await self.around.discovery.read(seat), True
                except PeerLost:
                    records, reached = self.around.discovery.kept(seat), False
            for record in records:
                self._learn(record)
            return reached

        reached = await asyncio.gather(*(read(seat) for seat in effect.seats))
        self.feed(ev.SeatsRead(effect.seats, reached=any(reached)))

    def _learn(self, record: SeatRecord) -> None:
        lives_s = (record.expires - self.around.wall_ms()) / 1000
        if lives_s > 0 and not self.doorkeeper.barred(record.peer):
            self.feed(ev.RecordLearnt(record, lives_s))
            if self.network is not None and self.introductions.due(record, self.machine.membership.seat):
                self.spawn(self.introductions.greet(record.peer, self.network))

    def forget_barred(self) -> None:
        """The lists have changed: in our view, whoever they bar now has left its seat."""
        roster, now = self.machine.membership.roster, self.around.clock()
        for gone in departures(roster, self.doorkeeper.barred, now):
            self.feed(ev.RecordLearnt(gone, max(0.001, (gone.expires - self.around.wall_ms()) / 1000)))

    async def _publish(self, effect: do.PublishRecord) -> None:
        async with self._publishing:
            draft = self._draft(effect)
            try:
                record, encoded, confirmed = await self.around.discovery.publish(draft)
            except PeerLost:
                record, encoded, confirmed = replace(draft, seq=self.around.wall_ms()), b"", False
        if encoded:
            self.doorkeeper.own = encoded
        lives_s = self.machine.settings.lease_s if encoded else 0.0
        self.feed(ev.RecordPublished(record, lives_s, confirmed))

    def _draft(self, effect: do.PublishRecord) -> SeatRecord:
        """What discovery signs: without seq, expires and addresses."""
        tokens_per_s, loss = (value if math.isfinite(value) else 0.0 for value in self.around.progress())
        return SeatRecord(
            run=self.machine.settings.run,
            seat=effect.seat,
            peer=self.machine.peer,
            incarnation=self.machine.incarnation,
            seq=0,
            claim=self.around.wall_ms() if effect.claim is None else effect.claim,
            expires=0,
            state=effect.state,
            outer_step=effect.outer_step,
            data_next=effect.data_next,
            checkpoint_step=effect.checkpoint_step,
            tokens_per_s=tokens_per_s,
            loss=loss,
            version=self.around.version,
            protocol=self.around.protocol,
        )

    async def _announce_checkpoint(self, effect: do.AnnounceCheckpoint) -> None:
        """Not shown on calls: there our own seat counts."""
        step = effect.checkpoint_step
        told = self._draft(do.PublishRecord(effect.seat, SeatState.LEAVING, 0, step, effect.data_next, step))
        async with self._publishing:
            with contextlib.suppress(PeerLost):
                await self.around.discovery.publish(told, carried=False)

    async def _show_record(self, effect: do.ShowRecord) -> None:
        async def show(peer: PeerId) -> None:
            try:
                await self.peers.hello(peer)
            except (PeerLost, RemoteProtocolError, NolocoError):
                return
            self.feed(ev.PeerAnswered(peer))

        await asyncio.gather(*map(show, effect.peers))

    # --- device -----------------------------------------------------------------------------------

    def _forget_all(self) -> None:
        self.micro_batches.forget_all()
        self.exchanges.forget_all()

    async def _run_inner_step(self, effect: do.RunInnerStep) -> None:
        result = await self.device.inner_step(tokens=effect.tokens, position=effect.position)
        self.last_progress_s = self.around.clock()
        self.feed(ev.InnerStepDone(result.gradient_norm, result.applied, result.learning_rate))

    def _leave(self, effect: do.Leave) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(effect)

    # --- what the transport asks (PipelineHandler, ExchangeHandler, StateHandler) --------------------

    def announced(self, caller: PeerId, header: HopHeader) -> str:
        self.hop_rules.check(header)
        return self.hop_rules.refusal(self.doorkeeper.record_of(caller), self.machine.membership.seat)

    def admits(self, header: HopHeader) -> bool:
        return self.machine.admits(header.id, self.around.clock())

    def turned_away(self) -> None:
        if self.machine.flow is not None:
            self.machine.flow.turned_away()

    def receive(self, caller: PeerId, batch: MicroBatch, digest: bytes) -> asyncio.Future[HopAnswer] | None:
        return self.micro_batches.receive(batch, digest)

    def offered(self, peer: PeerId, offer: Offer) -> OfferAnswer:
        ticket = next(self._tickets)
        self.feed(ev.OfferReceived(ticket, offer, peer))
        return self.exchanges.answers.pop(ticket, OfferAnswer.LATER)

    def exchange_opened(self, peer: PeerId, outer_step: int, held_bytes: int, held_id: bytes) -> None:
        self.feed(ev.ExchangeOpened(outer_step, peer, held_bytes, held_id))

    def exchange_message(self, peer: PeerId, message: ExchangeMessage) -> None:
        self.feed(ev.ExchangeMessageReceived(peer, message))

    def tensor_head(self, peer: PeerId, outer_step: int, tensor_id: bytes, head: memoryview) -> None:
        self.spawn(self.exchanges.meet(outer_step, tensor_id, head))

    def tensor_received(self, peer: PeerId, outer_step: int, tensor: memoryview) -> None:
        self.exchanges.partner_tensors[outer_step] = tensor
        self.feed(ev.TensorReceived(outer_step))

    def tensor_damaged(self, peer: PeerId, outer_step: int, reason: str) -> None:
        self.feed(ev.TensorDamaged(outer_step, reason))

    def state_file(self, stage: int | None = None, parts: StateParts = StateParts.WHOLE) -> StateFile | None:
        return self.states.file(stage, parts)

    def promised(self, seat: Seat) -> int:
        return self.machine.membership.roster.data_next(seat)

    def status(self) -> dict[str, Any]:
        around = self.around
        return machine_status(self.machine, around.version, around.protocol, around.discovery.addresses)
