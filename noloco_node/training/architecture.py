"""The model's Hugging Face config: read from the run spec, checked, and cut into stages.

Owns which model families may be cut and how layers are counted out to stages. Must not know weights or peers.
"""

from __future__ import annotations

from typing import Any

from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, PretrainedConfig

from noloco_node.errors import BadModel

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "olmo2")


def model_config(model: dict[str, Any]) -> PretrainedConfig:
    """The config that `model` (a config.json as a dict) describes. Raises BadModel."""
    family = model.get("model_type", "")
    if family not in FAMILIES:
        raise BadModel(f"model_type {family!r} cannot be trained", f"use one of: {', '.join(FAMILIES)}")
    fields = {name: value for name, value in model.items() if name not in ("model_type", "transformers_version")}
    fields.update(use_cache=False, pad_token_id=None)  # a pad id would zero a row of the embedding
    fields.update(bos_token_id=None, eos_token_id=None)  # the tokenizer's business; set at the export
    try:
        config = AutoConfig.for_model(family, **fields)
    except (TypeError, ValueError, KeyError, StrictDataclassError) as error:
        raise BadModel(
            f"the {family} model config cannot be read: {_one_line(error)}", "compare it with a config.json"
        ) from error
    _check_sizes(config)
    return config


def layer_bounds(config: PretrainedConfig, num_stages: int, stage: int) -> range:
    """Global indices of the layers of `stage`: equal shares, in order. Raises BadModel."""
    layers = config.num_hidden_layers
    if num_stages < 1 or layers % num_stages:
        raise BadModel(
            f"{layers} layers cannot be cut into {num_stages} equal stages",
            "choose num_stages so that it divides num_hidden_layers",
        )
    if config.tie_word_embeddings and num_stages > 1:
        raise BadModel(
            "tied embeddings cannot be split over several stages",
            "set tie_word_embeddings = false in the model config, or num_stages = 1",
        )
    share = layers // num_stages
    return range(stage * share, (stage + 1) * share)


def _check_sizes(config: PretrainedConfig) -> None:
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    if min(config.hidden_size, config.num_hidden_layers, config.vocab_size, heads, kv_heads) < 1:
        raise BadModel("hidden_size, num_hidden_layers, vocab_size and the head counts must be at least 1")
    if heads % kv_heads:
        raise BadModel(f"{heads} attention heads cannot share {kv_heads} key-value heads evenly")
    if "head_dim" not in config.to_dict() and config.hidden_size % heads:
        raise BadModel(f"hidden_size {config.hidden_size} is not divisible by {heads} attention heads")
    if getattr(config, "attention_dropout", 0.0):
        raise BadModel("attention_dropout would make gradients irreproducible", "set attention_dropout = 0.0")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
