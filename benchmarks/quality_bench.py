"""What a mode or codec costs in quality: held-out perplexity and spread between replicas, against lossless `joint`.

    python benchmarks/quality_bench.py [--quick] [--runs N] [--replicas N ...] [--steps K] [--only MODE ...]
        [--jobs J] [--json FILE]

A stage of a small byte model, N replicas in one process, the same tokens for everybody: the inner steps are those of
`lab.reference`, the outer steps the product's own (`OuterState`, codecs and fragments included), each correction added
as late as its mode allows: at once in joint, just before the next boundary in overlap and stream. Runs differ by their
seed; ratios are taken seed by seed and then averaged. Two lossless runs whose initial weights differ by one part in a
hundred stand beside them as the yardstick (`joint`, `float32, again`). `spread_ratio`: the root mean square distance
of partners at the last boundaries, against lossless joint.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import statistics
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from noloco_node.config.presets import preset
from noloco_node.lab.reference import ReferenceSwarm, build_reference
from noloco_node.training.evaluation import perplexity
from noloco_node.training.outer_state import OuterState
from noloco_node.training.reader import held_out_rows
from noloco_node.training.settings import TrainingSettings

INNER_STEPS = 24  # between two exchanges of a parameter
HELD_OUT_ROWS = 256
LAST_BOUNDARIES = 0.25  # of a run, over which the spread is averaged
NUDGE = 0.01
YARDSTICK = "joint float32, again"


@dataclass(frozen=True, slots=True)
class Contender:
    """`fragments` above 1: stream. `is_late`: c is added just before the next boundary."""

    name: str
    codec: str = "float32"
    fragments: int = 1
    is_late: bool = False


LOSSLESS = Contender("joint float32")
CONTENDERS = (
    Contender(YARDSTICK),
    Contender("joint int8", "int8"),
    Contender("joint lattice4", "lattice4"),
    Contender("overlap float32", is_late=True),
    Contender("overlap int8", "int8", is_late=True),
    Contender("stream 4 float32", fragments=4, is_late=True),
    Contender("stream 4 int8", "int8", 4, True),
    Contender("stream 4 int4", "int4", 4, True),
    Contender("stream 4 lattice5", "lattice5", 4, True),
    Contender("stream 4 lattice4", "lattice4", 4, True),
)


@dataclass(slots=True)
class Outcome:
    """Of one run."""

    perplexity: float
    spread: float


@dataclass(slots=True)
class Mixing:
    """The outer steps of a reference swarm of one stage, with the trainers' own outer states."""

    swarm: ReferenceSwarm
    is_late: bool
    spreads: list[float] = field(default_factory=list)
    _due: list[tuple[OuterState, int]] = field(default_factory=list)

    def boundary(self, outer_step: int) -> None:
        self.settle()
        states = {seat: replica.trainer.outer for seat, replica in self.swarm.seats.items()}
        for state in states.values():
            state.take_boundary(outer_step)
        for seat, state in states.items():
            partner = self.swarm.partner(seat, outer_step)
            if partner is not None:
                verdict = state.verify(outer_step, _sent(states[partner], state, outer_step))
                if verdict.reason:
                    raise RuntimeError(f"outer step {outer_step} of seat {seat}: {verdict.reason}")
                self.spreads.append(verdict.spread)
                self._due.append((state, outer_step))
        if not self.is_late:
            self.settle()

    def settle(self) -> None:
        """Add what was not added yet."""
        for state, outer_step in self._due:
            state.add_correction(outer_step)
            state.release(outer_step)
        self._due.clear()


def _sent(sender: OuterState, receiver: OuterState, outer_step: int) -> memoryview:
    """The sender's tensor as it travels to that receiver."""
    tensor, theirs = sender.tensor(outer_step), receiver.tensor(outer_step)
    if tensor.head_bytes:
        tensor.meet(theirs.read(0, theirs.head_bytes))
    parts: list[bytes] = []
    start = 0
    while start < tensor.size_bytes:
        parts.append(bytes(tensor.read(start, tensor.size_bytes)))
        start += len(parts[-1])
    return memoryview(b"".join(parts))


