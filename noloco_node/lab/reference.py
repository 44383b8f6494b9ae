"""A whole swarm in one process, computed straight from the equations: what a swarm of nodes must equal bit for bit.

Owns every replica of every stage and the order of all sums. There is no network, no state machine, no exchange
protocol and no clock here: inner steps follow `routing.ordered_ids` as `admit = "ordered"` does, outer steps come
after `inner_steps` of them and pair the replicas as `pairing.partner` draws them. The outer update is written out on
named tensors with `core.outer_update` alone. Must not know nodes or peers. Source: DESIGN sections 2, 3 and 5.

For one number of threads the result is the same to the last bit on every run; set it with `torch.set_num_threads`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from noloco_node.core import outer_update, pairing, routing, schedule
from noloco_node.core.outer_update import Coefficients
from noloco_node.core.types import MicroBatchId, Seat
from noloco_node.ports import MicroBatch, TensorBlob
from noloco_node.training.settings import TrainerPlace, TrainingSettings
from noloco_node.training.stage import count_tokens
from noloco_node.training.tensors import to_tensor
from noloco_node.training.trainer import StageTrainer, build_trainer

NamedTensors = dict[str, Tensor]
Sent = dict[str, tuple[Tensor, ...]]
"""By parameter name: x, or phi and Delta."""


@dataclass(slots=True)
class ReferenceSeat:
    """One replica: theta in `trainer`, phi and delta beside it, all by parameter name. `losses` are means per token,
    one for each inner step. `is_apart`: mode prefetch, phi and Delta travel apart."""

    trainer: StageTrainer
    slow: NamedTensors
    momentum: NamedTensors
    losses: list[float] = field(default_factory=list)
    is_apart: bool = False

    @property
    def fast(self) -> NamedTensors:
        return {name: parameter.detach() for name, parameter in self.trainer.stage.named_parameters()}

    @torch.no_grad()
    def step_locally(self, c: Coefficients) -> Sent:
        """The boundary: x as it was before, then eq. 2 and 3 for this replica alone. Returns x, or phi and Delta."""
        frozen: Sent = {}
        for name, theta in self.fast.items():
            outer_gradient = theta - self.slow[name]
            x = outer_update.exchanged(outer_gradient, self.slow[name], c)
            frozen[name] = (self.slow[name], outer_gradient) if self.is_apart else (x,)
            stepped = outer_update.local_step(self.momentum[name], outer_gradient, self.slow[name], c)
            self.momentum[name], self.slow[name] = stepped
            theta.copy_(self.slow[name])
        return frozen

    @torch.no_grad()
    def correct(self, own: Sent, partner: Sent, c: Coefficients) -> None:
        """What the partner's x adds to delta, phi and theta."""
        for name, theta in self.fast.items():
            halves = [outer_update.correction(a, b, c) for a, b in zip(own[name], partner[name], strict=True)]
            half_difference = outer_update.prefetched_correction(*halves, c) if self.is_apart else halves[0]
            self.momentum[name] = outer_update.add(self.momentum[name], half_difference)
            self.slow[name] = outer_update.add(self.slow[name], half_difference)
            theta.copy_(outer_update.add(theta, half_difference))


@dataclass(slots=True)
class Passage:
    """The micro-batches of one inner step between two stages: what goes forward, what comes back, and the losses."""

    batches: dict[MicroBatchId, MicroBatch] = field(default_factory=dict)
    gradients: dict[MicroBatchId, TensorBlob] = field(default_factory=dict)
    losses: dict[MicroBatchId, float] = field(default_factory=dict)


