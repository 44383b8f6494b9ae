"""Tokens/s of a pipeline of real nodes against one process with the unsplit model, and against forward-recompute.

    python benchmarks/pipeline_bench.py [--quick] [--stages S...] [--runs N] [--steps K] [--json FILE]

One replica of each stage, one torch thread a node, loopback, the schedule of a node as it is (1F1B). Contenders take
turns, A B A B:

- `swarm`: the nodes as they come.
- `recompute`: the same nodes with `--activation-checkpointing`: each keeps only the inputs of its layers and computes
  the forward a second time before the backward, as the authors' pipeline does for each micro-batch.
- `unsplit`: `plain_training.py` with every thread count up to the number of cores; the best one counts.

Where there are more stages than cores, the stages share them; the unsplit model has all of them too. Tokens/s are the
median over all inner steps after the warm-up, from the end of one to the end of the next in the first node's history:
bubble, hops and optimizer are counted in.
`bubble` is what the schedule alone costs when every stage has a core, (S - 1) / (M + S - 1) for M micro-batches;
`busy_share` is the share of the time in which a node's device had a job, of the busiest and the idlest stage. Where
stages share cores a job waits for the core as well, so the shares add up to more than the cores can do.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from link import stops_as_exits
from metrics_page import fetch_page, jobs_s
from plain_training import run_apart
from rows import Row, tell

from noloco_node.cli.demo_report import Histories
from noloco_node.cli.local_swarm import LocalSwarm, wait_for_end
from noloco_node.config.presets import preset
from noloco_node.config.run_spec import RunSpec
from noloco_node.config.spec_file import dump
from noloco_node.core.types import Seat

STAGES, RUNS, STEPS = (2, 4), 3, 4
QUICK_STAGES, QUICK_RUNS, QUICK_STEPS = (2,), 1, 2
WARM_UP_STEPS = 1
MODEL = {"hidden_size": 384, "intermediate_size": 1024, "num_attention_heads": 6, "num_key_value_heads": 6}
LAYERS, MICRO_BATCHES, QUICK_MICRO_BATCHES = 8, 16, 8
BATCH = {"sequence_length": 128, "micro_batch_size": 2}
POLL_S = 1.0


@dataclass(slots=True)
class Found:
    """One contender: tokens/s of each inner step of all its runs; `busy`: of each run, the share of the busiest and of
    the idlest stage."""

    tokens_per_s: list[float] = field(default_factory=list)
    busy: list[tuple[float, float]] = field(default_factory=list)


def spec_of(stages: int, steps: int, micro_batches: int) -> RunSpec:
    return preset(
        "tiny",
        swarm={"name": "bench", "num_stages": stages, "num_replicas": 1},
        model={"num_hidden_layers": LAYERS, "max_position_embeddings": BATCH["sequence_length"], **MODEL},
        batch={**BATCH, "micro_batches": micro_batches},
        inner={"total_steps": 1_000_000},
        outer={"inner_steps": WARM_UP_STEPS + steps, "total_outer_steps": 1, "start_seats": stages},
        timing={"late_s": 300.0},
    )


class JobClock:
    """Seconds that each node's device had a job, read from its /metrics while the swarm runs."""

    def __init__(self, swarm: LocalSwarm) -> None:
        self._swarm = swarm
        self._readings: dict[Seat, list[tuple[float, float]]] = {}

    def read(self, statuses: object) -> None:
        """Once the first inner step is over, while the last is not."""
        for node in self._swarm.running:
            if node.status.get("inner_step", 0) < WARM_UP_STEPS or "url" not in node.info:
                continue
            try:
                reading = (time.monotonic(), jobs_s(fetch_page(node.info["url"])))
            except OSError:
                continue
            self._readings.setdefault(node.seat, []).append(reading)

    def shares(self) -> tuple[float, float]:
        """The busiest stage's and the idlest one's."""
        spans = [(found[0], found[-1]) for found in self._readings.values() if len(found) > 1]
        shares = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in spans]
        return max(shares, default=0.0), min(shares, default=0.0)


