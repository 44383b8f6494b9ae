"""What training needs of the run spec and of the node's own configuration. Plain values; imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from noloco_node.core.types import Seat
from noloco_node.ports import StateParts


@dataclass(frozen=True, slots=True)
class DataSettings:
    """Where text comes from. `source`:

    - `python-stdlib`: the .py files of the running interpreter's standard library (no download);
    - `text`, `jsonl`, `parquet`: local files, `path` is a file, folder or glob;
    - `hub`: a data set on the Hugging Face hub named `path` (config `name`), streamed.
    """

    source: str = "python-stdlib"
    path: str = ""
    name: str = ""
    split: str = "train"
    text_field: str = "text"
    held_out_fraction: float = 0.02  # of documents, drawn by the run seed; never trained on
    shuffle_window: int = 256  # documents shuffled among themselves
    row_window: int = 1024  # packed rows shuffled among themselves


@dataclass(frozen=True, slots=True)
class TokenizerSettings:
    """`kind`: `byte` (built in, no download) or `hf` (`path` is a local folder or a hub name)."""

    kind: str = "byte"
    path: str = ""


@dataclass(frozen=True, slots=True)
class OptimizerSettings:
    """AdamW with linear warm-up and cosine decay to `final_lr_ratio` over `total_steps` inner steps."""

    learning_rate: float = 1e-3
    warmup_steps: int = 50
    total_steps: int = 1000
    final_lr_ratio: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.0
    clip_norm: float = 1.0


@dataclass(frozen=True, slots=True)
class TrainingSettings:
    """Everything a stage trainer is built from. `model` is a Hugging Face config as a dict, `model_type` included."""

    run: str
    seed: int
    num_stages: int
    num_replicas: int
    model: dict[str, Any]
    sequence_length: int
    micro_batch_size: int
    micro_batches: int
    inner_steps: int
    alpha: float
    beta: float
    gamma: float
    data: DataSettings = field(default_factory=DataSettings)
    tokenizer: TokenizerSettings = field(default_factory=TokenizerSettings)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    codec: str = "float32"  # of x in an exchange
    prefetch: bool = False  # slow weights travel before the boundary, apart from the outer gradient
    fragments: int = 1  # parts of the weights that outer steps exchange in turn
    wire_dtype: str = "float32"  # of activations and gradients between stages: float32 | bfloat16 | int8
    autocast: bool = True  # bfloat16 autocast where the device has it (never on CPU)


@dataclass(frozen=True, slots=True)
class TrainerPlace:
    """Where and how one trainer runs: its seat, device ("auto", "cpu", "cuda:N"), checkpoint folder, and what is the
    node's own choice because it does not change the mathematics."""

    seat: Seat
    device: str
    checkpoint_dir: Path
    threads: int = 0  # 0 = torch's default
    fetched_parts: StateParts = StateParts.SLOW  # what is taken of a donor's state
    compile: bool = False  # torch.compile of each layer
    activation_checkpointing: bool = False  # of each layer only the input is kept for the backward
