"""The sections of `swarm.toml`, field by field: type, bound, default, and the comment `swarm new` writes beside it.

Owns what one field alone may be. What fields must be together is `run_spec`'s. Seconds unless named otherwise.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from noloco_node.core.types import Settings
from noloco_node.discovery.identity import peer_public_key
from noloco_node.training.settings import DataSettings, OptimizerSettings, TokenizerSettings

SEED_MAX = (1 << 63) - 1  # TOML integers are signed 64 bit
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"

_core: dict[str, Any] = {field: Settings.__dataclass_fields__[field].default for field in Settings.__dataclass_fields__}
_data, _tokenizer, _optimizer = DataSettings(), TokenizerSettings(), OptimizerSettings()


class Section(BaseModel):
    """Unknown keys are refused, types are not bent, infinities are no numbers."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Swarm(Section):
    name: str = Field(description="for people; letters, digits, . _ -", pattern=NAME_PATTERN)
    owner: str = Field("", description='peer id of the key that must have signed this file; "" = an open run')
    protocol_version: int = Field(description="what the nodes speak; others are turned away")
    seed: int = Field(0, description="every draw of the run comes from it", ge=0, le=SEED_MAX)
    num_stages: int = Field(description="pipeline stages the model's layers are cut into", ge=1)
    num_replicas: int = Field(description="seats per stage; vacant ones cost little", ge=1)

    @field_validator("owner")
    @classmethod
    def _is_a_peer_id(cls, value: str) -> str:
        try:
            if value:
                peer_public_key(value)
        except ValueError as error:
            raise ValueError(f"[swarm] owner {value[:80]!r} is no peer id of an ed25519 key: {error}") from error
        return value


class Data(Section):
    source: Literal["python-stdlib", "text", "jsonl", "parquet", "hub"] = Field(
        _data.source, description="python-stdlib | text | jsonl | parquet | hub"
    )
    path: str = Field(_data.path, description="file, folder or glob (relative to this file), or a hub data set's name")
    name: str = Field(_data.name, description="hub data set's configuration")
    split: str = Field(_data.split, description="hub data set's split", min_length=1)
    text_field: str = Field(_data.text_field, description="column that holds the text", min_length=1)
    held_out_fraction: float = Field(
        _data.held_out_fraction, description="of documents, for evaluation, never trained on", ge=0, lt=1
    )
    shuffle_window: int = Field(_data.shuffle_window, description="documents shuffled among themselves", ge=1)
    row_window: int = Field(_data.row_window, description="packed rows shuffled among themselves", ge=1, le=65536)


class Tokenizer(Section):
    kind: Literal["byte", "hf"] = Field(_tokenizer.kind, description="byte (built in) | hf")
    path: str = Field(_tokenizer.path, description="hf: local folder (relative to this file) or hub name")


class Batch(Section):
    sequence_length: int = Field(description="tokens per sequence", ge=2)
    micro_batch_size: int = Field(description="sequences per micro-batch", ge=1)
    micro_batches: int = Field(description="micro-batches per inner step and replica (M)", ge=1)


class Inner(Section):
    """AdamW, linear warm-up, cosine decay, clipping."""

    learning_rate: float = Field(_optimizer.learning_rate, description="peak", gt=0)
    warmup_steps: int = Field(_optimizer.warmup_steps, description="inner steps of linear warm-up", ge=0)
    total_steps: int = Field(
        0, description="inner steps until the cosine ends; 0 = inner_steps * total_outer_steps", ge=0
    )
    final_lr_ratio: float = Field(_optimizer.final_lr_ratio, description="of the peak, at the end", ge=0, le=1)
    beta1: float = Field(_optimizer.beta1, description="AdamW", ge=0, lt=1)
    beta2: float = Field(_optimizer.beta2, description="AdamW", ge=0, lt=1)
    eps: float = Field(_optimizer.eps, description="AdamW", gt=0)
    weight_decay: float = Field(_optimizer.weight_decay, description="AdamW, decoupled", ge=0)
    clip_norm: float = Field(_optimizer.clip_norm, description="of a stage's gradient", gt=0)


class Outer(Section):
    inner_steps: int = Field(description="inner steps per outer step (H)", ge=1)
    total_outer_steps: int = Field(0, description="the run ends after so many; 0 = no end", ge=0)
    start_seats: int = Field(0, description="a new run starts when so many seats are active; 0 = at once", ge=0)
    alpha: float = Field(_core["alpha"], description="momentum of the outer step", ge=0, lt=1)
    beta: float = Field(_core["beta"], description="weight of the outer gradient", gt=0)
    gamma: float = Field(_core["gamma"], description="pull towards the partner; 0 < gamma < 2 (1 - alpha)")
    group_size: int = Field(2, description="nodes exchange in pairs")
    mode: Literal["joint", "prefetch", "overlap", "stream"] = Field(
        "joint",
        description="joint: training waits for the exchange | prefetch: joint, but slow weights travel before the "
        "boundary, only the outer gradient after it | overlap: training runs on meanwhile | "
        "stream: overlap, and an outer step exchanges one of several fragments of the weights",
    )
    fragments: int = Field(
        1, description="stream: into so many parts the weights are cut, exchanged one after the other", ge=1, le=256
    )
    codec: Literal["float32", "bfloat16", "int8", "int4", "lattice5", "lattice4"] = Field(
        "float32",
        description="of the weights on their way: float32 | bfloat16 | int8 | int4 | lattice5 | lattice4; prefetch: of "
        "the outer gradient (no lattice), slow weights travel in bfloat16 unless it is float32",
    )
    clock: Literal["time", "steps"] = Field(
        "time", description="time: due by the wall clock | steps: after inner_steps own steps"
    )
    outer_interval_s: float = Field(_core["outer_interval_s"], description="clock time: seconds per outer step", gt=0)
    start_unix_s: float = Field(0.0, description="clock time: when outer step 0 begins, unix seconds", ge=0)


class Pipeline(Section):
    admit: Literal["arrival", "ordered"] = Field(
        "arrival", description="arrival | ordered (tests: bit for bit the same sums)"
    )
    queue_max: int = Field(_core["queue_max"], description="micro-batches queued before BUSY", ge=1, le=4096)
    inflight_extra: int = Field(
        _core["inflight_extra"], description="in flight beyond num_stages - stage, to hide latency", ge=0, le=1024
    )
    wire_dtype: Literal["float32", "bfloat16", "int8"] = Field(
        "float32", description="of activations and gradients between stages: float32 | bfloat16 | int8"
    )


class Dtypes(Section):
    autocast: bool = Field(True, description="bfloat16 autocast where the device has it (never on CPU)")


class Timing(Section):
    grace_s: float = Field(_core["grace_s"], description="wait for a partner that has not begun", gt=0)
    exchange_max_s: float = Field(_core["exchange_max_s"], description="wait for one that has", gt=0)
    lease_s: float = Field(_core["lease_s"], description="a seat record lives so long", gt=0)
    renew_s: float = Field(_core["renew_s"], description="and is renewed so often", gt=0)
    settle_s: float = Field(_core["settle_s"], description="between claiming a seat and taking it", ge=0)
    skew_max_s: float = Field(_core["skew_max_s"], description="clock difference that is borne", gt=0)
    late_s: float = Field(_core["late_s"], description="a gradient later than this does not hold the step", gt=0)
    idle_close_s: float = Field(_core["idle_close_s"], description="a step closes when nothing new came", gt=0)
