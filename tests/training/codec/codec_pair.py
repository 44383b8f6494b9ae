"""Two sides of one exchange that use one codec, and values for them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from noloco_node.training.codec import Codec, Correction

LARGEST = 2.0**100
FLOATS = st.floats(-LARGEST, LARGEST, width=32, allow_subnormal=True)
ORDINARY = st.floats(-1.0, 1.0, width=32)


@st.composite
def tensors(draw, num_values: int | None = None) -> torch.Tensor:
    """Zeros, denormals, ordinary and huge values, or ordinary ones with a single outlier."""
    length = num_values or draw(st.integers(1, 600))
    elements = draw(st.sampled_from([ORDINARY, FLOATS, st.floats(-(2.0**-126), 2.0**-126, width=32), st.just(0.0)]))
    values = draw(arrays(np.float32, length, elements=elements, fill=elements))
    if draw(st.booleans()):
        values[draw(st.integers(0, length - 1))] = draw(FLOATS)
    return torch.from_numpy(values)


@st.composite
def pairs(draw) -> tuple[torch.Tensor, torch.Tensor]:
    """Two sides' x: strangers to each other, or near."""
    a = draw(tensors())
    if draw(st.booleans()):
        return a, draw(tensors(len(a)))
    nearness = 2.0 ** draw(st.integers(-24, 0))
    moved = torch.from_numpy(draw(arrays(np.float32, len(a), elements=ORDINARY)))
    return a, (a * (1 + nearness * moved)).clamp(-LARGEST, LARGEST)


def normal(num_values: int, seed: int, std: float = 0.02) -> torch.Tensor:
    return std * torch.randn(num_values, generator=torch.Generator().manual_seed(seed))


@dataclass
class Exchanged:
    codec: Codec
    scales: torch.Tensor
    a: torch.Tensor  # encoded
    b: torch.Tensor
    num_values: int

    def corrections(self) -> tuple[Correction, Correction]:
        return (
            self.codec.correction(self.a, self.b, self.scales, self.num_values),
            self.codec.correction(self.b, self.a, self.scales, self.num_values),
        )


def exchange(codec: Codec, a: torch.Tensor, b: torch.Tensor) -> Exchanged:
    prepared = [codec.prepare(x) for x in (a, b)]
    sketches = [codec.sketch(each) for each in prepared]
    scales = codec.scales(*sketches)
    assert torch.equal(scales, codec.scales(*reversed(sketches)))
    encoded = [encode(codec, each, scales) for each in prepared]
    return Exchanged(codec, scales, *encoded, len(a))


def encode(codec: Codec, prepared: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    out = torch.empty(codec.encoded_bytes(len(prepared)), dtype=torch.uint8)
    codec.encode(prepared, scales, out)
    return out


def random_bytes(count: int, seed: int) -> torch.Tensor:
    return torch.randint(0, 256, (count,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
