"""The run spec: what all nodes of a run must agree on, read from `swarm.toml`. Its canonical hash is the run id.

Owns what fields must be together and how the spec becomes the settings of the core and of training. Must not
import torch or transformers: the model config is judged by its JSON; the build is the full check.
"""

from __future__ import annotations

import hashlib
import json
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from pydantic import ConfigDict, Field, PrivateAttr, model_validator

from noloco_node.config.model_config import check_lengths, check_model, fragments_max
from noloco_node.config.sections import (
    Batch,
    Data,
    Dtypes,
    Inner,
    Outer,
    Pipeline,
    Section,
    Swarm,
    Timing,
    Tokenizer,
)
from noloco_node.core import limits
from noloco_node.core.codec_sizes import encoded_bytes
from noloco_node.core.types import Admit, Clock, Mode, Settings
from noloco_node.training.settings import DataSettings, OptimizerSettings, TokenizerSettings, TrainingSettings

RUN_ID_BYTES = 16
INT32_BYTES = 4
MODES = {"joint": Mode.JOINT, "prefetch": Mode.PREFETCH, "overlap": Mode.OVERLAP, "stream": Mode.OVERLAP}
LOCAL_SOURCES = ("text", "jsonl", "parquet")


class RunSpec(Section):
    """One run. `model` is a Hugging Face config as a dict, `model_type` included.

    `folder` is where the file lay: relative data paths start there. It is no part of the run id.
    """

    model_config = ConfigDict(ignored_types=(cached_property,))

    swarm: Swarm
    model: dict[str, Any]
    data: Data = Field(default_factory=Data)
    tokenizer: Tokenizer = Field(default_factory=Tokenizer)
    batch: Batch
    inner: Inner = Field(default_factory=Inner)
    outer: Outer
    pipeline: Pipeline = Field(default_factory=Pipeline)
    dtypes: Dtypes = Field(default_factory=Dtypes)
    timing: Timing = Field(default_factory=Timing)

    _folder: Path = PrivateAttr(default_factory=Path.cwd)
    _signature: str = PrivateAttr("")

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        for rule in (_check_seats, _check_outer, _check_schedule, _check_timing, _check_sources):
            rule(self)
        _check_canonical(self)
        check_model(self.model, self.swarm.num_stages)
        _check_mode(self)
        check_lengths(self.model, self.batch.sequence_length, self.tokenizer.kind)
        return self

    @property
    def folder(self) -> Path:
        return self._folder

    @property
    def signature(self) -> str:
        """The owner's, as hex; "" in an open run."""
        return self._signature

    def canonical(self) -> bytes:
        """JSON with sorted keys, defaults filled in and the model config embedded. An open run has no owner in it."""
        value = self.model_dump(mode="python")
        if not self.swarm.owner:
            del value["swarm"]["owner"]
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()

    @cached_property
    def run_id(self) -> str:
        """32 hex digits: BLAKE2b-128 of `canonical()`."""
        return hashlib.blake2b(self.canonical(), digest_size=RUN_ID_BYTES).hexdigest()

    @property
    def hop_shape(self) -> tuple[int, int, int]:
        """(B, T, D) of every activation between stages."""
        return self.batch.micro_batch_size, self.batch.sequence_length, self.model["hidden_size"]

    @property
    def hop_bytes(self) -> int:
        """Of one micro-batch on its way: activation, position_ids and labels."""
        rows, tokens, hidden = self.hop_shape
        return encoded_bytes(self.pipeline.wire_dtype, rows * tokens * hidden) + 2 * INT32_BYTES * rows * tokens

    def core_settings(self) -> Settings:
        outer, timing = self.outer, self.timing
        return Settings(
            run=self.run_id,
            seed=self.swarm.seed,
            num_stages=self.swarm.num_stages,
            num_replicas=self.swarm.num_replicas,
            micro_batches=self.batch.micro_batches,
            inner_steps=outer.inner_steps,
            total_outer_steps=outer.total_outer_steps,
            start_seats=outer.start_seats,
            mode=MODES[outer.mode],
            codec=outer.codec,
            fragments=outer.fragments,
            alpha=outer.alpha,
            beta=outer.beta,
            gamma=outer.gamma,
            clock=Clock(outer.clock),
            admit=Admit(self.pipeline.admit),
            outer_interval_s=outer.outer_interval_s,
            queue_max=self.pipeline.queue_max,
            inflight_extra=self.pipeline.inflight_extra,
            **timing.model_dump(),
        )

    def training_settings(self) -> TrainingSettings:
        return TrainingSettings(
            run=self.run_id,
            seed=self.swarm.seed,
            num_stages=self.swarm.num_stages,
            num_replicas=self.swarm.num_replicas,
            model=dict(self.model),
            **self.batch.model_dump(),
            inner_steps=self.outer.inner_steps,
            alpha=self.outer.alpha,
            beta=self.outer.beta,
            gamma=self.outer.gamma,
            data=self._data(),
            tokenizer=self._tokenizer(),
            optimizer=self._optimizer(),
            codec=self.outer.codec,
            prefetch=self.outer.mode == "prefetch",
            fragments=self.outer.fragments,
            wire_dtype=self.pipeline.wire_dtype,
            autocast=self.dtypes.autocast,
        )

    def _data(self) -> DataSettings:
        values = self.data.model_dump()
        if self.data.source in LOCAL_SOURCES:
            values["path"] = str(self._folder / self.data.path)
        return DataSettings(**values)

    def _tokenizer(self) -> TokenizerSettings:
        local = self._folder / self.tokenizer.path
        found = self.tokenizer.kind == "hf" and local.exists()
        return TokenizerSettings(kind=self.tokenizer.kind, path=str(local) if found else self.tokenizer.path)

    def _optimizer(self) -> OptimizerSettings:
        return OptimizerSettings(**self.inner.model_dump() | {"total_steps": _total_steps(self)})


