"""Llama configs of about a given number of parameters, and the shapes of their tensors."""

from __future__ import annotations

import math
from typing import Any

FLOAT_BYTES = 4
VOCAB = 260
HIDDEN = ((40_000_000, 1024), (8_000_000, 512), (0, 256))  # from so many parameters on


def llama_of(parameters: int) -> dict[str, Any]:
    """Sections of a run spec's `model`. The nearest number of layers, at least one."""
    hidden = next(size for least, size in HIDDEN if parameters >= least)
    inner = hidden * 8 // 3 // 8 * 8
    layer = 4 * hidden**2 + 3 * hidden * inner + 2 * hidden
    layers = max(1, round((parameters - 2 * VOCAB * hidden - hidden) / layer))
    return {
        "vocab_size": VOCAB,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": hidden // 64,
        "num_key_value_heads": hidden // 64,
    }


def shapes_of(parameters: int) -> list[tuple[int, ...]]:
    """Of the one stage's parameters, in the order of their names in transformers."""
    sizes = llama_of(parameters)
    hidden, inner, vocab = sizes["hidden_size"], sizes["intermediate_size"], sizes["vocab_size"]
    attention = [(hidden, hidden)] * 4  # k, o, q, v
    layer = [(hidden,), (hidden, inner), (inner, hidden), (inner, hidden), (hidden,), *attention]
    return [(vocab, hidden), (vocab, hidden), *layer * sizes["num_hidden_layers"], (hidden,)]


def count_of(parameters: int) -> int:
    """Parameters that the config really has."""
    return sum(math.prod(shape) for shape in shapes_of(parameters))