@dataclass(slots=True)
class ReferenceSwarm:
    """All seats of a run. Make it with `build_reference`, then call `run_outer_step` with k = 0, 1, 2, ..."""

    settings: TrainingSettings
    seats: dict[Seat, ReferenceSeat]

    def run_outer_step(self, outer_step: int) -> None:
        """H inner steps of every replica, then the boundary and the corrections of all pairs."""
        for inner_step in range(self.settings.inner_steps):
            self.run_inner_step(outer_step, inner_step)
        c = Coefficients(self.settings.alpha, self.settings.beta, self.settings.gamma)
        frozen = {seat: replica.step_locally(c) for seat, replica in self.seats.items()}
        for seat, replica in self.seats.items():
            partner = self.partner(seat, outer_step)
            if partner is not None:
                replica.correct(frozen[seat], frozen[partner], c)

    def run_inner_step(self, outer_step: int, inner_step: int) -> None:
        """M micro-batches of every origin along their paths and back, then one AdamW step of every replica."""
        s = self.settings
        step = outer_step * s.inner_steps + inner_step
        passage = self._draw(step)
        for stage in range(s.num_stages):
            self._forward(stage, step, passage)
        for stage in reversed(range(s.num_stages - 1)):
            self._backward(stage, step, passage)
        for seat in self.seats:
            self._step(seat, self._ids(seat, step), passage, schedule.position(outer_step, inner_step, s.inner_steps))

    def partner(self, seat: Seat, outer_step: int) -> Seat | None:
        s = self.settings
        drawn = pairing.partner(s.seed, seat.stage, outer_step, s.num_replicas, seat.replica)
        return None if drawn is None else Seat(seat.stage, drawn)

    # --- one inner step ---------------------------------------------------------------------------

    def _draw(self, step: int) -> Passage:
        """Every origin's own micro-batches of the step."""
        ids = [(seat, micro_batch) for seat in self._stage(0) for micro_batch in self._ids(seat, step)]
        return Passage({micro_batch: self.seats[seat].trainer.draw(micro_batch.n) for seat, micro_batch in ids})

    def _forward(self, stage: int, step: int, passage: Passage) -> None:
        """`batches` hold the inputs of this stage, then those of the next; the last stage goes backward as well."""
        for seat in self._stage(stage):
            for micro_batch in self._ids(seat, step):
                batch = passage.batches[micro_batch]
                result = self.seats[seat].trainer.forward(self._call(micro_batch), batch, count=True)
                if result.activation is not None:
                    passage.batches[micro_batch] = replace(batch, inputs=result.activation)
                if result.loss_sum is not None:
                    passage.losses[micro_batch] = result.loss_sum
                if result.gradient is not None:
                    passage.gradients[micro_batch] = result.gradient

    def _backward(self, stage: int, step: int, passage: Passage) -> None:
        """`gradients` by this stage's output become those by its input; its own add up in the order of the ids."""
        for seat in self._stage(stage):
            for micro_batch in self._ids(seat, step):
                gradient, call = passage.gradients[micro_batch], self._call(micro_batch)
                pulled = self.seats[seat].trainer.backward(call, gradient, count=True, recompute=False)
                if pulled is not None:
                    passage.gradients[micro_batch] = pulled

    def _step(self, seat: Seat, ids: tuple[MicroBatchId, ...], passage: Passage, position: int) -> None:
        replica, tokens, loss_sum = self.seats[seat], 0, 0.0
        for micro_batch in ids:
            tokens += _tokens(passage.batches[micro_batch])
            loss_sum += passage.losses[micro_batch]
            replica.trainer.forget(self._call(micro_batch))
        replica.trainer.inner_step(tokens=tokens, position=position)
        replica.losses.append(loss_sum / tokens)

    def _stage(self, stage: int) -> Iterator[Seat]:
        return (seat for seat in self.seats if seat.stage == stage)

    def _ids(self, seat: Seat, step: int) -> tuple[MicroBatchId, ...]:
        s = self.settings
        return routing.ordered_ids(s.seed, seat.stage, step, seat.replica, s.micro_batches, s.num_replicas)

    def _call(self, micro_batch: MicroBatchId) -> int:
        return micro_batch.n * self.settings.num_replicas + micro_batch.origin


def build_reference(settings: TrainingSettings, device: str = "cpu") -> ReferenceSwarm:
    """Every seat with its weights drawn from the run seed, phi = theta, delta = 0."""
    places = [Seat(s, r) for s in range(settings.num_stages) for r in range(settings.num_replicas)]
    return ReferenceSwarm(settings, {seat: _build_seat(settings, seat, device) for seat in places})


def _build_seat(settings: TrainingSettings, seat: Seat, device: str) -> ReferenceSeat:
    trainer = build_trainer(settings, TrainerPlace(seat, device, checkpoint_dir=Path()))
    trainer.initialise()
    weights = {name: p.detach() for name, p in trainer.stage.named_parameters()}
    slow = {name: theta.clone() for name, theta in weights.items()}
    momentum = {name: torch.zeros_like(theta) for name, theta in weights.items()}
    return ReferenceSeat(trainer, slow, momentum, is_apart=settings.prefetch)


def _tokens(batch: MicroBatch) -> int:
    return count_tokens(to_tensor(batch.labels, torch.device("cpu")))
