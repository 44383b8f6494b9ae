"""The modulo lattice code: its error bound, its wraps, its sketch and its rotation."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from codec_pair import encode, exchange, normal, pairs, random_bytes
from hypothesis import given, settings
from hypothesis import strategies as st

from noloco_node.errors import BadSpec, RemoteProtocolError
from noloco_node.training.codec import codec, value_codec
from noloco_node.training.codec.lattice import _draws
from noloco_node.training.codec.rotation import draw_signs, hadamard

BLOCK = 8192
STEPS_MAX = {"lattice4": 7, "lattice5": 15}
SEED = 5
every_lattice = pytest.mark.parametrize("name", STEPS_MAX)


def in_blocks(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(x.double(), (0, -len(x) % BLOCK)).view(-1, BLOCK)


def rotated(x: torch.Tensor) -> torch.Tensor:
    """In float64."""
    return hadamard(in_blocks(x) * draw_signs(SEED, BLOCK)) / BLOCK


def rounding(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """What float32 loses in thirteen levels of sums, per block."""
    return 14 * 2.0**-23 * (in_blocks(a.abs()) + in_blocks(b.abs())).mean(1)


@every_lattice
@given(pair=pairs())
@settings(max_examples=60, deadline=None)
def test_rotated_difference_is_off_by_a_scale_at_most_or_refused(name, pair):
    exchanged = exchange(codec(name, SEED), *pair)
    c = exchanged.corrections()[0]
    if c.refused_blocks:
        assert not bool(c.values.any())
        return
    scale = exchanged.scales.double()
    a, b = pair
    kept = torch.zeros(BLOCK, dtype=torch.float64)
    kept[: len(a)] = 1  # of the block that is filled up, only x's own places are returned: their error in the mean
    error = (in_blocks(c.values) - (in_blocks(b) - in_blocks(a)) / 2) * kept
    assert float(error.norm()) <= float((0.75 * scale + rounding(a, b))[0]) * BLOCK


@every_lattice
def test_error_is_as_large_as_two_roundings_make_it(name):
    """Of a whole block: one scale at most in each rotated place, scale / sqrt(6) in the mean."""
    a = normal(4 * BLOCK, 1)
    b = a + normal(4 * BLOCK, 2, 0.001)
    exchanged = exchange(codec(name, SEED), a, b)
    error = (2 * rotated(exchanged.corrections()[0].values) - rotated(b - a)) / exchanged.scales[:, None]
    assert float(error.abs().max()) <= 1.01
    assert float(error.square().mean().sqrt()) == pytest.approx(6**-0.5, rel=0.03)


@every_lattice
@pytest.mark.parametrize("distance", [1e-2, 1e-4, 1e-5])
def test_error_is_small_against_the_difference_however_near_the_partners_are(name, distance):
    a = normal(8 * BLOCK, 1)
    b = a + normal(8 * BLOCK, 2, 0.02 * distance)
    c = exchange(codec(name, SEED), a, b).corrections()[0]
    assert c.refused_blocks == 0
    error = (c.values - (b - a) / 2).norm() / ((b - a) / 2).norm()
    assert float(error) < {"lattice4": 0.5, "lattice5": 0.25}[name]


@every_lattice
def test_partners_that_only_exchange_meet(name):
    """The distance falls from round to round: there is no floor as with int4."""
    a, b = normal(3 * BLOCK, 1), normal(3 * BLOCK, 2)
    begun = float((b - a).norm())
    for seed in range(14):
        c_a, c_b = exchange(codec(name, seed), a, b).corrections()
        a, b = a + c_a.values, b + c_b.values
    assert float((b - a).norm()) < 1e-4 * begun


@every_lattice
def test_difference_that_stands_in_few_places_is_told_as_well(name):
    a = normal(2 * BLOCK, 1)
    b = a.clone()
    b[5], b[BLOCK + 9] = 3.0, -50.0
    c = exchange(codec(name, SEED), a, b).corrections()[0]
    assert c.refused_blocks == 0
    assert float((c.values - (b - a) / 2).norm()) < 0.5 * float(((b - a) / 2).norm())


@every_lattice
def test_equal_partners_have_no_correction(name):
    a = normal(BLOCK, 1)
    c = exchange(codec(name, SEED), a, a.clone()).corrections()[0]
    assert c.refused_blocks == 0
    assert not bool(c.values.any())


@every_lattice
def test_spacing_is_never_finer_than_x_itself_is(name):
    a = normal(BLOCK, 1)
    exchanged = exchange(codec(name, SEED), a, a.clone())
    assert float(exchanged.scales[0]) >= float(rotated(a).abs().max()) * 2.0**-22 * 0.999


@every_lattice
@pytest.mark.parametrize("wraps", [-3, -1, 1, 2, 16, 256, 1000])
@pytest.mark.parametrize("place", [0, 1, 4095, 4096, BLOCK - 1])
def test_a_lone_wrap_is_refused_on_both_sides_and_only_there(name, wraps, place):
    made, x = codec(name, SEED), normal(2 * BLOCK, 1)
    a = made.prepare(x)
    modulus, scales = 2 * STEPS_MAX[name] + 1, torch.full((2,), 2.0**-16)
    b = (a / 2.0**-16).round() * 2.0**-16
    a = b.clone()
    b[place] += wraps * modulus * 2.0**-16
    b[BLOCK + 5] += STEPS_MAX[name] * 2.0**-16
    sides = [encode(made, each, scales) for each in (a, b)]
    for own, theirs in (sides, sides[::-1]):
        c = made.correction(own, theirs, scales, len(x))
        assert c.refused_blocks == 1
        assert not bool(c.values[:BLOCK].any())
        assert bool(c.values[BLOCK:].any())


@every_lattice
def test_scale_far_too_small_is_refused(name):
    made = codec(name, SEED)
    a, b = (made.prepare(normal(BLOCK, seed)) for seed in (1, 2))
    scales = torch.full((1,), 2.0**-20)
    sides = [encode(made, each, scales) for each in (a, b)]
    assert made.correction(*sides, scales, BLOCK).refused_blocks == 1


@every_lattice
def test_largest_steps_are_told_apart(name):
    """Differences of exactly (m - 1) / 2 steps, either way: no tie."""
    made, most = codec(name, SEED), STEPS_MAX[name]
    scales = torch.full((1,), 2.0**-10)
    a = torch.randint(-400, 400, (BLOCK,), generator=torch.Generator().manual_seed(1)).float() * 2.0**-10
    steps = torch.randint(0, 2, (BLOCK,), generator=torch.Generator().manual_seed(2)) * 2.0 - 1
    b = a + steps * most * 2.0**-10
    c = made.correction(encode(made, a, scales), encode(made, b, scales), scales, BLOCK)
    assert c.refused_blocks == 0
    assert torch.equal(rotated(c.values) * 2, ((b - a).double())[None])


@every_lattice
@given(seed=st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_any_sketch_gives_finite_corrections_or_is_refused(name, seed):
    made, x = codec(name, SEED), normal(BLOCK, 1)
    prepared = made.prepare(x)
    own = made.sketch(prepared)
    theirs = random_bytes(len(own), seed)
    if seed % 3:  # all of them finite, and some huge
        theirs.view(torch.int32).bitwise_and_(0x717FFFFF)
    try:
        scales = made.scales(own, theirs)
    except RemoteProtocolError:
        return
    assert torch.equal(scales, made.scales(theirs, own))
    c = made.correction(encode(made, prepared, scales), random_bytes(made.encoded_bytes(BLOCK), seed), scales, BLOCK)
    assert bool(torch.isfinite(c.values).all())


def test_spacing_is_a_small_integer_times_a_power_of_two():
    made = codec("lattice4", SEED)
    a, b = normal(40 * BLOCK, 1), normal(40 * BLOCK, 2)
    mantissas = torch.frexp(made.scales(made.sketch(made.prepare(a)), made.sketch(made.prepare(b))))[0] * 8
    assert torch.equal(mantissas, mantissas.round())
    assert len(mantissas.unique()) > 1


def test_other_seeds_turn_otherwise():
    x = normal(BLOCK, 1)
    assert not torch.equal(codec("lattice4", 1).prepare(x), codec("lattice4", 2).prepare(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_transform_is_hadamards_matrix(dtype):
    matrix = np.array([[1]])
    for _ in range(6):
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    rows = torch.randint(-50, 50, (3, 64), generator=torch.Generator().manual_seed(1)).to(dtype)
    np.testing.assert_array_equal(hadamard(rows.clone()).numpy(), rows.numpy() @ matrix)


def test_transform_twice_is_the_identity_on_integers():
    rows = torch.randint(-7, 8, (2, BLOCK), generator=torch.Generator().manual_seed(1)).float()
    assert torch.equal(hadamard(hadamard(rows.clone())) / BLOCK, rows)


@every_lattice
def test_lattice_tells_differences_only(name):
    with pytest.raises(BadSpec, match="differences only"):
        value_codec(name)


def test_zeros_have_the_least_spacing_and_send_zeros():
    exchanged = exchange(codec("lattice4", SEED), torch.zeros(9), torch.zeros(9))
    assert exchanged.scales.tolist() == [2.0**-110]
    assert not bool(exchanged.a.any())


def test_weights_of_the_check_are_odd():
    """A lone wrap by any number of moduli below 2^32 changes it."""
    weights = _draws(SEED, BLOCK)[1]
    assert bool((weights % 2 == 1).all())
    assert float(weights.max()) < 2**16
    assert len(weights.unique()) > BLOCK // 2
