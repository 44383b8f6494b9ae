"""The weights of the seat: loaded from the disk, fetched from donors, drawn from the seed; saved, and given away.

Owns the seat's trainer and the newest checkpoint on its way to the disk. Must not know which of the ways is right.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from noloco_node.core import effects as do
from noloco_node.core import events as ev
from noloco_node.core import limits
from noloco_node.core.machine import Machine
from noloco_node.core.types import PeerId, Seat
from noloco_node.driver import closed_step_notes, promise_notes
from noloco_node.driver.host import Host
from noloco_node.errors import BadCheckpoint, PeerLost, RemoteProtocolError
from noloco_node.ports import LoadedState, StateFile, StateParts, Trainer

Excerpt = tuple[bytes, tuple[tuple[int, int], ...]]


@dataclass(frozen=True, slots=True)
class StateShelf:
    """The checkpoints of this node. `newest` names the newest complete one of a seat and its outer step, `seats` those
    that have any, `excerpt` gives head and spans of a file that holds only these parts of it."""

    folder: Path
    newest: Callable[[Seat], tuple[Path, int] | None]
    seats: Callable[[], Sequence[Seat]] = tuple
    excerpt: Callable[[Path, StateParts], Excerpt] = lambda path, parts: (b"", ())
    fetched_parts: StateParts = StateParts.SLOW


class StateLane:
    """Executes the effects about state. `forget_all`: another state is loaded, what was under way is void."""

    def __init__(
        self,
        host: Host,
        machine: Machine,
        shelf: StateShelf,
        make_trainer: Callable[[Seat], Trainer],
        *,
        forget_all: Callable[[], None],
        strike: Callable[[PeerId, str], None],
    ) -> None:
        self._host = host
        self._machine = machine
        self._shelf = shelf
        self._make_trainer = make_trainer
        self._forget_all = forget_all
        self._strike = strike
        self.seat: Seat | None = None
        self._held: Seat | None = None  # by the machine
        self._wanted: Seat | None = None  # the newest load is for it
        self._loads: list[asyncio.Task[None]] = []  # one that runs, and those before it that are ending
        self._closing: list[asyncio.Task[None]] = []  # trainers of seats held before
        self.written: asyncio.Future[Path] | None = None  # the newest checkpoint on its way to the disk

    def executors(self) -> dict[type, Callable[[Any], None]]:
        return {
            do.InitialiseState: self._as_only_load(self._initialise),
            do.LoadCheckpoint: self._as_only_load(self._load_checkpoint),
            do.FetchState: self._as_only_load(self._fetch_state),
            do.SaveCheckpoint: self._host.as_task(self._save_checkpoint),
        }

    @property
    def is_saved(self) -> bool:
        """The last checkpoint begun is on disk, or none was begun."""
        written = self.written
        return written is None or (written.done() and not written.cancelled() and written.exception() is None)

    # --- in ---------------------------------------------------------------------------------------

    def _as_only_load(self, execute: Callable[[Any], Coroutine[Any, Any, None]]) -> Callable[[Any], None]:
        """An executor that gives up what was asked for before: no two loads share a trainer or a file."""

        async def load(effect: Any, before: list[asyncio.Task[None]]) -> None:
            if before:
                await asyncio.wait(before)
            await execute(effect)

        def start(effect: Any) -> None:
            before = self._end_loads()
            self._wanted = effect.seat
            self._loads = [*before, self._host.spawn(load(effect, before))]

        return start

    def follow(self, held: Seat | None) -> None:
        """The machine holds this seat now: a load for the one that it held before ends, nobody waits for it."""
        if held != self._held:
            lost, self._held = self._held, held
            if lost is not None and self._wanted == lost:
                self._end_loads()

    def _end_loads(self) -> list[asyncio.Task[None]]:
        """Those that are not over yet; each leaves no file and no trainer half made."""
        running = [task for task in self._loads if not task.done()]
        for task in running:
            task.cancel()
        return running

    async def _trainer_of(self, seat: Seat) -> Trainer:
        """The seat's trainer, for a state that is loaded anew: what was under way before is forgotten."""
        self._forget_all()
        host = self._host
        if host.trainer is None or self.seat != seat:
            old, host.trainer, self.seat = host.trainer, self._make_trainer(seat), seat
            if old is not None:
                self._closing = [*self._closing, host.spawn(old.close())]
        trainer = host.trainer
        self._closing = [task for task in self._closing if not task.done()]
        if self._closing:
            await asyncio.wait(self._closing)  # a load that is given up here leaves no trainer half closed
        return trainer

    def _loaded(self, seat: Seat, state: LoadedState, source: str, data_next: int | None = None) -> None:
        """Of another's state the promises of the stage's seats are ours to pass on, its closed step is not ours."""
        is_own = source == "checkpoint"
        event = ev.StateLoaded(
            state.outer_step,
            state.inner_step,
            state.data_next if data_next is None else data_next,
            source,
            closed_step_notes.recalled(state.notes) if is_own else None,
            promise_notes.recalled(state.notes),
            state.drawn_again,
            seat,
        )
        self._host.feed(event)

    async def _initialise(self, effect: do.InitialiseState) -> None:
        trainer = await self._trainer_of(effect.seat)
        self._loaded(effect.seat, await trainer.initialise(), "seed")

    async def _load_checkpoint(self, effect: do.LoadCheckpoint) -> None:
        trainer = await self._trainer_of(effect.seat)
        try:
            if effect.of is None:
                self._loaded(effect.seat, await trainer.load_checkpoint(), "checkpoint")
            else:
                state = await trainer.load_state_file(self._path_of(effect.of))
                self._loaded(effect.seat, state, "kept")
        except BadCheckpoint as error:
            self._host.feed(ev.StateUnavailable(error.cause, effect.seat))

    def _path_of(self, seat: Seat) -> Path:
        found = self._shelf.newest(seat)
        if found is None:
            raise BadCheckpoint(f"no complete checkpoint of seat {seat} is left")
        return found[0]

    async def _fetch_state(self, effect: do.FetchState) -> None:
        """One donor after the other: busy, gone or unusable, the next begins anew (an offset belongs to one donor)."""
        trainer = await self._trainer_of(effect.seat)
        path = self._shelf.folder / f"fetched-{effect.seat}.safetensors"
        reason = "no donor"
        await trainer.prepare()  # it tells how large a state of this stage can be
        bytes_max = limits.STATE_TENSORS_MAX * trainer.tensor_bytes + limits.STATE_SMALL_BYTES
        for donor in effect.donors:
            announced = self._checkpoint_step_of(donor, effect.seat)  # as it was when asked: a fetch takes long
            try:
                parts = self._shelf.fetched_parts
                fetched = await self._host.peers.fetch_state(donor, path, effect.seat, parts, bytes_max)
                state = await trainer.load_state_file(path)
                self._check_within_run(state)
                self._check_as_announced(state, announced)
                self._loaded(effect.seat, state, "peer", fetched.data_next)
                return
            except (PeerLost, RemoteProtocolError) as error:  # the transport has struck whom it had to
                reason = str(error)
            except BadCheckpoint as error:
                reason = str(error)
                self._strike(donor, reason)
            finally:
                path.unlink(missing_ok=True)
        self._host.feed(ev.StateUnavailable(reason, effect.seat))

    def _check_within_run(self, state: LoadedState) -> None:
        """A donor cannot be further than the run's last outer step (0: the run has no end). Raises BadCheckpoint."""
        last = self._machine.settings.total_outer_steps
        if 0 < last < state.outer_step:
            raise BadCheckpoint(f"the donor is at outer step {state.outer_step}, the run ends with {last}")

    def _checkpoint_step_of(self, donor: PeerId, seat: Seat) -> int:
        """What the donor's newest record says of its checkpoint of that stage; 0 when none is known."""
        records = self._machine.membership.roster.donors(seat.stage, -math.inf)  # such as ran out, too
        return next((record.checkpoint_step for record in records if record.peer == donor), 0)

    def _check_as_announced(self, state: LoadedState, announced: int) -> None:
        """A donor that says it is further than its file would be asked again and again. Raises BadCheckpoint."""
        if state.outer_step + self._machine.settings.stale_steps_max < announced:
            raise BadCheckpoint(f"the donor's state is of outer step {state.outer_step}, it announced {announced}")

    # --- out --------------------------------------------------------------------------------------

    async def _save_checkpoint(self, effect: do.SaveCheckpoint) -> None:
        notes = closed_step_notes.noted(effect.last) | promise_notes.noted(effect.promised)
        host = self._host
        trainer, seat = host.device, self.seat
        try:
            written = await trainer.save_checkpoint(
                outer_step=effect.outer_step, inner_step=effect.inner_step, data_next=effect.data_next, notes=notes
            )
        except FloatingPointError as error:  # a state that is not finite is never kept
            host.feed(ev.StateCopied())
            host.feed(ev.CheckpointSaved(effect.outer_step, str(error), seat))
            return
        self.written = asyncio.ensure_future(written)
        host.feed(ev.StateCopied())
        await asyncio.shield(self.written)  # the node may leave meanwhile; the file is finished all the same
        if host.trainer is trainer:  # else it is another seat's by now
            host.feed(ev.CheckpointSaved(effect.outer_step, seat=seat))

    def file(self, stage: int | None, parts: StateParts) -> StateFile | None:
        """The newest complete checkpoint of the stage on this disk (None: of the seat at work), or parts of it.

        From any thread: it reads headers.
        """
        here = () if self.seat is None else (self.seat,)
        seats = here if stage is None else {s for s in (*self._shelf.seats(), *here) if s.stage == stage}
        try:
            found = [
                (*newest, seat.stage) for seat in sorted(seats) if (newest := self._shelf.newest(seat)) is not None
            ]
            if not found:
                return None
            path, outer_step, of_stage = max(found, key=lambda newest: newest[1])
            stamp_ns = path.stat().st_mtime_ns
            head, spans = (b"", ()) if parts is StateParts.WHOLE else self._shelf.excerpt(path, parts)
            return StateFile(path, outer_step, head, spans, stamp_ns, of_stage)
        except (BadCheckpoint, OSError):  # it was just replaced by a newer one: who asks again gets that
            return None
