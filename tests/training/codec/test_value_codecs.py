"""Codecs whose bytes tell x: error bounds, scales, and c as the outer update says."""

from __future__ import annotations

import pytest
import torch
from codec_pair import encode, exchange, normal, pairs, tensors
from hypothesis import given, settings

from noloco_node.core import outer_update
from noloco_node.core.outer_update import Coefficients
from noloco_node.errors import RemoteProtocolError
from noloco_node.training.codec import NOTHING, value_codec

VALUE_CODECS = ("float32", "bfloat16", "int8", "int4")
BITS = {"int8": 8, "int4": 4}


def sent(name: str, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Bytes of x, and x as the partner has it."""
    encoded = encode(value_codec(name), x, NOTHING)
    return encoded, value_codec(name).decode(encoded, len(x))


def scales_of(name: str, encoded: torch.Tensor, num_values: int) -> torch.Tensor:
    """float64, one a value, from the first byte of each block."""
    made = value_codec(name)
    fields = encoded.view(-1, made.encoded_bytes(1))[:, 0].double()
    return torch.exp2(fields - 127).repeat_interleave(made.block_values)[:num_values]


@given(x=tensors())
@settings(max_examples=100, deadline=None)
def test_float32_loses_nothing(x):
    assert torch.equal(sent("float32", x)[1].view(torch.int32), x.view(torch.int32))


@given(x=tensors())
@settings(max_examples=100, deadline=None)
def test_bfloat16_is_off_by_half_of_its_last_place_at_most(x):
    error = (sent("bfloat16", x)[1].double() - x.double()).abs()
    assert bool((error <= x.double().abs() * 2.0**-8 + 2.0**-134).all())


def test_bfloat16_rounds_ties_to_even():
    x = torch.tensor([1 + 2.0**-8, 1 + 3 * 2.0**-8, -1 - 2.0**-8])
    assert sent("bfloat16", x)[1].tolist() == [1.0, 1 + 2.0**-6, -1.0]


@pytest.mark.parametrize("name", BITS)
@given(x=tensors())
@settings(max_examples=150, deadline=None)
def test_integers_are_off_by_half_a_scale_at_most(name, x):
    encoded, decoded = sent(name, x)
    error = (decoded.double() - x.double()).abs()
    assert bool((error <= scales_of(name, encoded, len(x)) / 2).all())


@pytest.mark.parametrize("name", BITS)
@given(x=tensors())
@settings(max_examples=100, deadline=None)
def test_scale_is_the_smallest_that_holds_the_block(name, x):
    width, limit = value_codec(name).block_values, 2 ** (BITS[name] - 1) - 0.5
    scales = scales_of(name, sent(name, x)[0], len(x))[::width]
    largest = torch.stack([block.abs().amax() for block in x.double().split(width)])
    assert bool((largest < limit * scales).all())
    assert bool(((largest >= limit * scales / 2) | (scales == 2.0**-126)).all())


@pytest.mark.parametrize("name", BITS)
def test_values_at_the_edge_of_a_scale_keep_the_bound(name):
    limit = 2 ** (BITS[name] - 1) - 0.5
    edge = torch.tensor([limit, limit * (1 - 2.0**-23), limit * (1 + 2.0**-22), limit - 0.5, limit + 0.5])
    for value in torch.cat([edge, -edge]):
        encoded, decoded = sent(name, value[None])
        assert float((decoded - value).abs()) <= float(scales_of(name, encoded, 1)) / 2


@pytest.mark.parametrize("name", BITS)
def test_an_outlier_costs_its_own_block_only(name):
    x, width = normal(1000, 1), value_codec(name).block_values
    calm = sent(name, x)[1]
    x[width + 3] = 1e20
    decoded = sent(name, x)[1]
    assert torch.equal(decoded[:width], calm[:width])
    assert torch.equal(decoded[2 * width :], calm[2 * width :])


@pytest.mark.parametrize("name", BITS)
def test_every_integer_comes_back(name):
    x = torch.arange(-(2 ** (BITS[name] - 1)) + 1, 2 ** (BITS[name] - 1)).float().repeat(7) * 0.125
    assert torch.equal(sent(name, x)[1], x)


@pytest.mark.parametrize(("name", "first_refused"), [("int8", 222), ("int4", 226)])
def test_scale_beyond_any_that_is_sent_is_refused(name, first_refused):
    made = value_codec(name)
    encoded, _ = sent(name, torch.full((made.block_values,), 2.0**100))
    assert encoded[0] == first_refused - 1
    encoded[0] = first_refused
    with pytest.raises(RemoteProtocolError, match="scale"):
        made.decode(encoded, made.block_values)


@pytest.mark.parametrize("name", VALUE_CODECS)
@given(pair=pairs())
@settings(max_examples=50, deadline=None)
def test_correction_is_that_of_the_outer_update_on_what_was_sent(name, pair):
    made = value_codec(name)
    exchanged = exchange(made, *pair)
    a, b = (made.decode(side, len(pair[0])) for side in (exchanged.a, exchanged.b))
    wanted = outer_update.correction(a, b, Coefficients(0.5, 0.7, 0.7))
    assert torch.equal(exchanged.corrections()[0].values.view(torch.int32), wanted.view(torch.int32))


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 2.0**101])
def test_value_that_is_not_finite_is_refused(name, value):
    dtype = torch.float32 if name == "float32" else torch.bfloat16
    theirs = torch.tensor([0.0, value], dtype=dtype).view(torch.uint8)
    with pytest.raises(RemoteProtocolError, match="not finite"):
        value_codec(name).decode(theirs, 2)