def run_swarm(spec: RunSpec, recompute: bool, found: Found, kind: type[LocalSwarm] = LocalSwarm) -> None:
    seats = [Seat(stage, 0) for stage in range(spec.swarm.num_stages)]
    flags = ("--activation-checkpointing",) if recompute else ()
    with tempfile.TemporaryDirectory(prefix="nb", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / "swarm.toml").write_text(dump(spec))
        with kind(folder / "swarm.toml", folder, seats, extra_flags=flags, temporary=folder) as swarm:
            swarm.start()
            clock = JobClock(swarm)
            wait_for_end(swarm, clock.read, POLL_S)
            lines = Histories.read([(seats[0], swarm.folder_of(seats[0]))], spec.run_id).of_kind("inner")[seats[0]]
    found.tokens_per_s += rates_of(lines)
    found.busy.append(clock.shares())


def rates_of(lines: list[Row]) -> list[float]:
    """Tokens/s of each inner step after the warm-up, counted from the end of the one before."""
    steps = pairwise(lines[WARM_UP_STEPS - 1 :])
    return [after["tokens"] / (after["unix_s"] - before["unix_s"]) for before, after in steps]


def run_unsplit(spec: RunSpec, threads: int, steps: int) -> list[float]:
    with tempfile.TemporaryDirectory(prefix="nb") as name:
        spec_file = Path(name) / "swarm.toml"
        spec_file.write_text(dump(spec))
        return run_apart(spec_file, threads, steps)


def measure(stages: Iterable[int], runs: int, steps: int, micro_batches: int) -> list[Row]:
    specs = {count: spec_of(count, steps, micro_batches) for count in stages}
    threads = range(1, len(os.sched_getaffinity(0)) + 1)
    unsplit = {count: Found() for count in threads}
    swarms = {(count, recompute): Found() for count in specs for recompute in (False, True)}
    for _ in range(runs):
        for count, found in unsplit.items():
            found.tokens_per_s += run_unsplit(spec_of(1, steps, micro_batches), count, steps)
        for (count, recompute), found in swarms.items():
            run_swarm(specs[count], recompute, found)
    return rows_of(unsplit, swarms, micro_batches)


def rows_of(unsplit: dict[int, Found], swarms: dict[tuple[int, bool], Found], micro_batches: int) -> list[Row]:
    best = max(statistics.median(found.tokens_per_s) for found in unsplit.values())
    rows = [_row(1, f"unsplit, {threads} threads", found, best) for threads, found in unsplit.items()]
    for (stages, recompute), found in swarms.items():
        row = _row(stages, "recompute" if recompute else "swarm", found, best)
        again = statistics.median(swarms[stages, True].tokens_per_s)
        row["ratio_to_recompute"] = round(statistics.median(found.tokens_per_s) / again, 3)
        row["bubble"] = round((stages - 1) / (micro_batches + stages - 1), 3)
        row["busy_share_max"], row["busy_share_min"] = (
            round(statistics.median(x), 3) for x in zip(*found.busy, strict=True)
        )
        rows.append(row)
    return rows


def _row(stages: int, contender: str, found: Found, best: float) -> Row:
    middle = statistics.median(found.tokens_per_s)
    return {
        "stages": stages,
        "contender": contender,
        "tokens_per_s": round(middle, 1),
        "ratio_to_unsplit": round(middle / best, 3),
        "ratio_to_recompute": None,
        "runs": [round(value, 1) for value in found.tokens_per_s],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two stages, one short run: within 90 s")
    parser.add_argument("--stages", type=int, nargs="+")
    parser.add_argument("--runs", type=int)
    parser.add_argument("--steps", type=int, help="inner steps measured in each run")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    quick = options.quick
    with stops_as_exits():
        rows = measure(
            options.stages or (QUICK_STAGES if quick else STAGES),
            options.runs or (QUICK_RUNS if quick else RUNS),
            options.steps or (QUICK_STEPS if quick else STEPS),
            QUICK_MICRO_BATCHES if quick else MICRO_BATCHES,
        )
    told: list[Row] = []
    for row in rows:
        tell(told, row, options.json)


if __name__ == "__main__":
    main()
