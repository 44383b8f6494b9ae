"""One replica's training, synchronous and without threads: the device part of a seat.

Owns the stage's weights, optimizer, outer state, open micro-batches and data reader, and puts them together. The node
runs it on its training thread (`lane.TrainingLane`); the in-process reference of `lab` calls it directly. For one
number of threads the same calls give the same bits. Must not know peers, partners or when a step is due.
"""

from __future__ import annotations

import logging
import platform
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from noloco_node import __version__
from noloco_node.core import limits
from noloco_node.core.outer_update import Coefficients
from noloco_node.core.types import Seat
from noloco_node.errors import BadCheckpoint, LocalProtocolError, NolocoError
from noloco_node.ports import Boundary, ForwardResult, LoadedState, MicroBatch, StepResult, TensorBlob, Verdict
from noloco_node.training import checkpoint
from noloco_node.training.architecture import model_config
from noloco_node.training.device import resolve_device
from noloco_node.training.graphs import MicroBatchGraphs
from noloco_node.training.initialisation import draw_weights
from noloco_node.training.optimizer import InnerOptimizer
from noloco_node.training.outer_state import ExchangeWay, OuterState
from noloco_node.training.reader import MicroBatchReader, build_reader
from noloco_node.training.settings import TrainerPlace, TrainingSettings
from noloco_node.training.stage import Stage, cut_stage

NamedTensors = dict[str, Tensor]
log = logging.getLogger(__name__)

