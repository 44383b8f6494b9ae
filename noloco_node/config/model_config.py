"""What can be said about a Hugging Face model config by reading its JSON: no torch, no transformers.

The full check is the build itself (`training`, BadModel). Every function raises ValueError with one line.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3", "olmo2")
REQUIRED_SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
FRAGMENT_VALUES_MIN = 256
BYTE_VOCAB_MIN = 257  # 256 bytes and the end of a document


def read_model_config(path: Path) -> dict[str, Any]:
    """The config.json a run spec names by `config_file`."""
    try:
        model = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ValueError(f"[model] config_file {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"[model] config_file {path} is not JSON: {error}") from error
    if not isinstance(model, dict):
        raise ValueError(f"[model] config_file {path} must hold one JSON object")
    return model


def check_model(model: Mapping[str, Any], num_stages: int) -> None:
    """Family known, sizes there and fitting, layers divisible by the stages, no tying across stages."""
    _check_family(model.get("model_type"))
    for name in REQUIRED_SIZES:
        _check_size(model, name)
    _check_heads(model)
    layers = model["num_hidden_layers"]
    if layers % num_stages:
        raise ValueError(f"[model] num_hidden_layers {layers} is not divisible by [swarm] num_stages {num_stages}")
    if num_stages > 1 and model.get("tie_word_embeddings", False):
        raise ValueError("[model] tie_word_embeddings must be false when num_stages is above 1")


def check_lengths(model: Mapping[str, Any], sequence_length: int, tokenizer: str) -> None:
    """Sequence and vocabulary against the model."""
    positions = model.get("max_position_embeddings")
    if positions is not None:
        _check_size(model, "max_position_embeddings")
    if positions is not None and sequence_length > positions:
        raise ValueError(
            f"[batch] sequence_length {sequence_length} is above [model] max_position_embeddings {positions}"
        )
    if tokenizer == "byte" and model["vocab_size"] < BYTE_VOCAB_MIN:
        raise ValueError(f"[model] vocab_size {model['vocab_size']} is below {BYTE_VOCAB_MIN}, the byte tokenizer's")


def fragments_max(model: Mapping[str, Any], num_stages: int) -> int:
    """Into how many fragments the smallest stage can be cut for sure, by its largest matrices alone."""
    layer = 3 * model["hidden_size"] * model["intermediate_size"] + 2 * model["hidden_size"] ** 2
    return max(1, model["num_hidden_layers"] // num_stages * layer // FRAGMENT_VALUES_MIN)


def _check_family(model_type: object) -> None:
    if model_type in MODEL_TYPES:
        return
    if model_type is None:
        raise ValueError(f"[model] model_type is missing; one of {', '.join(MODEL_TYPES)}")
    near = get_close_matches(str(model_type), MODEL_TYPES, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"one of {', '.join(MODEL_TYPES)}"
    raise ValueError(f"[model] model_type {model_type!r} is not supported; {hint}")


def _check_size(model: Mapping[str, Any], name: str) -> None:
    size = model.get(name)
    if size is None:
        raise ValueError(f"[model] {name} is missing")
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise ValueError(f"[model] {name} must be a positive integer, not {size!r}")


def _check_heads(model: Mapping[str, Any]) -> None:
    hidden, heads = model["hidden_size"], model["num_attention_heads"]
    if model.get("head_dim") is None and hidden % heads:
        raise ValueError(f"[model] hidden_size {hidden} is not divisible by num_attention_heads {heads}")
    groups = model.get("num_key_value_heads")
    if groups is None:
        return
    _check_size(model, "num_key_value_heads")
    if heads % groups:
        raise ValueError(f"[model] num_attention_heads {heads} is not divisible by num_key_value_heads {groups}")
