"""Tiny runs for the tests of training: hidden 32, two to twelve layers, sequences of 24 tokens."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from noloco_node.core.types import Seat
from noloco_node.training.settings import DataSettings, TrainerPlace, TrainingSettings
from noloco_node.training.trainer import StageTrainer, build_trainer


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def tiny_model() -> Callable[..., dict]:
    def make(family: str = "llama", layers: int = 2, **more: object) -> dict:
        sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
        fixed = {"vocab_size": 257, "max_position_embeddings": 64, "tie_word_embeddings": False}
        return {"model_type": family, "num_hidden_layers": layers, **sizes, **fixed, **more}

    return make


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    """120 documents of 1 to 90 characters as JSON lines."""
    path = tmp_path / "documents.jsonl"
    lines = [json.dumps({"text": f"<{number}>" + "abcdefgh" * (number % 11)}) for number in range(120)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def settings(tiny_model: Callable[..., dict], documents: Path) -> TrainingSettings:
    """One stage, one replica; change it with dataclasses.replace."""
    return TrainingSettings(
        run="test-run",
        seed=7,
        num_stages=1,
        num_replicas=1,
        model=tiny_model(),
        sequence_length=24,
        micro_batch_size=2,
        micro_batches=2,
        inner_steps=4,
        alpha=0.5,
        beta=0.7,
        gamma=0.7,
        data=DataSettings(source="jsonl", path=str(documents), held_out_fraction=0.1, shuffle_window=8, row_window=1),
    )


@pytest.fixture
def make_trainer(settings: TrainingSettings, tmp_path: Path) -> Callable[..., StageTrainer]:
    def make(stage: int = 0, replica: int = 0, folder: str = "", **changes: object) -> StageTrainer:
        place = TrainerPlace(Seat(stage, replica), "cpu", tmp_path / (folder or f"seat-{stage}.{replica}"))
        return build_trainer(replace(settings, **changes), place)

    return make
