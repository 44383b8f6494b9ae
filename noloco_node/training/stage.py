"""One pipeline stage of a decoder-only model, cut from transformers' own modules.

Owns the layers of its stage (the first stage the token embedding too, the last the final norm and the head) under
their Hugging Face names, so that stages put together are a checkpoint of the whole model. The whole model exists on
the meta device only; no memory is taken for other stages. Must not know seats, optimizers or peers.

Shapes: B rows, T tokens, D hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForCausalLM, PretrainedConfig
from transformers.masking_utils import create_causal_mask, create_sliding_window_causal_mask

from noloco_node.errors import BadModel
from noloco_node.training.architecture import layer_bounds

IGNORED_LABEL = -100


class Stage(nn.Module):
    """Layers `layers` (global indices) of the model. Build it with `cut_stage`."""

    def __init__(self, full: nn.Module, layers: range) -> None:
        super().__init__()
        config: Any = full.config
        self.config = config
        self.layers = layers
        self.is_first = layers.start == 0
        self.is_last = layers.stop == config.num_hidden_layers
        self.keep_inputs_only = False  # activation checkpointing: a layer runs again in the backward
        self._full = (full,)  # a tuple, so that the whole (meta) model is not registered as a part of this one
        self.model = _body(full, layers, self.is_first, self.is_last)
        if self.is_last:
            self.lm_head = full.lm_head

    def materialise(self, device: torch.device) -> None:
        """Give the parameters memory on `device` (unset) and restore the buffers, which are no part of a checkpoint."""
        self.to_empty(device=device)
        if self.config.tie_word_embeddings and self.is_first and self.is_last:
            self.lm_head.weight = self.model.embed_tokens.weight
        for module in self.modules():
            if next(module.buffers(recurse=False), None) is not None:
                self.reset_module(module)

    def reset_module(self, module: nn.Module) -> None:
        """The family's own initial values of one module: norms and buffers (matrices: see initialisation)."""
        self._full[0]._init_weights(module)

    def forward(self, inputs: Tensor, position_ids: Tensor) -> Tensor:
        """Ids (B, T) or hidden (B, T, D), and position ids (B, T), to hidden (B, T, D) or, at last, logits (B, T, V).

        Position ids restart at each document; with no attention mask and no cache that makes attention block-diagonal.
        """
        hidden = self.model.embed_tokens(inputs) if self.is_first else inputs
        rotary = self.model.rotary_emb(hidden, position_ids)
        masks = self._masks(hidden, position_ids)
        for index in self.layers:
            layer = partial(
                self.model.layers[str(index)],
                attention_mask=masks[self._attention_kind(index)],
                position_ids=position_ids,
                cache=None,
                use_cache=False,
                position_embeddings=rotary,
            )
            hidden = self._run(layer, hidden)
        return self.lm_head(self.model.norm(hidden)) if self.is_last else hidden

    def compile_layers(self) -> None:
        """Let torch.compile make each layer's code at its first forward. Layers of one shape share it."""
        for layer in self.model.layers.values():
            layer.compile(dynamic=False)

    def _run(self, layer: Callable[[Tensor], Tensor], hidden: Tensor) -> Tensor:
        """No dropout is allowed in a model, so the second run needs no state of a random generator."""
        if self.keep_inputs_only and torch.is_grad_enabled():
            return checkpoint(layer, hidden, use_reentrant=False, preserve_rng_state=False)
        return layer(hidden)

    def _masks(self, hidden: Tensor, position_ids: Tensor) -> dict[str, Tensor | None]:
        make = {"full_attention": create_causal_mask, "sliding_attention": create_sliding_window_causal_mask}
        return {
            kind: make[kind](
                config=self.config, inputs_embeds=hidden, attention_mask=None, cache=None, position_ids=position_ids
            )
            for kind in sorted({self._attention_kind(index) for index in self.layers})
        }

    def _attention_kind(self, index: int) -> str:
        kinds = getattr(self.config, "layer_types", None)
        if kinds:
            return kinds[index]
        slides = self.config.model_type == "mistral" and self.config.sliding_window
        return "sliding_attention" if slides else "full_attention"


def cut_stage(config: PretrainedConfig, num_stages: int, stage: int) -> Stage:
    """Stage number `stage` on the meta device: names and shapes, no memory. Raises BadModel."""
    layers = layer_bounds(config, num_stages, stage)
    try:
        with torch.device("meta"):
            full = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=torch.float32)
    except (TypeError, ValueError, RuntimeError, KeyError) as error:
        raise BadModel(
            f"the model cannot be built: {str(error).splitlines()[0]}", "check the sizes in its config"
        ) from error
    full.train()
    return Stage(full, layers)


def loss_sum(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy *summed* over the labels (B, T), shifted already, that are not -100; logits (B, T, V).

    A sum, so that gradients add up over micro-batches and are divided by the tokens once, at the inner step.
    """
    rows = logits.float().view(-1, logits.shape[-1])
    return functional.cross_entropy(rows, labels.reshape(-1), ignore_index=IGNORED_LABEL, reduction="sum")


def count_tokens(labels: Tensor) -> int:
    """How many labels are trained on."""
    return int((labels != IGNORED_LABEL).sum())


def _body(full: nn.Module, layers: range, is_first: bool, is_last: bool) -> nn.Module:
    body, whole = nn.Module(), full.model
    if is_first:
        body.embed_tokens = whole.embed_tokens
    body.layers = nn.ModuleDict({str(index): whole.layers[index] for index in layers})
    if is_last:
        body.norm = whole.norm
    body.rotary_emb = whole.rotary_emb
    return body
