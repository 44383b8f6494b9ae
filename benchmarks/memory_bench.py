"""Memory that a seat's state takes on the CPU, against what `training/state_sizes.py` says of it.

    python benchmarks/memory_bench.py [--quick] [--params P] [--codecs C...] [--json FILE]

One process for each codec walks through an outer step as a node does: micro-batch, inner step, boundary, x encoded,
the partner's received and verified, correction, checkpoint. Resident memory above that before the stage was built, in
bytes per parameter: `state` once everything stands that stays (`written_state`), `exchange` the most from the boundary
to the correction, `checkpoint` the most while one is copied, `peak` the most of all (`written_peak`). A micro-batch is
eight tokens, so that activations do not count.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from model_sizes import llama_of
from proc import PeakMemory
from rows import Row, tell

from noloco_node.core.codec_sizes import LAYOUTS

PARAMS, QUICK_PARAMS = 32_000_000, 8_000_000
QUICK_CODECS = ("float32", "int8")
TOKENS = 8


def walk(codec: str, params: int, folder: Path) -> Row:
    """In this process, which must not have trained before."""
    import torch

    from noloco_node.config.presets import preset
    from noloco_node.training import state_sizes

    torch.set_num_threads(1)
    spec = preset(
        "tiny",
        swarm={"num_stages": 1, "num_replicas": 2},
        model=llama_of(params),
        batch={"sequence_length": TOKENS, "micro_batch_size": 1, "micro_batches": 1},
        outer={"codec": codec},
    )
    settings = spec.training_settings()
    _warm_up(folder)
    state, parts, count = _outer_step(settings, folder)
    peak = max(parts.values())
    return {
        "codec": codec,
        "params": count,
        "state": round(state / count, 2),
        "written_state": state_sizes.DEVICE_BYTES_PER_PARAMETER,
        **{name: round(grown / count, 2) for name, grown in parts.items()},
        "peak": round(peak / count, 2),
        "written_peak": round(state_sizes.host_bytes_per_parameter(settings.codec, settings.fragments), 2),
    }


def _warm_up(folder: Path) -> None:
    """What the libraries take once, whatever the model."""
    from noloco_node.config.presets import preset

    _outer_step(preset("tiny", swarm={"num_stages": 1, "num_replicas": 2}).training_settings(), folder / "small")


def _outer_step(settings: Any, folder: Path) -> tuple[int, dict[str, int], int]:
    """Bytes of the state, the most that each part of the step took, and the number of parameters."""
    from noloco_node.core.types import Seat
    from noloco_node.training.settings import TrainerPlace
    from noloco_node.training.trainer import build_trainer

    memory = PeakMemory()
    trainer = build_trainer(settings, TrainerPlace(Seat(0, 0), "cpu", folder))
    trainer.initialise()
    trainer.forward(0, trainer.draw(0), count=True)
    trainer.forget(0)
    gradients = memory.grown_bytes()
    trainer.inner_step(tokens=TOKENS, position=0)
    trainer.forward(1, trainer.draw(1), count=True)
    state = memory.now_bytes()
    parts = {"training": max(gradients, memory.grown_bytes())}
    memory.begin_anew()
    boundary = trainer.take_boundary(0)
    tensor = trainer.outer.tensor(0)
    theirs = _received(tensor, boundary.head_bytes, boundary.tensor_bytes)
    verdict = trainer.verify(0, memoryview(theirs))
    assert not verdict.reason, verdict.reason
    trainer.add_correction(0)
    parts["exchange"] = memory.grown_bytes()
    memory.begin_anew()
    write = trainer.save_checkpoint(outer_step=1, inner_step=0, data_next=2, notes={})
    write()
    parts["checkpoint"] = memory.grown_bytes()
    trainer.release_exchange(0)
    count = sum(parameter.numel() for parameter in trainer.stage.parameters())
    trainer.close()
    return state, parts, count


def _received(tensor: Any, head_bytes: int, size_bytes: int) -> bytearray:
    """The partner's tensor: here the same as ours."""
    theirs = bytearray(size_bytes)
    if head_bytes:
        theirs[:head_bytes] = tensor.read(0, head_bytes)
        tensor.meet(memoryview(theirs)[:head_bytes])
    theirs[head_bytes:] = tensor.read(head_bytes, size_bytes)
    return theirs


def run_apart(codec: str, params: int) -> Row:
    with tempfile.TemporaryDirectory(prefix="nb") as folder:
        me = [sys.executable, __file__, "--walk", codec, "--params", str(params), "--folder", folder]
        row: Row = json.loads(subprocess.run(me, stdout=subprocess.PIPE, check=True).stdout)
        return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smaller model, two codecs")
    parser.add_argument("--params", type=int)
    parser.add_argument("--codecs", nargs="+", choices=LAYOUTS)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--walk", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    params = options.params or (QUICK_PARAMS if options.quick else PARAMS)
    if options.walk:
        print(json.dumps(walk(options.walk, params, options.folder)))
        return
    rows: list[Row] = []
    for codec in options.codecs or (QUICK_CODECS if options.quick else LAYOUTS):
        tell(rows, run_apart(codec, params), options.json)


if __name__ == "__main__":
    main()