# What reading a file that a stranger wrote may end in.
UNUSABLE = (NolocoError, ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


class StageTrainer:
    """The parts of one seat. Make it with `build_trainer`; then exactly one of initialise, load_checkpoint,
    load_state_file before anything else (load_state_file may come again)."""

    def __init__(
        self,
        settings: TrainingSettings,
        place: TrainerPlace,
        stage: Stage,
        optimizer: InnerOptimizer,
        outer: OuterState,
        graphs: MicroBatchGraphs,
        reader: MicroBatchReader | None,
    ) -> None:
        self._settings = settings
        self._place = place
        self.stage = stage
        self.optimizer = optimizer
        self.outer = outer
        self.reader = reader
        self._graphs = graphs

    @property
    def tensor_bytes(self) -> int:
        return self.outer.tensor_bytes

    @property
    def shape_hash(self) -> str:
        return self.outer.shape_hash

    # --- state ------------------------------------------------------------------------------------

    def initialise(self) -> LoadedState:
        """Draw the weights from the run seed; momentum and moments are zero. Raises BadData when there is none."""
        draw_weights(self.stage, self._settings.seed)
        self._begin_anew()
        if self.reader is not None:
            self.reader.open()
        return LoadedState(0, 0, 0)

    def load_checkpoint(self) -> LoadedState:
        """The newest usable checkpoint in the seat's folder; damaged ones are put aside and said. Raises
        BadCheckpoint when none is left, WrongRun."""
        meta, tensors = self._newest_usable()
        self._begin_anew()
        _copy(tensors["fast"], dict(self.stage.named_parameters()))
        _copy(tensors["slow"], self.outer.slow_weights())
        _copy(tensors["momentum"], self.outer.momentum())
        self.optimizer.load_moments({name: tensors[name] for name in ("exp_avg", "exp_avg_sq")}, meta.adam_steps)
        return LoadedState(meta.outer_step, meta.inner_step, self._resume_reader(meta), meta.notes)

    def load_state_file(self, path: Path) -> LoadedState:
        """Slow weights and momentum of another replica of the stage; the fast weights become the slow ones.

        The file is a stranger's: nothing of it is used before all of it was looked at, and where it stood in the data
        is not heard at all: `data_next` is 0; the notes are handed on as they are, hearsay. Adam starts afresh, unless
        the node is set to take the donor's moments. Raises BadCheckpoint, whatever is wrong.
        """
        parts = checkpoint.GIVEN[self._place.fetched_parts]
        try:
            meta, tensors = self._read(path, parts)
            self._check_donated(meta, tensors)
        except UNUSABLE as error:
            raise BadCheckpoint(f"the donor's state cannot be used: {error}") from error
        _copy(tensors["slow"], dict(self.stage.named_parameters()))
        self._begin_anew()
        _copy(tensors["momentum"], self.outer.momentum())
        if "exp_avg" in tensors:
            self.optimizer.load_moments({name: tensors[name] for name in checkpoint.MOMENT_PARTS}, meta.adam_steps)
        return LoadedState(meta.outer_step, 0, 0, meta.notes)

    def save_checkpoint(
        self, *, outer_step: int, inner_step: int, data_next: int, notes: dict[str, Any]
    ) -> Callable[[], Path]:
        """Copy the state to host memory. The function it returns writes it, on any thread, and may raise DiskFailed.

        Raises FloatingPointError when the state is not finite: such a state is never kept.
        """
        tensors = {part: _host_copies(named) for part, named in self._state().items()}
        if not checkpoint.is_finite(tensors):
            raise FloatingPointError("the state is not finite; no checkpoint is kept of it")
        meta = self._meta(outer_step, inner_step, data_next, notes)
        return lambda: checkpoint.save(self._place.checkpoint_dir, meta, tensors)

    # --- micro-batches ----------------------------------------------------------------------------

    def draw(self, n: int) -> MicroBatch:
        """Micro-batch `n` of the seat's own data. Its `position` is 0: the sender sets it. Raises BadData."""
        if self.reader is None:
            raise LocalProtocolError("only stage 0 reads data")
        return self.reader.read(n)

    def forward(self, call: int, batch: MicroBatch, *, count: bool) -> ForwardResult:
        return self._graphs.forward(call, batch, count=count)

    def backward(self, call: int, gradient: TensorBlob, *, count: bool, recompute: bool) -> TensorBlob | None:
        return self._graphs.backward(call, gradient, count=count, recompute=recompute)

    def drop_graph(self, call: int) -> None:
        self._graphs.drop_graph(call)

    def forget(self, call: int) -> None:
        self._graphs.forget(call)

    # --- steps ------------------------------------------------------------------------------------

    def inner_step(self, *, tokens: int, position: int) -> StepResult:
        """Sums that hold what was not counted are not stepped on: `applied` False, the norm is not finite."""
        if self._graphs.take_spoilt():
            return self.optimizer.skip(position=position)
        return self.optimizer.step(tokens=tokens, position=position)

    def freeze_slow_weights(self, outer_step: int) -> Boundary:
        return self.outer.freeze_slow_weights(outer_step)

    def take_boundary(self, outer_step: int) -> Boundary:
        return self.outer.take_boundary(outer_step)

    def verify(self, outer_step: int, tensor: memoryview) -> Verdict:
        return self.outer.verify(outer_step, tensor)

    def add_correction(self, outer_step: int) -> None:
        self.outer.add_correction(outer_step)

    def drop_correction(self, outer_step: int) -> None:
        self.outer.drop_correction(outer_step)

    def release_exchange(self, outer_step: int) -> None:
        self.outer.release(outer_step)

    def cancel_reading(self) -> None:
        """End a read under way soon. From any thread; waits for nothing."""
        if self.reader is not None:
            self.reader.cancel()

    def close_reader(self) -> None:
        """On the thread that reads, if there is one: it may have to wait for a read."""
        if self.reader is not None:
            self.reader.close()

    def forget_all(self) -> None:
        self._graphs.forget_all()

    def close(self) -> None:
        """All of it, where everything runs on one thread."""
        self.forget_all()
        self.close_reader()

    # --- parts ------------------------------------------------------------------------------------

    def _begin_anew(self) -> None:
        """phi <- theta; momentum, moments, gradients, open micro-batches and exchanges are void."""
        self.outer.start()
        self.outer.forget_exchanges()
        self.optimizer.reset()
        self._graphs.forget_all()

    def _newest_usable(self) -> tuple[checkpoint.Meta, dict[str, NamedTensors]]:
        folder, why = self._place.checkpoint_dir, ""
        for path in checkpoint.by_age(folder):
            try:
                return self._read(path)
            except BadCheckpoint as error:
                why = f": {error.cause}"
                log.warning("%s; kept as %s", error.cause, checkpoint.set_aside(path).name)
        raise BadCheckpoint(f"no complete checkpoint in {folder}{why}")

    def _read(
        self, path: Path, parts: tuple[str, ...] = checkpoint.PARTS
    ) -> tuple[checkpoint.Meta, dict[str, NamedTensors]]:
        return checkpoint.load(path, run=self._settings.run, shape_hash=self.shape_hash, parts=parts)

    def _check_donated(self, meta: checkpoint.Meta, tensors: dict[str, NamedTensors]) -> None:
        """The header's own words about the shape prove nothing; only the tensors do. Raises BadCheckpoint."""
        if not _is_count(meta.outer_step):
            raise BadCheckpoint("its outer step is no possible number")
        if not _is_count(meta.adam_steps):
            raise BadCheckpoint("its count of optimizer steps is no possible number")
        wanted = {name: (tensor.shape, torch.float32) for name, tensor in self.outer.momentum().items()}
        for part in tensors:
            if part in checkpoint.MOMENT_PARTS and not tensors[part] and meta.adam_steps == 0:
                continue  # saved before the first optimizer step
            if {name: (tensor.shape, tensor.dtype) for name, tensor in tensors[part].items()} != wanted:
                raise BadCheckpoint(f"its {part} tensors are not those of this stage")
        if not checkpoint.is_finite(tensors):
            raise BadCheckpoint("it is not finite")
        if any(bool((tensor < 0).any()) for tensor in tensors.get("exp_avg_sq", {}).values()):
            raise BadCheckpoint("its second moments are below zero")

    def _resume_reader(self, meta: checkpoint.Meta) -> int:
        """Go on in the data where our own `meta` stopped, if it is this very seat's; returns data_next."""
        if meta.place != self._place.seat:
            return 0
        if self.reader is not None and meta.reader is not None:
            self.reader.resume(meta.reader)
        return meta.data_next

    def _state(self) -> dict[str, NamedTensors]:
        parts = {
            "fast": dict(sorted(self.stage.named_parameters())),
            "slow": self.outer.slow_weights(),
            "momentum": self.outer.momentum(),
        }
        return parts | self.optimizer.moments()

    def _meta(self, outer_step: int, inner_step: int, data_next: int, notes: dict[str, Any]) -> checkpoint.Meta:
        seat: Seat = self._place.seat
        return checkpoint.Meta(
            run=self._settings.run,
            seat=(seat.stage, seat.replica),
            num_stages=self._settings.num_stages,
            shape_hash=self.shape_hash,
            outer_step=outer_step,
            inner_step=inner_step,
            data_next=data_next,
            adam_steps=self.optimizer.steps,
            reader=None if self.reader is None else self.reader.state(data_next),
            model=self._settings.model,
            tokenizer=asdict(self._settings.tokenizer),
            notes=notes | _versions(),
        )


def build_trainer(settings: TrainingSettings, place: TrainerPlace) -> StageTrainer:
    """Cut the seat's stage and take memory for it. Raises BadModel, BadData, DeviceFailed."""
    device = resolve_device(place.device)
    stage = cut_stage(model_config(settings.model), settings.num_stages, place.seat.stage)
    reader = build_reader(settings, place.seat.replica) if place.seat.stage == 0 else None
    stage.materialise(device)
    stage.keep_inputs_only = place.activation_checkpointing
    if place.compile:
        stage.compile_layers()
    graphs = MicroBatchGraphs(
        stage,
        rows=settings.micro_batch_size,
        tokens=settings.sequence_length,
        wire_dtype=settings.wire_dtype,
        autocast=settings.autocast,
    )
    way = ExchangeWay(settings.fragments, settings.codec, settings.seed, settings.prefetch)
    outer = OuterState(stage, Coefficients(settings.alpha, settings.beta, settings.gamma), way)
    return StageTrainer(settings, place, stage, InnerOptimizer(stage, settings.optimizer), outer, graphs, reader)


def _is_count(number: object) -> bool:
    return type(number) is int and 0 <= number <= limits.STEPS_MAX


def _versions() -> dict[str, str]:
    return {
        "noloco_node": __version__,
        "torch": str(torch.__version__),
        "transformers": transformers.__version__,
        "python": platform.python_version(),
    }


@torch.no_grad()
def _copy(source: NamedTensors, into: NamedTensors) -> None:
    for name, tensor in into.items():
        tensor.copy_(source[name])


def _host_copies(named: NamedTensors) -> NamedTensors:
    return {name: tensor.detach().to(device="cpu", copy=True).contiguous() for name, tensor in named.items()}
