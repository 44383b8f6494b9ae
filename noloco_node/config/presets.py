"""Complete run specs to begin with; `noloco-node swarm new` and the demo start from one of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from noloco_node.config.run_spec import RunSpec
from noloco_node.config.spec_file import build_run_spec
from noloco_node.core import limits

PRESETS = ("tiny", "demo", "small")


def preset(name: str, **sections: Mapping[str, Any]) -> RunSpec:
    """`tiny`: tests, seconds. `demo`: about 1M parameters on bytes. `small`: about 125M, for GPUs.

    `sections` overrides keys, e.g. `swarm={"num_stages": 4}`. Raises KeyError for an unknown name, BadSpec when
    the overrides do not fit.
    """
    table = {"swarm": _swarm(name)} | _TABLES[name]
    merged = {section: dict(table.get(section, {})) | dict(sections.get(section, {})) for section in table | sections}
    return build_run_spec(merged, Path.cwd())


def _swarm(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "protocol_version": limits.PROTOCOL_VERSION,
        "seed": 1,
        "num_stages": 2,
        "num_replicas": 2,
    }


def _llama(hidden: int, layers: int, heads: int, positions: int, vocab: int = 260) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": hidden * 8 // 3 // 8 * 8,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "max_position_embeddings": positions,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
    }


_LOCAL_TIMING = {
    "grace_s": 20.0,
    "exchange_max_s": 60.0,
    "lease_s": 20.0,
    "renew_s": 5.0,
    "settle_s": 1.0,
    "idle_close_s": 2.0,
    "late_s": 30.0,
}

_TABLES: dict[str, dict[str, Any]] = {
    "tiny": {
        "model": _llama(hidden=32, layers=4, heads=2, positions=64),
        "batch": {"sequence_length": 32, "micro_batch_size": 2, "micro_batches": 2},
        "inner": {"learning_rate": 3e-3, "warmup_steps": 2},
        "outer": {"inner_steps": 4, "total_outer_steps": 3, "clock": "steps"},
        "timing": _LOCAL_TIMING,
    },
    "demo": {
        "model": _llama(hidden=128, layers=4, heads=4, positions=256),
        "data": {"row_window": 4096},  # more rows than the run has: no step of the loss where a next window begins
        "batch": {"sequence_length": 128, "micro_batch_size": 4, "micro_batches": 2},
        "inner": {"learning_rate": 3e-3, "warmup_steps": 20},
        "outer": {"inner_steps": 25, "total_outer_steps": 20, "clock": "steps"},
        "timing": _LOCAL_TIMING,
    },
    "small": {
        "model": _llama(hidden=768, layers=12, heads=12, positions=1024, vocab=32000),
        "data": {"source": "hub", "path": "HuggingFaceFW/fineweb-edu", "name": "sample-10BT"},
        "tokenizer": {"kind": "hf", "path": "mistralai/Mistral-7B-v0.1"},
        "batch": {"sequence_length": 1024, "micro_batch_size": 4, "micro_batches": 8},
        "inner": {"learning_rate": 6e-4, "warmup_steps": 500, "total_steps": 20_000},
        "outer": {"inner_steps": 50, "total_outer_steps": 400, "clock": "steps"},
        "pipeline": {"wire_dtype": "bfloat16"},
    },
}
