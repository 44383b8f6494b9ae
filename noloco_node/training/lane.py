"""The training thread: the `Trainer` port over a `StageTrainer`.

Owns four threads: the one that owns the device (jobs in call order), the one that reads data, the one that writes
checkpoints, and the one that encodes and decodes what is exchanged, so that training goes on meanwhile. Decides
nothing. Must not know what the jobs are for.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from noloco_node.errors import LocalProtocolError, RemoteProtocolError, TensorReleased
from noloco_node.ports import Boundary, ForwardResult, LoadedState, MicroBatch, StepResult, TensorBlob, Verdict
from noloco_node.training.device import memory_guard
from noloco_node.training.drawn_mark import DrawnMark
from noloco_node.training.outer_state import Tensors
from noloco_node.training.settings import TrainerPlace, TrainingSettings
from noloco_node.training.trainer import StageTrainer, build_trainer

R = TypeVar("R")
USUAL_THREADS = torch.get_num_threads()  # before anybody sets another number


class TrainingLane:
    """Implements `ports.Trainer`. The stage is built by `prepare`, or by the first initialise or load."""

    def __init__(self, settings: TrainingSettings, place: TrainerPlace) -> None:
        self._settings = settings
        self._place = place
        self._drawn = DrawnMark(place.checkpoint_dir)
        self._trainer: StageTrainer | None = None
        self._is_closing = False
        self._jobs = itertools.count(1)
        self.job: int | None = None  # under way on the device
        self._device = ThreadPoolExecutor(1, "noloco-train", self._set_threads)
        self._reader = ThreadPoolExecutor(1, "noloco-read")
        self._writer = ThreadPoolExecutor(1, "noloco-save")
        self._exchanger = ThreadPoolExecutor(1, "noloco-exchange", torch.set_num_threads, (1,))
        self._met: dict[int, asyncio.Event] = {}  # by outer step: what follows our tensor's known bytes can be made
        self._awaited: dict[int, bytes] = {}  # by outer step: the partner's tensor whose head is to be met

    @property
    def tensor_bytes(self) -> int:
        return self._built().tensor_bytes

    @property
    def shape_hash(self) -> str:
        return self._built().shape_hash

    async def prepare(self) -> None:
        """Build the stage without weights. Raises BadModel, BadData, DeviceFailed."""
        await self._run(self._build)

    async def initialise(self) -> LoadedState:
        return await self._run(lambda: self._build().initialise())

    async def load_checkpoint(self) -> LoadedState:
        return await self._run(self._load_checkpoint)

    def _load_checkpoint(self) -> LoadedState:
        """Counts what was drawn beyond it before a crash: it is drawn again."""
        state = self._build().load_checkpoint()
        drawn_again = max(0, self._drawn.read() - state.data_next) if self._place.seat.stage == 0 else 0
        self._drawn.write(state.data_next)
        return replace(state, drawn_again=drawn_again)

    async def load_state_file(self, path: Path) -> LoadedState:
        return await self._run(lambda: self._build().load_state_file(path))

    async def draw(self, n: int) -> MicroBatch:
        return await asyncio.get_running_loop().run_in_executor(self._reader, self._draw, n)

    def _draw(self, n: int) -> MicroBatch:
        batch = self._built().draw(n)
        self._drawn.write(n + 1)
        return batch

    async def forward(self, call: int, batch: MicroBatch, *, count: bool) -> ForwardResult:
        return await self._run(partial(self._built().forward, call, batch, count=count))

    async def backward(self, call: int, gradient: TensorBlob, *, count: bool, recompute: bool) -> TensorBlob | None:
        return await self._run(partial(self._built().backward, call, gradient, count=count, recompute=recompute))

    async def drop_graph(self, call: int) -> None:
        await self._run(partial(self._built().drop_graph, call))

    async def forget(self, call: int) -> None:
        await self._run(partial(self._built().forget, call))

    async def inner_step(self, *, tokens: int, position: int) -> StepResult:
        return await self._run(partial(self._built().inner_step, tokens=tokens, position=position))

    async def freeze_slow_weights(self, outer_step: int) -> Boundary:
        self._met[outer_step] = asyncio.Event()
        return await self._run(partial(self._built().freeze_slow_weights, outer_step))

    async def take_boundary(self, outer_step: int) -> Boundary:
        boundary = await self._run(partial(self._built().take_boundary, outer_step))
        if not self._settings.prefetch or outer_step not in self._met:
            self._met[outer_step] = asyncio.Event()
        if self._settings.prefetch or not boundary.head_bytes:
            self._met[outer_step].set()
        return boundary

    def source(self, outer_step: int) -> LaneSource:
        return LaneSource(self, outer_step, self._built().outer.tensor(outer_step))

    def await_head(self, outer_step: int, tensor_id: bytes) -> None:
        if outer_step not in self._met:
            return
        tensor = self._built().outer.tensor(outer_step)
        if tensor.head_bytes:
            self._awaited[outer_step] = tensor_id
        if tensor.needs_head:
            self._met[outer_step].clear()

    async def meet(self, outer_step: int, tensor_id: bytes, head: memoryview) -> None:
        if self._awaited.get(outer_step) != tensor_id:
            return
        try:
            tensor = self._built().outer.tensor(outer_step)
            await self.beside(partial(tensor.meet, head))
        except (RemoteProtocolError, TensorReleased) as fault:
            if isinstance(fault, RemoteProtocolError) and self._awaited.get(outer_step) == tensor_id:
                raise
            return
        if tensor.needs_head and self._awaited.get(outer_step) == tensor_id:
            self._met[outer_step].set()

    async def can_encode(self, outer_step: int) -> None:
        """Waits until the partner's head is met, in mode prefetch until the boundary. Raises TensorReleased."""
        met = self._met.get(outer_step)
        if met is None:
            raise TensorReleased(f"outer step {outer_step}")
        await met.wait()

    async def verify(self, outer_step: int, tensor: memoryview) -> Verdict:
        return await self.beside(partial(self._built().verify, outer_step, tensor))

    async def add_correction(self, outer_step: int) -> None:
        await self._run(partial(self._built().add_correction, outer_step))

    async def drop_correction(self, outer_step: int) -> None:
        await self._run(partial(self._built().drop_correction, outer_step))

    async def release_exchange(self, outer_step: int) -> None:
        self._met.pop(outer_step, None)
        self._awaited.pop(outer_step, None)
        await self._run(partial(self._built().release_exchange, outer_step))

    async def save_checkpoint(
        self, *, outer_step: int, inner_step: int, data_next: int, notes: dict[str, Any]
    ) -> Awaitable[Path]:
        """Returns when the state is copied (FloatingPointError: not finite); the result ends when it is on disk."""
        write = await self._run(
            partial(
                self._built().save_checkpoint,
                outer_step=outer_step,
                inner_step=inner_step,
                data_next=data_next,
                notes=notes,
            )
        )
        return asyncio.get_running_loop().run_in_executor(self._writer, write)

    async def close(self) -> None:
        """End the threads after the jobs at hand; a read is cut short, files under way are finished."""
        self._is_closing = True
        if self._trainer is not None:
            self._trainer.cancel_reading()
        await self._run(self._forget_all)
        if self._trainer is not None:
            await asyncio.get_running_loop().run_in_executor(self._reader, self._trainer.close_reader)
        for threads in (self._device, self._reader, self._writer, self._exchanger):
            await asyncio.to_thread(threads.shutdown, cancel_futures=threads is not self._writer)

    async def beside(self, job: Callable[[], R]) -> R:
        """Run it on the thread of the exchange. Raises DeviceFailed when there is no memory for it."""

        def guarded() -> R:
            with memory_guard():
                return job()

        return await asyncio.get_running_loop().run_in_executor(self._exchanger, guarded)

    async def _run(self, job: Callable[[], R]) -> R:
        return await asyncio.get_running_loop().run_in_executor(self._device, self._guarded, job)

    def _guarded(self, job: Callable[[], R]) -> R:
        self.job = next(self._jobs)
        try:
            with memory_guard():
                return job()
        finally:
            self.job = None

    def _build(self) -> StageTrainer:
        if self._trainer is None:
            self._trainer = build_trainer(self._settings, self._place)
            if self._is_closing:  # closed meanwhile: its data is not opened any more
                self._trainer.cancel_reading()
        return self._trainer

    def _built(self) -> StageTrainer:
        if self._trainer is None:
            raise LocalProtocolError("the stage is not built yet: initialise or load first")
        return self._trainer

    def _forget_all(self) -> None:
        if self._trainer is not None:
            self._trainer.forget_all()

    def _set_threads(self) -> None:
        """OpenMP keeps the number per thread, so it is set on the thread that computes; that of the exchange has one,
        which torch takes for what every later thread wants."""
        torch.set_num_threads(self._place.threads or USUAL_THREADS)


class LaneSource:
    """`ports.TensorSource` of one outer step: encoded on the exchange's thread as it is asked for."""

    def __init__(self, lane: TrainingLane, outer_step: int, tensor: Tensors) -> None:
        self._lane = lane
        self._outer_step = outer_step
        self._tensor = tensor
        self.size_bytes = tensor.size_bytes

    async def read(self, start: int, stop: int) -> memoryview:
        if start >= self._tensor.known_bytes:
            await self._lane.can_encode(self._outer_step)
        return await self._lane.beside(partial(self._tensor.read, start, stop))