def settings_of(contender: Contender, seed: int, replicas: int, steps: int) -> TrainingSettings:
    """A byte model of 0.1M parameters; the schedule counts inner steps, so it is the same for all."""
    spec = preset(
        "tiny",
        swarm={"num_stages": 1, "num_replicas": replicas, "seed": seed},
        model={"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4},
        batch={"sequence_length": 64, "micro_batch_size": 4, "micro_batches": 1},
        inner={"learning_rate": 3e-3, "warmup_steps": 20, "total_steps": steps},
        outer={"inner_steps": INNER_STEPS, "total_outer_steps": max(1, steps // INNER_STEPS)},
    )
    settings = spec.training_settings()
    inner_steps = INNER_STEPS // contender.fragments
    return replace(settings, codec=contender.codec, fragments=contender.fragments, inner_steps=inner_steps)


def run(contender: Contender, seed: int, replicas: int, steps: int) -> Outcome:
    settings = settings_of(contender, seed, replicas, steps)
    swarm = build_reference(settings)
    if contender.name == YARDSTICK:
        _nudge(swarm)
    mixing = Mixing(swarm, contender.is_late)
    for outer_step in range(steps // settings.inner_steps):
        for inner_step in range(settings.inner_steps):
            swarm.run_inner_step(outer_step, inner_step)
        mixing.boundary(outer_step)
    mixing.settle()
    last = mixing.spreads[-max(1, int(LAST_BOUNDARIES * len(mixing.spreads))) :]
    return Outcome(_averaged_perplexity(swarm, settings), math.sqrt(statistics.fmean(s * s for s in last)))


@torch.no_grad()
def _nudge(swarm: ReferenceSwarm) -> None:
    """All replicas alike begin a little elsewhere."""
    for replica in swarm.seats.values():
        draws = torch.Generator().manual_seed(1)
        for parameter in replica.trainer.stage.parameters():
            parameter.mul_(1 + NUDGE * torch.randn(parameter.shape, generator=draws))
        replica.trainer.outer.start()


@torch.no_grad()
def _averaged_perplexity(swarm: ReferenceSwarm, settings: TrainingSettings) -> float:
    """Of the model that `export` would write: the mean of the slow weights."""
    replicas = [replica.trainer for replica in swarm.seats.values()]
    slow = [trainer.outer.slow_weights() for trainer in replicas]
    stage = replicas[0].stage
    for name, parameter in stage.named_parameters():
        parameter.copy_(torch.stack([each[name] for each in slow]).mean(0))
    return perplexity(stage, held_out_rows(settings, HELD_OUT_ROWS)).perplexity


def row_of(contender: Contender, found: Sequence[Outcome], lossless: Sequence[Outcome]) -> dict[str, Any]:
    ratios = [one.perplexity / base.perplexity for one, base in zip(found, lossless, strict=True)]
    spreads = [one.spread / base.spread for one, base in zip(found, lossless, strict=True)]
    error = statistics.stdev(ratios) / math.sqrt(len(ratios)) if len(ratios) > 1 else None
    return {
        "mode": contender.name,
        "perplexity_ratio": round(statistics.fmean(ratios), 5),
        "standard_error": None if error is None else round(error, 5),
        "spread_ratio": round(statistics.fmean(spreads), 4),
        "runs": len(found),
        "perplexities": [round(one.perplexity, 4) for one in found],
    }


def rows(
    contenders: Sequence[Contender], runs: int, replicas: int, steps: int, pool: Executor
) -> Iterator[dict[str, Any]]:
    """One row per contender as soon as its runs are over; all runs of all contenders share the pool."""
    asked = {
        contender: [pool.submit(run, contender, seed, replicas, steps) for seed in range(1, runs + 1)]
        for contender in (LOSSLESS, *contenders)
    }
    lossless = [future.result() for future in asked[LOSSLESS]]
    for contender, futures in asked.items():
        yield row_of(contender, [future.result() for future in futures], lossless)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="within 90 s: one short run each, which proves nothing")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--replicas", type=int, nargs="+", default=[4])
    parser.add_argument("--only", nargs="+", choices=[each.name for each in CONTENDERS], metavar="MODE")
    parser.add_argument("--steps", type=int, default=768, help="inner steps")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs at once, one thread each")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    contenders = [each for each in CONTENDERS if not asked.only or each.name in asked.only]
    runs, steps = (1, 96) if asked.quick else (asked.runs, asked.steps)
    found = []
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(asked.jobs, context, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        for replicas in asked.replicas:
            for row in rows(contenders, runs, replicas, steps, pool):
                found.append(row | {"replicas": replicas, "steps": steps})
                print(json.dumps(found[-1]), flush=True)
    if asked.json is not None:
        asked.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
