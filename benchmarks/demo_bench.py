"""Tokens/s of the demo swarm against one process that trains the unsplit model on the same cores.

    python benchmarks/demo_bench.py [--quick] [--runs N] [--outer-steps K] [--json FILE]

Contenders take turns, A B A B. The rival is `plain_training.py` on the same micro-batches; it is given every thread
count up to the number of cores and its best one counts. The swarm is `noloco-node demo`: real processes, DHT, libp2p
and gRPC; its clock starts when the last node has its weights and stops at the last closed outer step.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from plain_training import run_apart

QUICK_OUTER_STEPS, OUTER_STEPS = 2, 6


def run_unsplit(threads: int, inner_steps: int) -> float:
    from noloco_node.config.presets import preset
    from noloco_node.config.spec_file import dump

    with tempfile.TemporaryDirectory() as folder:
        spec_file = Path(folder) / "swarm.toml"
        spec_file.write_text(dump(preset("demo")))
        return statistics.harmonic_mean(run_apart(spec_file, threads, inner_steps))


def run_swarm(outer_steps: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        summary = Path(folder) / "summary.json"
        command = [sys.executable, "-m", "noloco_node", "demo", "--quiet", "--outer-steps", str(outer_steps)]
        command += ["--data-dir", str(Path(folder) / "demo"), "--json", str(summary)]
        subprocess.run(command, check=True, capture_output=True)
        return dict(json.loads(summary.read_text()))


def measure(runs: int, outer_steps: int, inner_steps: int) -> list[dict[str, Any]]:
    cores = len(os.sched_getaffinity(0))
    alone: dict[int, list[float]] = {threads: [] for threads in range(1, cores + 1)}
    swarm: list[float] = []
    for _ in range(runs):
        swarm.append(run_swarm(outer_steps)["tokens_per_s"])
        for threads, found in alone.items():
            found.append(run_unsplit(threads, inner_steps))
    best = max(statistics.median(found) for found in alone.values())
    rows = [_row("swarm 2 x 2", swarm, best)]
    return rows + [_row(f"unsplit, {threads} threads", found, best) for threads, found in alone.items()]


def _row(contender: str, found: list[float], best: float) -> dict[str, Any]:
    middle = statistics.median(found)
    return {
        "contender": contender,
        "tokens_per_s": round(middle, 1),
        "ratio_to_unsplit": round(middle / best, 3),
        "runs": [round(value, 1) for value in found],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one run of few steps, within 90 s")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--outer-steps", type=int, default=OUTER_STEPS)
    parser.add_argument("--inner-steps", type=int, default=60, help="of the unsplit model")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    runs, outer_steps = (1, QUICK_OUTER_STEPS) if arguments.quick else (arguments.runs, arguments.outer_steps)
    rows = measure(runs, outer_steps, arguments.inner_steps)
    for row in rows:
        print(json.dumps(row))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
