"""What every codec promises: opposite corrections, exact sizes, pieces equal to the whole, strangers' bytes refused."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from codec_pair import encode, exchange, normal, pairs, random_bytes
from hypothesis import given, settings
from hypothesis import strategies as st

from noloco_node.core import codec_sizes
from noloco_node.errors import BadSpec, LocalProtocolError, RemoteProtocolError
from noloco_node.training.codec import NAMES, codec, value_codec
from noloco_node.training.codec.blocks import PIECE_VALUES

every_codec = pytest.mark.parametrize("name", NAMES)
NUM_VALUES = 3 * 8192 + 77


def near_pair(num_values: int = NUM_VALUES) -> tuple[torch.Tensor, torch.Tensor]:
    a = normal(num_values, 1)
    return a, a + normal(num_values, 2, 0.001)


@every_codec
@given(pair=pairs(), seed=st.integers(0, 2**64 - 1))
@settings(max_examples=60, deadline=None)
def test_corrections_are_opposite_bit_for_bit_whatever_x_is(name, pair, seed):
    c_a, c_b = exchange(codec(name, seed), *pair).corrections()
    assert torch.equal(c_a.values, -c_b.values)
    assert bool(torch.isfinite(c_a.values).all())
    assert c_a.values.dtype is torch.float32
    assert c_a.values.shape == pair[0].shape
    assert c_a.refused_blocks == c_b.refused_blocks


@every_codec
def test_a_pairs_sum_is_kept_and_its_distance_shrinks(name):
    a, b = near_pair()
    c_a, c_b = (c.values.double() for c in exchange(codec(name, 3), a, b).corrections())
    assert not bool((c_a + c_b).any())
    assert float(c_a.norm()) > 0
    if name != "int4":  # its steps are larger than this distance
        moved = (b + c_b) - (a + c_a)
        assert float(moved.norm()) < 0.5 * float((b - a).norm())


@every_codec
def test_pieces_are_the_whole(name):
    """Encoded and corrected block by block, at any cut, into parts of one buffer."""
    made = codec(name, 3)
    a, b = near_pair(PIECE_VALUES + NUM_VALUES)
    whole = exchange(made, a, b)
    prepared, out = made.prepare(a), torch.zeros_like(whole.a)
    c = torch.empty(whole.num_values)
    cuts = [0, made.block_values, 8192 * 5, PIECE_VALUES + 8192, whole.num_values]
    for start, stop in pairwise(cuts):
        part = slice(made.encoded_bytes(start), made.encoded_bytes(stop))
        blocks = slice(start // made.block_values, -(-stop // made.block_values))
        end = len(prepared) if stop == whole.num_values else stop
        made.encode(prepared[start:end], whole.scales[blocks], out[part])
        piece = made.correction(whole.a[part], whole.b[part], whole.scales[blocks], stop - start)
        c[start:stop] = piece.values
    assert torch.equal(out, whole.a)
    assert torch.equal(c, whole.corrections()[0].values)


@every_codec
def test_every_piece_begins_at_a_block(name):
    assert PIECE_VALUES % codec(name).block_values == 0


@every_codec
@pytest.mark.parametrize("num_values", [1, 63, 64, 65, 257, 8192, 8193])
def test_sizes_are_those_of_the_core(name, num_values):
    made, (a, b) = codec(name), near_pair(num_values)
    exchanged = exchange(made, a, b)
    assert exchanged.a.numel() == codec_sizes.encoded_bytes(name, num_values)
    assert made.sketch(made.prepare(a)).numel() == codec_sizes.sketch_bytes(name, num_values)
    assert exchanged.corrections()[0].values.numel() == num_values


@every_codec
def test_bytes_do_not_depend_on_threads(name):
    a, b = near_pair(PIECE_VALUES)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            exchanged = exchange(codec(name, 3), a, b)
            found.append((exchanged.scales, exchanged.a, exchanged.corrections()[0].values))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(x, y) for other in found[1:] for x, y in zip(found[0], other, strict=True))


@every_codec
def test_bytes_may_begin_anywhere_in_memory(name):
    made, (a, b) = codec(name, 3), near_pair()
    whole = exchange(made, a, b)
    shifted = [torch.cat([torch.zeros(3, dtype=torch.uint8), side])[3:] for side in (whole.a, whole.b)]
    out = torch.empty(len(whole.a) + 5, dtype=torch.uint8)[5:]
    made.encode(made.prepare(a), whole.scales, out)
    assert torch.equal(out, whole.a)
    moved = made.correction(*shifted, whole.scales, len(a))
    assert torch.equal(moved.values, whole.corrections()[0].values)


@every_codec
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 2.0**101, -(2.0**101)])
@pytest.mark.parametrize("place", [0, 8191, 8192, NUM_VALUES - 1])
def test_state_that_is_not_finite_is_never_sent(name, value, place):
    x = near_pair()[0]
    x[place] = value if name not in ("lattice4", "lattice5") else value * 2**20
    made = codec(name)
    with pytest.raises(FloatingPointError, match="not sent"):  # noqa: PT012 - a lattice says it at the sketch
        prepared = made.prepare(x)
        sketch = made.sketch(prepared)
        encode(made, prepared, made.scales(sketch, sketch))


@every_codec
@pytest.mark.parametrize("excess", [-1, 1])
def test_tensor_of_another_size_is_refused(name, excess):
    made, (a, b) = codec(name), near_pair(300)
    whole = exchange(made, a, b)
    wrong = random_bytes(len(whole.b) + excess, 0)
    with pytest.raises(RemoteProtocolError, match="bytes, expected"):
        made.correction(whole.a, wrong, whole.scales, 300)
    with pytest.raises(LocalProtocolError):
        made.encode(made.prepare(a), whole.scales, wrong)
    with pytest.raises(RemoteProtocolError):
        made.scales(made.sketch(made.prepare(a)), random_bytes(made.sketch_bytes(300) + 1, 0))


@every_codec
@given(seed=st.integers(0, 2**32), fill=st.sampled_from([None, 0, 0x7F, 0x80, 0xFF]))
@settings(max_examples=80, deadline=None)
def test_any_bytes_are_finite_or_refused(name, seed, fill):
    made, (a, b) = codec(name), near_pair(700)
    whole = exchange(made, a, b)
    theirs = random_bytes(len(whole.b), seed) if fill is None else torch.full_like(whole.b, fill)
    try:
        c = made.correction(whole.a, theirs, whole.scales, 700).values
    except RemoteProtocolError:
        return
    assert bool(torch.isfinite(c).all())
    back = made.correction(theirs, whole.a, whole.scales, 700).values
    assert torch.equal(c, -back)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@every_codec
def test_bytes_and_corrections_are_the_same_on_a_gpu(name):
    a, b = near_pair()
    here, there = exchange(codec(name, 3), a, b), exchange(codec(name, 3), a.cuda(), b.cuda())
    assert torch.equal(here.a, there.a)
    moved = there.codec.correction(there.a.cuda(), there.b.cuda(), there.scales, len(a))
    assert torch.equal(moved.values.cpu(), here.corrections()[0].values)


def test_unknown_codec_is_told_with_those_that_there_are():
    for call in (codec, value_codec, lambda name: codec_sizes.encoded_bytes(name, 5)):
        with pytest.raises(BadSpec, match="'zip' is not known") as found:
            call("zip")
        assert "lattice4" in found.value.advice
