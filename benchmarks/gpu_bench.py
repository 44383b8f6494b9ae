"""Training step and pipeline on the GPUs of this machine: tokens/s, model FLOP utilisation, memory per parameter.

    python benchmarks/gpu_bench.py [--quick] [--device auto|cpu|cuda] [--params P] [--peak-tflops X] [--json FILE]

- `train_step`: the product's own trainer with the whole model on one device, in a process of its own: micro-batches
  and an inner step as a node runs them (bfloat16 autocast where the device has it); plain, with
  `activation_checkpointing`, and with `compile`. Median over steps after the warm-up.
- `pipeline`: real nodes, one stage on each GPU (on a CPU two stages share it); `ratio_to_one_device` is tokens/s over
  those of the plain training step times the number of devices.

`mfu`: model FLOP per second over the peak of the devices used. Per token the model takes 6 FLOP for each parameter but
those of the embedding table, and 12 * layers * hidden size * sequence length for attention (causal masks not deducted;
what is computed twice is not counted twice). The peak is dense bfloat16, from `--peak-tflops` or by the device's name;
unknown: no figure. `peak_bytes_per_parameter`: the most that was allocated on the device (on a CPU: resident memory
above that before the stage was built), activations included; `docs/memory.md` says what is expected without them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from link import stops_as_exits
from model_sizes import count_of, llama_of
from pipeline_bench import Found, run_swarm
from proc import PeakMemory
from rows import Row, tell

from noloco_node.cli.local_swarm import LocalSwarm
from noloco_node.config.presets import preset
from noloco_node.config.run_spec import RunSpec
from noloco_node.config.spec_file import dump, load_run_spec
from noloco_node.core.types import Seat

# Dense bfloat16 with float32 sums, 1e12 FLOP/s, from the makers' data sheets.
PEAK_TFLOPS = {
    "H200": 989.0,
    "H100 PCIe": 756.0,
    "H100": 989.0,
    "A100": 312.0,
    "L40S": 362.0,
    "L4": 121.0,
    "4090": 165.0,
}
VARIANTS: dict[str, tuple[str, ...]] = {
    "plain": (),
    "activation_checkpointing": ("activation_checkpointing",),
    "compile": ("compile",),
}
WARM_UP_STEPS = 2


@dataclass(frozen=True, slots=True)
class Size:
    """Of model and batch; `steps` are those measured."""

    params: int
    tokens: int  # sequence length
    rows: int
    micro_batches: int
    steps: int


FULL = Size(350_000_000, tokens=1024, rows=8, micro_batches=8, steps=10)
QUICK = Size(1_600_000, tokens=64, rows=2, micro_batches=2, steps=2)


def spec_of(size: Size, stages: int) -> RunSpec:
    return preset(
        "tiny",
        swarm={"name": "bench", "num_stages": stages, "num_replicas": 1},
        model={**llama_of(size.params), "max_position_embeddings": size.tokens},
        batch={"sequence_length": size.tokens, "micro_batch_size": size.rows, "micro_batches": size.micro_batches},
        inner={"total_steps": 1_000_000},
        outer={"inner_steps": 1 + size.steps, "total_outer_steps": 1, "start_seats": stages},
        timing={"late_s": 300.0},
        pipeline={"wire_dtype": "bfloat16"},
    )


def flop_per_token(model: dict[str, Any], tokens: int, params: int) -> float:
    """Of one forward and backward; `params` counts all of the model's."""
    hidden, layers, vocab = model["hidden_size"], model["num_hidden_layers"], model["vocab_size"]
    return 6.0 * (params - vocab * hidden) + 12.0 * layers * hidden * tokens


def peak_flops(device_name: str, given_tflops: float | None) -> float | None:
    """Of one device, FLOP/s; None when nobody knows."""
    known = next((peak for name, peak in PEAK_TFLOPS.items() if name in device_name), None)
    tflops = given_tflops or known
    return None if tflops is None else tflops * 1e12


def train(spec_file: Path, device: str, steps: int, options: Sequence[str]) -> Row:
    """Seconds of each step after the warm-up, and what they held at most. In this process."""
    import torch

    from noloco_node.training.device import resolve_device
    from noloco_node.training.settings import TrainerPlace
    from noloco_node.training.trainer import build_trainer

    settings = load_run_spec(spec_file).training_settings()
    place = TrainerPlace(Seat(0, 0), device, spec_file.parent, **dict.fromkeys(options, True))
    found = resolve_device(device)
    on_gpu = found.type == "cuda"
    memory = PeakMemory()
    trainer = build_trainer(settings, place)
    trainer.initialise()
    seconds, tokens, call = [], settings.micro_batches * settings.micro_batch_size * settings.sequence_length, 0
    for step in range(WARM_UP_STEPS + steps):
        begun_s = time.perf_counter()
        for _ in range(settings.micro_batches):
            trainer.forward(call, trainer.draw(call), count=True)
            trainer.forget(call)
            call += 1
        trainer.inner_step(tokens=tokens, position=step)
        if on_gpu:
            torch.cuda.synchronize(found)
        seconds.append(time.perf_counter() - begun_s)
    peak_bytes = torch.cuda.max_memory_allocated(found) if on_gpu else memory.grown_bytes()
    name = torch.cuda.get_device_name(found) if on_gpu else "cpu"
    parameters = sum(parameter.numel() for parameter in trainer.stage.parameters())
    trainer.close()
    step_s = statistics.median(seconds[WARM_UP_STEPS:])
    return {"step_s": step_s, "tokens": tokens, "params": parameters, "peak_bytes": peak_bytes, "device": name}