def _total_steps(spec: RunSpec) -> int:
    return spec.inner.total_steps or spec.outer.inner_steps * spec.outer.total_outer_steps


def _check_canonical(spec: RunSpec) -> None:
    """Only a spec that has a canonical form has a run id."""
    try:
        spec.canonical()
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"[model] holds what JSON cannot: {error}") from error


def _check_seats(spec: RunSpec) -> None:
    seats = spec.swarm.num_stages * spec.swarm.num_replicas
    if seats > limits.SEATS_MAX:
        raise ValueError(f"[swarm] num_stages * num_replicas is {seats}, above {limits.SEATS_MAX}")
    if spec.outer.start_seats > seats:
        raise ValueError(f"[outer] start_seats {spec.outer.start_seats} is above the {seats} seats of the swarm")


def _check_outer(spec: RunSpec) -> None:
    outer = spec.outer
    bound = 2 * (1 - outer.alpha)
    if outer.group_size != 2:
        raise ValueError(f"[outer] group_size {outer.group_size}: nodes exchange in pairs, only 2 is accepted")
    if not 0 < outer.gamma < bound:
        raise ValueError(
            f"[outer] gamma {outer.gamma:g} must be above 0 and below 2 (1 - alpha) = {bound:g}, else replicas diverge"
        )
    if outer.clock == "time" and not outer.start_unix_s:
        raise ValueError('[outer] clock "time" needs start_unix_s, the unix second at which outer step 0 begins')


def _check_mode(spec: RunSpec) -> None:
    outer = spec.outer
    if (outer.fragments > 1) != (outer.mode == "stream"):
        raise ValueError(f'[outer] fragments {outer.fragments}: mode "stream" has at least 2, the other modes 1')
    if 0 < outer.total_outer_steps < outer.fragments:
        raise ValueError(f"[outer] total_outer_steps {outer.total_outer_steps} is below fragments {outer.fragments}")
    if outer.fragments > (most := fragments_max(spec.model, spec.swarm.num_stages)):
        raise ValueError(f"[outer] fragments {outer.fragments}: this model's stages have room for {most}")
    if outer.mode == "prefetch" and outer.codec.startswith("lattice"):
        raise ValueError(f'[outer] codec "{outer.codec}" tells differences of x only: mode "prefetch" takes the others')
    if outer.mode in ("joint", "prefetch"):
        return
    if outer.clock != "time":
        raise ValueError(f'[outer] mode "{outer.mode}" needs clock "time": where nobody waits, replicas drift apart')
    if spec.pipeline.admit == "ordered":
        raise ValueError('[pipeline] admit "ordered" needs [outer] mode "joint" or "prefetch": else timing decides')


def _check_schedule(spec: RunSpec) -> None:
    total = _total_steps(spec)
    if not total:
        raise ValueError("[inner] total_steps must be given when [outer] total_outer_steps is 0 (no end)")
    if spec.inner.warmup_steps > total:
        raise ValueError(f"[inner] warmup_steps {spec.inner.warmup_steps} is above the {total} steps of the schedule")


def _check_timing(spec: RunSpec) -> None:
    timing = spec.timing
    if timing.renew_s >= timing.lease_s:
        raise ValueError(f"[timing] renew_s {timing.renew_s:g} must be below lease_s {timing.lease_s:g}")


def _check_sources(spec: RunSpec) -> None:
    if spec.data.source in (*LOCAL_SOURCES, "hub") and not spec.data.path:
        raise ValueError(f'[data] path must be given for source "{spec.data.source}"')
    if spec.tokenizer.kind == "hf" and not spec.tokenizer.path:
        raise ValueError('[tokenizer] path must be given for kind "hf"')
