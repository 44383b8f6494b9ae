"""Held-out perplexity: of the averaged model, of single replica paths, of an exported directory, of the first weights.

Owns putting a whole model together from named weights and the sum over held-out rows. Must not know the swarm.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from noloco_node.errors import BadModel
from noloco_node.training.architecture import model_config
from noloco_node.training.device import resolve_device
from noloco_node.training.export import average_stages, collect, slow_weights
from noloco_node.training.initialisation import draw_weights
from noloco_node.training.packing import Rows
from noloco_node.training.reader import held_out_rows
from noloco_node.training.settings import TrainingSettings
from noloco_node.training.stage import Stage, count_tokens, cut_stage, loss_sum

ROWS_MAX = 512  # held-out rows of one evaluation, unless told otherwise

Watch = Callable[[str, int, int], None]
"""Told of the part that is measured, how many of its batches are done, and of how many."""


@dataclass(frozen=True, slots=True)
class Perplexity:
    """exp of the mean cross-entropy `loss` (nats per token) over `tokens` held-out tokens."""

    perplexity: float
    loss: float
    tokens: int


@dataclass(frozen=True, slots=True)
class Report:
    """`paths[r]`: the model that replica r's seats make; `average`: that of the averaged slow weights."""

    average: Perplexity
    paths: dict[int, Perplexity]


def unwatched(part: str, done: int, total: int) -> None:
    """Nobody asks how far it is."""


def evaluate_checkpoints(
    paths: Iterable[Path],
    settings: TrainingSettings,
    *,
    rows_max: int = ROWS_MAX,
    device: str = "cpu",
    watch: Watch = unwatched,
) -> Report:
    """Average and replica paths from the checkpoints of all stages. Raises BadCheckpoint, BadData."""
    found = collect(paths)
    rows = list(held_out_rows(settings, rows_max))

    def measured(part: str, weights: Iterable[dict[str, Tensor]]) -> Perplexity:
        return perplexity(whole_model(found.meta.model, weights, device), rows, part, watch)

    average = measured("the averaged model", average_stages(found))
    replicas = sorted({seat.replica for seat in found.files})
    single = {
        replica: measured(f"replica path {replica}", map(slow_weights, found.path_of(replica))) for replica in replicas
    }
    return Report(average, single)


def evaluate_exported(
    model_dir: Path,
    settings: TrainingSettings,
    *,
    rows_max: int = ROWS_MAX,
    device: str = "cpu",
    watch: Watch = unwatched,
) -> Perplexity:
    """Of a Hugging Face directory. Raises BadModel, BadData."""
    try:
        model = json.loads((model_dir / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadModel(f"{model_dir} holds no readable config.json", "name an exported model directory") from error
    weights = [load_file(path) for path in sorted(model_dir.glob("*.safetensors"))]
    rows = held_out_rows(settings, rows_max)
    return perplexity(whole_model(model, weights, device), rows, "the exported model", watch)


def evaluate_initial(
    settings: TrainingSettings, *, rows_max: int = ROWS_MAX, device: str = "cpu", watch: Watch = unwatched
) -> Perplexity:
    """Of the weights that every replica starts with. Raises BadData."""
    stage = cut_stage(model_config(settings.model), 1, 0)
    stage.materialise(resolve_device(device))
    draw_weights(stage, settings.seed)
    return perplexity(stage, held_out_rows(settings, rows_max), "the untrained model", watch)


@torch.no_grad()
def perplexity(stage: Stage, rows: Iterable[Rows], part: str = "", watch: Watch = unwatched) -> Perplexity:
    """Of a one-stage model over packed rows."""
    device = next(stage.parameters()).device
    total, tokens, batches = 0.0, 0, list(rows)
    for done, batch in enumerate(batches):
        watch(part, done, len(batches))
        ids, position_ids, labels = (
            torch.from_numpy(array).long().to(device) for array in (batch.ids, batch.position_ids, batch.labels)
        )
        total += float(loss_sum(stage(ids, position_ids), labels))
        tokens += count_tokens(labels)
    watch(part, len(batches), len(batches))
    loss = total / max(1, tokens)
    return Perplexity(math.exp(min(loss, 700.0)), loss, tokens)


@torch.no_grad()
def whole_model(model: dict[str, Any], weights: Iterable[dict[str, Tensor]], device: str) -> Stage:
    """All layers in one stage, from the named weights of all stages. Raises BadModel when one is missing."""
    stage = cut_stage(model_config(model), 1, 0)
    stage.materialise(resolve_device(device))
    parameters = dict(stage.named_parameters())
    missing = set(parameters)
    for name, tensor in chain.from_iterable(named.items() for named in weights):
        if name in parameters:
            parameters[name].copy_(tensor)
            missing.discard(name)
    if missing:
        raise BadModel(f"the weights lack {sorted(missing)[0]}")
    return stage