def step_row(size: Size, device: str, variant: str, peak_tflops: float | None) -> Row:
    spec = spec_of(size, 1)
    with tempfile.TemporaryDirectory(prefix="nb") as name:
        spec_file = Path(name) / "swarm.toml"
        spec_file.write_text(dump(spec))
        me = [sys.executable, __file__, "--step", variant, "--spec", str(spec_file), "--device", device]
        done = subprocess.run([*me, "--steps", str(size.steps)], stdout=subprocess.PIPE, check=True)
    found = json.loads(done.stdout)
    tokens_per_s = found["tokens"] / found["step_s"]
    flop = flop_per_token(spec.model, size.tokens, found["params"])
    return {
        "what": "train_step",
        "variant": variant,
        "device": found["device"],
        "params": found["params"],
        "step_s": round(found["step_s"], 4),
        "tokens_per_s": round(tokens_per_s, 1),
        "mfu": share_of_peak(tokens_per_s * flop, peak_flops(found["device"], peak_tflops)),
        "peak_bytes_per_parameter": round(found["peak_bytes"] / found["params"], 1),
    }


def share_of_peak(flops: float, peak: float | None) -> float | None:
    return None if peak is None else round(flops / peak, 4)


class DeviceSwarm(LocalSwarm):
    """One stage on each GPU."""

    def command(self, seat: Seat, initial_peers: Sequence[str]) -> list[str]:
        command = super().command(seat, initial_peers)
        command[command.index("--device") + 1] = f"cuda:{seat.stage}"
        return command


def stages_for(layers: int, devices: int) -> int:
    """As many as there are devices, if the layers can be cut so; fewer otherwise."""
    return next(count for count in range(devices, 0, -1) if layers % count == 0)


def pipeline_row(size: Size, stages: int, on_gpu: bool, alone: Row, peak_tflops: float | None) -> Row:
    spec, found = spec_of(size, stages), Found()
    run_swarm(spec, False, found, DeviceSwarm if on_gpu else LocalSwarm)
    tokens_per_s, devices = statistics.median(found.tokens_per_s), stages if on_gpu else 1
    peak = peak_flops(alone["device"], peak_tflops)
    flop = flop_per_token(spec.model, size.tokens, count_of(size.params))
    return {
        "what": "pipeline",
        "variant": f"{stages} stages",
        "device": f"{devices} x {alone['device']}",
        "params": alone["params"],
        "tokens_per_s": round(tokens_per_s, 1),
        "mfu": share_of_peak(tokens_per_s * flop, None if peak is None else devices * peak),
        "ratio_to_one_device": round(tokens_per_s / alone["tokens_per_s"] / devices, 3),
        "busy_share_max": round(found.busy[0][0], 3),
        "busy_share_min": round(found.busy[0][1], 3),
    }


def measure(size: Size, device: str, variants: Sequence[str], peak_tflops: float | None) -> list[Row]:
    import torch

    from noloco_node.training.device import resolve_device

    on_gpu = resolve_device(device).type == "cuda"
    devices = torch.cuda.device_count() if on_gpu else 2
    rows = [step_row(size, device, variant, peak_tflops) for variant in variants]
    stages = stages_for(llama_of(size.params)["num_hidden_layers"], devices)
    if stages > 1:
        rows.append(pipeline_row(size, stages, on_gpu, rows[0], peak_tflops))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tiny model, few steps, nothing compiled: within 90 s")
    parser.add_argument("--device", default="auto", help="auto | cpu | cuda | cuda:N")
    parser.add_argument("--params", type=int, help="parameters, about")
    parser.add_argument("--peak-tflops", type=float, help="of one device, dense, in the precision it computes in")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--step", choices=VARIANTS, help=argparse.SUPPRESS)
    parser.add_argument("--spec", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step:
        print(json.dumps(train(options.spec, options.device, options.steps, VARIANTS[options.step])))
        return
    size = QUICK if options.quick else FULL
    if options.params:
        size = Size(options.params, size.tokens, size.rows, size.micro_batches, size.steps)
    with stops_as_exits():
        variants = [name for name in VARIANTS if not options.quick or name != "compile"]
        rows = measure(size, options.device, variants, options.peak_tflops)
    told: list[Row] = []
    for row in rows:
        tell(told, row, options.json)


if __name__ == "__main__":
    main()
