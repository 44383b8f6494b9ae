"""The rival of a split model: one process that trains all of it in a plain loop, as fast as the libraries go.

    python benchmarks/plain_training.py --spec FILE --threads N --steps K

The Hugging Face model, torch's fused AdamW, the run spec's own micro-batches. Prints tokens/s of each inner step after
the warm-up.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

WARM_UP_STEPS = 2


def train(spec_file: Path, threads: int, steps: int) -> list[float]:
    """Tokens/s of this process in each of `steps` inner steps after the warm-up."""
    import torch
    from transformers import AutoModelForCausalLM

    from noloco_node.config.spec_file import load_run_spec
    from noloco_node.training.architecture import model_config
    from noloco_node.training.reader import build_reader

    torch.set_num_threads(threads)
    settings = load_run_spec(spec_file).training_settings()
    config = model_config(settings.model)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.optimizer.learning_rate, fused=True)
    reader = build_reader(settings, 0)
    reader.open()
    numbers = iter(range(10**9))
    rates = []
    for _ in range(WARM_UP_STEPS + steps):
        begun_s = time.perf_counter()
        trained = sum(_accumulate(model, reader.read(next(numbers))) for _ in range(settings.micro_batches))
        for parameter in model.parameters():
            parameter.grad /= trained
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.optimizer.clip_norm)
        optimizer.step()
        optimizer.zero_grad()
        rates.append(trained / (time.perf_counter() - begun_s))
    return rates[WARM_UP_STEPS:]


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


def run_apart(spec_file: Path, threads: int, steps: int) -> list[float]:
    """In a process of its own, so that no state of an earlier run helps or hinders."""
    command = [sys.executable, __file__, "--spec", str(spec_file), "--threads", str(threads), "--steps", str(steps)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(command, check=True, capture_output=True, env=environment)
    rates: list[float] = json.loads(done.stdout)["tokens_per_s"]
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spec", type=Path, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    options = parser.parse_args()
    print(json.dumps({"tokens_per_s": train(options.spec, options.threads, options.steps)}))


if __name__ == "__main__":
    main()
