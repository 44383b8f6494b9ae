"""Carries effects out and turns their ends into events. Decides nothing about the algorithm.

Owns the event queue, the timer, the running tasks and the tensors in flight (by call handle). Everything runs on one
event loop; the machine is called synchronously, so an incoming call has its answer when `feed` returns.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import time
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from noloco_node.core import effects as do
from noloco_node.core import events as ev
from noloco_node.core import limits
from noloco_node.core.machine import PUBLISH_WAIT_S, Machine
from noloco_node.core.types import ExchangeMessage, Offer, OfferAnswer, PeerId, Seat, SeatRecord
from noloco_node.driver.barring import departures
from noloco_node.driver.clock import running_s
from noloco_node.driver.closed_step_notes import noted, recalled
from noloco_node.driver.doorkeeper import Doorkeeper
from noloco_node.driver.exchange_lane import ExchangeLane
from noloco_node.driver.hop_rules import HopForm, HopRules
from noloco_node.driver.introductions import Introductions
from noloco_node.driver.micro_batch_lane import MicroBatchLane
from noloco_node.driver.status import machine_status
from noloco_node.errors import BadCheckpoint, IdentityInUse, NolocoError, PeerLost, RemoteProtocolError
from noloco_node.ports import Discovery, HopAnswer, HopHeader, LoadedState, MicroBatch, Observer, PeerNetwork, Trainer

READS_AT_ONCE_MAX = 16


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
        self.last_progress_s = around.clock()
        self._seat: Seat | None = None
        self._events: deque[ev.Event] = deque()
        self._handling = False
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._publishing = asyncio.Lock()
        self._ended: asyncio.Future[do.Leave] | None = None
        self._written: asyncio.Future[Path] | None = None  # the newest checkpoint on its way to the disk
        self._tickets = itertools.count(1)
        self._executors: dict[type, Callable[[Any], None]] = {
            do.ReadSeats: self.as_task(self._read_seats),
            do.PublishRecord: self.as_task(self._publish),
            do.InitialiseState: self.as_task(self._initialise),
            do.LoadCheckpoint: self.as_task(self._load_checkpoint),
            do.FetchState: self.as_task(self._fetch_state),
            do.SaveCheckpoint: self.as_task(self._save_checkpoint),
            do.RunInnerStep: self.as_task(self._run_inner_step),
            do.Leave: self._leave,
            **self.micro_batches.executors(),
            **self.exchanges.executors(),
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
            if self._written is not None:
                await self._written  # what it says about the disk must be heard
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
        written = self._written
        return written is None or (written.done() and not written.cancelled() and written.exception() is None)

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
            wall_ms = self.around.wall_ms()
            tokens_per_s, loss = (value if math.isfinite(value) else 0.0 for value in self.around.progress())
            draft = SeatRecord(
                run=self.machine.settings.run,
                seat=effect.seat,
                peer=self.machine.peer,
                incarnation=self.machine.incarnation,
                seq=0,
                claim=wall_ms if effect.claim is None else effect.claim,
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
            try:
                record, encoded, confirmed = await self.around.discovery.publish(draft)
            except PeerLost:
                record, encoded, confirmed = replace(draft, seq=wall_ms), b"", False
        if encoded:
            self.doorkeeper.own = encoded
        lives_s = self.machine.settings.lease_s if encoded else 0.0
        self.feed(ev.RecordPublished(record, lives_s, confirmed))

    # --- state ------------------------------------------------------------------------------------

    async def _trainer_of(self, seat: Seat) -> Trainer:
        """The seat's trainer, for a state that is loaded anew: what was under way before is forgotten."""
        self.micro_batches.forget_all()
        self.exchanges.forget_all()
        if self.trainer is None or self._seat != seat:
            if self.trainer is not None:
                await self.trainer.close()
            self.trainer, self._seat = self.around.make_trainer(seat), seat
        return self.trainer

    def _loaded(self, state: LoadedState, source: str) -> None:
        last = recalled(state.notes)
        self.feed(ev.StateLoaded(state.outer_step, state.inner_step, state.data_next, source, last))

    async def _initialise(self, effect: do.InitialiseState) -> None:
        trainer = await self._trainer_of(effect.seat)
        self._loaded(await trainer.initialise(), "seed")

    async def _load_checkpoint(self, effect: do.LoadCheckpoint) -> None:
        trainer = await self._trainer_of(effect.seat)
        try:
            self._loaded(await trainer.load_checkpoint(), "checkpoint")
        except BadCheckpoint as error:
            self.feed(ev.StateUnavailable(error.cause))

    async def _fetch_state(self, effect: do.FetchState) -> None:
        trainer = await self._trainer_of(effect.seat)
        path = self.around.state_dir / f"fetched-{effect.seat}.safetensors"
        reason = "no donor"
        for donor in effect.donors:
            try:
                await self.peers.fetch_state(donor, path)
                state = await trainer.load_state_file(path)
                self._check_within_run(state)
                self._loaded(state, "peer")
                return
            except (PeerLost, RemoteProtocolError) as error:  # the transport has struck whom it had to
                reason = str(error)
            except BadCheckpoint as error:
                reason = str(error)
                self.doorkeeper.strike(donor, reason)
            finally:
                path.unlink(missing_ok=True)
        self.feed(ev.StateUnavailable(reason))

    def _check_within_run(self, state: LoadedState) -> None:
        """A donor cannot be further than the run's last outer step (0: the run has no end). Raises BadCheckpoint."""
        last = self.machine.settings.total_outer_steps
        if 0 < last < state.outer_step:
            raise BadCheckpoint(f"the donor is at outer step {state.outer_step}, the run ends with {last}")

    async def _save_checkpoint(self, effect: do.SaveCheckpoint) -> None:
        notes = noted(effect.last)
        trainer = self.device
        try:
            written = await trainer.save_checkpoint(
                outer_step=effect.outer_step, inner_step=effect.inner_step, data_next=effect.data_next, notes=notes
            )
        except FloatingPointError as error:  # a state that is not finite is never kept
            self.feed(ev.StateCopied())
            self.feed(ev.CheckpointSaved(effect.outer_step, str(error)))
            return
        self._written = asyncio.ensure_future(written)
        self.feed(ev.StateCopied())
        await asyncio.shield(self._written)  # the node may leave meanwhile; the file is finished all the same
        if self.trainer is trainer:  # else it is another seat's by now
            self.feed(ev.CheckpointSaved(effect.outer_step))

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

    def admits(self, header: HopHeader, on_the_way: int) -> bool:
        return self.machine.admits(header.id, on_the_way, self.around.clock())

    def receive(self, caller: PeerId, batch: MicroBatch, digest: bytes) -> asyncio.Future[HopAnswer] | None:
        return self.micro_batches.receive(batch, digest)

    def offered(self, peer: PeerId, offer: Offer) -> OfferAnswer:
        ticket = next(self._tickets)
        self.feed(ev.OfferReceived(ticket, offer, peer))
        return self.exchanges.answers.pop(ticket, OfferAnswer.LATER)

    def exchange_opened(self, peer: PeerId, outer_step: int, held_bytes: int, held_digest: bytes) -> None:
        self.feed(ev.ExchangeOpened(outer_step, peer, held_bytes, held_digest))

    def exchange_message(self, peer: PeerId, message: ExchangeMessage) -> None:
        self.feed(ev.ExchangeMessageReceived(peer, message))

    def tensor_received(self, peer: PeerId, outer_step: int, tensor: memoryview) -> None:
        self.exchanges.partner_tensors[outer_step] = tensor
        self.feed(ev.TensorReceived(outer_step))

    def tensor_damaged(self, peer: PeerId, outer_step: int, reason: str) -> None:
        self.feed(ev.TensorDamaged(outer_step, reason))

    def state_file(self) -> tuple[Path, int] | None:
        return None if self._seat is None else self.around.checkpoints(self._seat)

    def status(self) -> dict[str, Any]:
        around = self.around
        return machine_status(self.machine, around.version, around.protocol, around.discovery.addresses)
