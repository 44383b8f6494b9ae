"""From checkpoints of all stages to one Hugging Face directory.

Owns which files make a model (one run, every stage, the newest file of each seat) and the average of the replicas'
slow weights. Must not know the swarm: files only. What it writes, `AutoModelForCausalLM.from_pretrained` loads.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from noloco_node.core.types import Seat
from noloco_node.errors import BadCheckpoint, DiskFailed
from noloco_node.training import checkpoint
from noloco_node.training.architecture import model_config
from noloco_node.training.checkpoint import Meta
from noloco_node.training.settings import TokenizerSettings
from noloco_node.training.tokenizer import load_tokenizer

INDEX_NAME = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class CheckpointSet:
    """The newest file of each seat of one run; every stage has at least one."""

    files: dict[Seat, Path]
    meta: Meta  # of one of them: run, model and tokenizer are the same in all

    def replicas(self, stage: int) -> list[Path]:
        """The files of a stage in the order of its replicas."""
        return [path for seat, path in sorted(self.files.items()) if seat.stage == stage]

    def path_of(self, replica: int) -> list[Path]:
        """One file per stage: that replica's, or where its seat has none, those of the stage in turn."""
        choice = []
        for stage in range(self.meta.num_stages):
            files = self.replicas(stage)
            choice.append(self.files.get(Seat(stage, replica), files[replica % len(files)]))
        return choice


def find_checkpoints(folder: Path) -> list[Path]:
    """The newest whole checkpoint of each folder at or below `folder`."""
    folders = sorted({path.parent for path in folder.rglob("step-*.safetensors")})
    return [path for path in map(checkpoint.newest, folders) if path is not None]


def collect(paths: Iterable[Path]) -> CheckpointSet:
    """Raises BadCheckpoint when files of several runs are mixed or a stage is missing."""
    metas = {path: checkpoint.read_meta(path) for path in paths}
    if not metas:
        raise BadCheckpoint("no complete checkpoint was found", "name a folder that holds step-*.safetensors files")
    if len({meta.run for meta in metas.values()}) > 1:
        raise BadCheckpoint("the checkpoints belong to different runs", "export one run at a time")
    files: dict[Seat, Path] = {}
    for path in sorted(metas, key=lambda path: (metas[path].outer_step, metas[path].inner_step)):
        files[metas[path].place] = path
    meta = next(iter(metas.values()))
    missing = set(range(meta.num_stages)) - {seat.stage for seat in files}
    if missing:
        raise BadCheckpoint(f"no checkpoint of stage {sorted(missing)[0]} of {meta.num_stages} was found")
    return CheckpointSet(files, meta)


@torch.no_grad()
def average_stages(found: CheckpointSet) -> list[dict[str, Tensor]]:
    """Per stage the mean of its replicas' slow weights by parameter name: float64 sums, rounded once to float32."""
    return [_average(found.replicas(stage)) for stage in range(found.meta.num_stages)]


def slow_weights(path: Path) -> dict[str, Tensor]:
    """phi of one checkpoint by parameter name."""
    return checkpoint.read_tensors(path, checkpoint.read_meta(path), ("slow",))["slow"]


def export_model(paths: Iterable[Path], out_dir: Path, *, tokenizer: TokenizerSettings | None = None) -> Path:
    """Average the replicas and write one safetensors file per stage, index, config and tokenizer into `out_dir`.

    `tokenizer` overrides the one that the checkpoints name. Raises BadCheckpoint, BadModel, BadData, DiskFailed.
    """
    found = collect(paths)
    stages = average_stages(found)
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
        _write_weights(stages, out_dir)
        _write_config(found.meta, out_dir, tokenizer or TokenizerSettings(**found.meta.tokenizer))
    except (OSError, SafetensorError) as error:
        raise DiskFailed(
            f"the model cannot be written to {out_dir}: {error}", "free space, check permissions"
        ) from error
    return out_dir


def _average(paths: list[Path]) -> dict[str, Tensor]:
    total = {name: tensor.double() for name, tensor in slow_weights(paths[0]).items()}
    for path in paths[1:]:
        for name, tensor in slow_weights(path).items():
            total[name] += tensor
    return {name: (tensor / len(paths)).float() for name, tensor in total.items()}


def _write_weights(stages: list[dict[str, Tensor]], out_dir: Path) -> None:
    weight_map: dict[str, str] = {}
    for number, stage in enumerate(stages, start=1):
        shard = f"model-{number:05d}-of-{len(stages):05d}.safetensors"
        save_file(stage, out_dir / shard, {"format": "pt"})
        weight_map.update(dict.fromkeys(stage, shard))
    size = sum(tensor.nbytes for stage in stages for tensor in stage.values())
    index = {"metadata": {"total_size": size}, "weight_map": weight_map}
    (out_dir / INDEX_NAME).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _write_config(meta: Meta, out_dir: Path, settings: TokenizerSettings) -> None:
    tokenizer = load_tokenizer(settings)
    config = model_config(meta.model)
    config.architectures = [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[config.model_type]]
    config.dtype = "float32"
    config.use_cache = True
    config.bos_token_id, config.eos_token_id = tokenizer.bos_token_id, tokenizer.eos_token_id
    config.save_pretrained(out_dir)
    tokenizer.save_pretrained(out_dir)
