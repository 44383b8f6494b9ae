"""Golden vectors: the bytes of each codec as versions of the node have agreed on them.

The first blocks are also made by a second, plain implementation, so that the vectors cannot just repeat a mistake. A
vector that changes is a new protocol version.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from codec_pair import Exchanged, exchange

from noloco_node.core.seed import integers
from noloco_node.training.codec import NAMES, codec
from noloco_node.training.initialisation import normal_draws

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[2] / "vectors" / "codecs.json").read_text())
SEED, NUM_VALUES = VECTORS["seed"], VECTORS["num_values"]
BLOCK = 8192


def side(name: str, std: float) -> torch.Tensor:
    return torch.from_numpy(np.concatenate(list(normal_draws(SEED, name, NUM_VALUES, std))))


def pair() -> tuple[torch.Tensor, torch.Tensor]:
    """Portable draws: weights, and weights moved by a twentieth of their size."""
    a = side("weights", 0.02)
    return a, a + side("moves", 0.001)


def digest(tensor: torch.Tensor) -> str:
    return hashlib.blake2b(tensor.contiguous().view(torch.uint8).numpy(), digest_size=16).hexdigest()


def found(name: str) -> tuple[Exchanged, dict[str, str]]:
    made, (a, b) = codec(name, SEED), pair()
    exchanged = exchange(made, a, b)
    c = exchanged.corrections()[0].values
    return exchanged, {
        "sketch": digest(made.sketch(made.prepare(a))),
        "begin": bytes(exchanged.a[:40].tolist()).hex(),
        "encoded": digest(exchanged.a),
        "correction": digest(c + 0.0),  # zeros have one sign
    }


@pytest.mark.parametrize("name", NAMES)
def test_golden_bytes_hold(name):
    assert found(name)[1] == VECTORS["codecs"][name]


def plain_integers(block: np.ndarray, bits: int) -> tuple[int, list[int]]:
    """Exponent field and integers, in Fractions."""
    values = [Fraction(float(value)) for value in block]
    limit, exponent = Fraction(2**bits - 1, 2), -126
    while max(map(abs, values)) >= limit * Fraction(2) ** exponent:
        exponent += 1
    return exponent + 127, [round(value / Fraction(2) ** exponent) for value in values]


def plain_float32(x: np.ndarray) -> bytes:
    return struct.pack(f"<{len(x)}f", *x)


def plain_bfloat16(x: np.ndarray) -> bytes:
    words = [struct.unpack("<I", struct.pack("<f", value))[0] for value in x]
    return b"".join(struct.pack("<H", (word + 0x7FFF + (word >> 16 & 1)) >> 16) for word in words)


def plain_int8(x: np.ndarray) -> bytes:
    field, numbers = plain_integers(x[:256], 8)
    return bytes([field, *(number & 0xFF for number in numbers)])


def plain_int4(x: np.ndarray) -> bytes:
    field, numbers = plain_integers(x[:64], 4)
    return bytes([field, *((numbers[i] & 15) | (numbers[i + 32] & 15) << 4 for i in range(32))])


def plain_rotation(x: np.ndarray) -> list[np.float32]:
    words = list(islice(integers(SEED, "codec", "signs"), BLOCK // 64))
    y = [value * np.float32(1 - 2 * (words[i // 64] >> i % 64 & 1)) / np.float32(BLOCK) for i, value in enumerate(x)]
    width = 1
    while width < BLOCK:
        for i in range(BLOCK):
            if not i & width:
                y[i], y[i + width] = y[i] + y[i + width], y[i] - y[i + width]
        width *= 2
    return y


def plain_scale(a: list[np.float32], b: list[np.float32], modulus: int) -> float:
    squares = 0.0
    for place in range(31):
        difference = float(b[place]) - float(a[place])
        squares += difference * difference
    floor = float(max(map(abs, a + b))) / 2**22
    fraction, exponent = math.frexp(max(math.sqrt(squares / 31) * (12.0 / modulus), floor))
    return math.ldexp(math.ceil(fraction * 8), exponent - 3)


def plain_lattice(x: np.ndarray, other: np.ndarray, bits: int) -> bytes:
    modulus = 2**bits - 1
    y = plain_rotation(x)
    scale = np.float32(plain_scale(y, plain_rotation(other), modulus))
    indices = [int(np.rint(value / scale)) for value in y]
    words = islice(integers(SEED, "codec", "check"), BLOCK // 4)
    weights = [word >> shift & 0xFFFF | 1 for word in words for shift in (0, 16, 32, 48)]
    check = sum(index * weight for index, weight in zip(indices, weights, strict=True)) % 2**32
    residues = [index % modulus for index in indices]
    half, eighth = BLOCK // 2, BLOCK // 8
    nibbles = bytes((residues[i] & 15) | (residues[i + half] & 15) << 4 for i in range(half))
    fifth = bytes(sum((residues[i + j * eighth] >> 4) << j for j in range(8)) for i in range(eighth))
    return check.to_bytes(4, "little") + nibbles + (fifth if bits == 5 else b"")


@pytest.mark.parametrize("name", NAMES)
def test_a_plain_implementation_has_the_same_bytes(name):
    exchanged = found(name)[0]
    a, b = (x.numpy()[:BLOCK] for x in pair())
    if name.startswith("lattice"):
        plain = plain_lattice(a, b, int(name[-1]))
    else:
        plain = {"float32": plain_float32, "bfloat16": plain_bfloat16, "int8": plain_int8, "int4": plain_int4}[name](a)
    assert bytes(exchanged.a[: len(plain)].tolist()) == plain
