"""Sizes of encoded tensors as plain arithmetic."""

from __future__ import annotations

import math

import pytest

from noloco_node.core.codec_sizes import LAYOUTS, encoded_bytes, sketch_bytes

BITS = {"float32": 32, "bfloat16": 16, "int8": 8, "int4": 4, "lattice5": 5, "lattice4": 4}
OVERHEAD = {"int8": 1, "int4": 1, "lattice5": 4, "lattice4": 4}  # bytes a block


@pytest.mark.parametrize("codec", LAYOUTS)
@pytest.mark.parametrize("num_values", [0, 1, 64, 65, 256, 8191, 8192, 8193, 10**9])
def test_size_is_that_of_whole_blocks(codec, num_values):
    width = LAYOUTS[codec].block_values
    blocks = math.ceil(num_values / width)
    assert encoded_bytes(codec, num_values) == blocks * (width * BITS[codec] // 8 + OVERHEAD.get(codec, 0))
    assert sketch_bytes(codec, num_values) == (128 * blocks if codec.startswith("lattice") else 0)


@pytest.mark.parametrize("codec", LAYOUTS)
def test_size_of_a_run_of_blocks_is_the_sum_of_its_parts(codec):
    width = LAYOUTS[codec].block_values
    assert encoded_bytes(codec, 3 * width) + encoded_bytes(codec, 5) == encoded_bytes(codec, 3 * width + 5)


def test_bits_of_a_value_are_the_ones_promised():
    values = 10**9
    bits = {name: 8 * (encoded_bytes(name, values) + sketch_bytes(name, values)) / values for name in LAYOUTS}
    promised = {"float32": 32, "bfloat16": 16, "int8": 8.031, "int4": 4.125, "lattice5": 5.129, "lattice4": 4.129}
    assert bits == pytest.approx(promised, abs=0.001)
