"""Tokens/s of the demo swarm against one process that trains the unsplit model on the same cores.

    python benchmarks/demo_bench.py [--quick] [--runs N] [--outer-steps K] [--json FILE]

Contenders take turns, A B A B. The rival is a plain loop: the Hugging Face model, torch's fused AdamW, the same micro-
batches; it is given every thread count up to the number of cores and its best one counts. The swarm is `noloco-node
demo`: real processes, DHT, libp2p and gRPC; its clock starts when the last node has its weights and stops at the last
closed outer step. `phases` says where the nodes' time goes: seconds of device jobs and of exchanges from /metrics.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

QUICK_OUTER_STEPS, OUTER_STEPS = 2, 6
WARM_UP_STEPS = 5


def unsplit(threads: int, inner_steps: int) -> dict[str, Any]:
    """Tokens/s of one process with the whole model, in this process."""
    import torch
    from transformers import AutoModelForCausalLM

    from noloco_node.config.presets import preset
    from noloco_node.training.architecture import model_config
    from noloco_node.training.reader import build_reader

    torch.set_num_threads(threads)
    settings = preset("demo").training_settings()
    config = model_config(settings.model)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.optimizer.learning_rate, fused=True)
    reader = build_reader(settings, 0)
    reader.open()
    numbers = iter(range(10**9))
    begun, tokens = 0.0, 0
    for step in range(WARM_UP_STEPS + inner_steps):
        if step == WARM_UP_STEPS:
            begun, tokens = time.perf_counter(), 0
        trained = sum(_accumulate(model, reader.read(next(numbers))) for _ in range(settings.micro_batches))
        for parameter in model.parameters():
            parameter.grad /= trained
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.optimizer.clip_norm)
        optimizer.step()
        optimizer.zero_grad()
        tokens += trained
    return {"threads": threads, "tokens_per_s": tokens / (time.perf_counter() - begun)}


def _accumulate(model: Any, batch: Any) -> int:
    import torch

    ids, positions, labels = (
        torch.frombuffer(bytearray(blob.data), dtype=torch.int32).view(blob.shape).long()
        for blob in (batch.inputs, batch.position_ids, batch.labels)
    )
    logits = model(ids, position_ids=positions, use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum")
    loss.backward()
    return int((labels != -100).sum())


def run_unsplit(threads: int, inner_steps: int) -> float:
    """In a process of its own, so that no state of an earlier run helps or hinders."""
    command = [sys.executable, __file__, "--unsplit", str(threads), "--inner-steps", str(inner_steps)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    found = json.loads(subprocess.run(command, check=True, capture_output=True, env=environment).stdout)
    return float(found["tokens_per_s"])


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
    parser.add_argument("--unsplit", type=int, metavar="THREADS", help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.unsplit:
        print(json.dumps(unsplit(arguments.unsplit, arguments.inner_steps)))
        return
    runs, outer_steps = (1, QUICK_OUTER_STEPS) if arguments.quick else (arguments.runs, arguments.outer_steps)
    rows = measure(runs, outer_steps, arguments.inner_steps)
    for row in rows:
        print(json.dumps(row))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
