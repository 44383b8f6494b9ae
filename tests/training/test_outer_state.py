"""Boundary, correction and refusal on real stages; the exactness that partners rely on."""

import numpy as np
import pytest
import torch

from noloco_node.core import limits
from noloco_node.core.outer_update import Coefficients
from noloco_node.errors import LocalProtocolError
from noloco_node.training.architecture import model_config
from noloco_node.training.codec import NAMES
from noloco_node.training.initialisation import draw_weights
from noloco_node.training.norm_gauge import NormGauge
from noloco_node.training.outer_state import PLAIN, ExchangeWay, OuterState
from noloco_node.training.stage import cut_stage


@pytest.fixture
def replica(tiny_model):
    """A replica of one stage, its fast weights moved away from the common start by draws of `seed`."""

    def make(seed: int, gamma: float = 0.7, way: ExchangeWay = PLAIN):
        stage = cut_stage(model_config(tiny_model("qwen2")), 1, 0)
        stage.materialise(torch.device("cpu"))
        draw_weights(stage, 7)
        outer = OuterState(stage, Coefficients(0.5, 0.7, gamma), way)
        outer.start()
        move(stage, seed)
        return stage, outer

    return make


@torch.no_grad()
def move(stage, seed: int) -> None:
    draws = torch.Generator().manual_seed(seed)
    for parameter in stage.parameters():
        parameter += 0.01 * torch.randn(parameter.shape, generator=draws)


def flat(named) -> torch.Tensor:
    return torch.cat([named[name].detach().reshape(-1) for name in sorted(named)])


def fast(stage) -> torch.Tensor:
    return flat(dict(stage.named_parameters()))


def travelling(outer: OuterState, outer_step: int) -> memoryview:
    tensor = outer.tensor(outer_step)
    return tensor.read(0, tensor.size_bytes)


def frozen_x(outer: OuterState, outer_step: int) -> memoryview:
    """x of a boundary taken now, as it travels."""
    outer.take_boundary(outer_step)
    return travelling(outer, outer_step)


def test_boundary_freezes_x_and_steps_locally(replica):
    stage, outer = replica(1)
    theta, phi = fast(stage), flat(outer.slow_weights())
    boundary = outer.take_boundary(0)
    sent = travelling(outer, 0)
    frozen = torch.frombuffer(bytearray(sent), dtype=torch.float32)
    assert torch.equal(frozen, 0.7 * (theta - phi) + 0.7 * phi)
    assert sent.readonly
    assert sent.nbytes == boundary.tensor_bytes == outer.tensor_bytes == 4 * theta.numel()
    assert (len(boundary.tensor_id), boundary.head_bytes, boundary.is_finite) == (limits.DIGEST_BYTES, 0, True)
    assert torch.equal(flat(outer.momentum()), 0.7 * (theta - phi))
    assert torch.equal(fast(stage), phi + 0.7 * (theta - phi))
    assert torch.equal(fast(stage), flat(outer.slow_weights()))


@pytest.mark.parametrize("gamma", [0.7, 0.45])
def test_partners_corrections_are_opposite_bit_for_bit(replica, gamma):
    (_, a), (_, b) = replica(1, gamma), replica(2, gamma)
    x_a, x_b = frozen_x(a, 3), frozen_x(b, 3)
    assert a.verify(3, x_b).reason == b.verify(3, x_a).reason == ""
    c_a, c_b = (outer._open[3].correction for outer in (a, b))
    assert float(c_a.abs().max()) > 0
    np.testing.assert_array_equal(c_a.numpy().view(np.uint32), (-c_b).numpy().view(np.uint32))


def test_correction_moves_momentum_slow_and_fast_weights_alike(replica):
    stage, a = replica(1)
    _, b = replica(2)
    a.take_boundary(0)
    move(stage, 5)  # training went on while x travelled
    before = [flat(a.momentum()), flat(a.slow_weights()), fast(stage)]
    assert a.verify(0, frozen_x(b, 0)).reason == ""
    c = a._open[0].correction.clone()
    a.add_correction(0)
    after = [flat(a.momentum()), flat(a.slow_weights()), fast(stage)]
    assert all(torch.equal(new, old + c) for old, new in zip(before, after, strict=True))


def test_paired_step_equals_the_two_tensor_rule(replica):
    (stage, a), (partner, b) = replica(1), replica(2)
    phi = flat(a.slow_weights()).double()
    gradients = [fast(each).double() - phi for each in (stage, partner)]
    x_b = (a.take_boundary(0), frozen_x(b, 0))[1]
    a.verify(0, x_b)
    a.add_correction(0)
    torch.testing.assert_close(flat(a.slow_weights()).double(), phi + 0.7 * (gradients[0] + gradients[1]) / 2)


@pytest.mark.parametrize("name", NAMES)
def test_with_any_codec_and_fragment_the_pairs_sum_stays_and_the_rest_is_left_alone(replica, name):
    way = ExchangeWay(fragments=3, codec=name, seed=5)
    pair = [replica(seed, way=way) for seed in (1, 2)]
    k, part = 4, pair[0][1]._fragments[1].of_vector
    for _, outer in pair:
        outer.take_boundary(k)
    local = [flat(outer.slow_weights()) for _, outer in pair]
    heads = [outer.tensor(k).read(0, max(1, outer.tensor(k).head_bytes)) for _, outer in pair]
    if pair[0][1].tensor(k).head_bytes:
        for (_, outer), theirs in zip(pair, reversed(heads), strict=True):
            outer.tensor(k).meet(theirs)
    sent = [in_pieces(outer.tensor(k), 5000) for _, outer in pair]
    for (_, outer), theirs in zip(pair, reversed(sent), strict=True):
        assert outer.verify(k, theirs).reason == ""
    c_a, c_b = (outer._open[k].correction for _, outer in pair)
    assert torch.equal(c_a, -c_b)
    assert float(c_a.abs().max()) > 0
    for _, outer in pair:
        outer.add_correction(k)
    moved = [flat(outer.slow_weights()) - before for (_, outer), before in zip(pair, local, strict=True)]
    assert all(float(each[part].abs().max()) > 0 for each in moved)
    assert all(int(each.count_nonzero()) == int(each[part].count_nonzero()) for each in moved)


def in_pieces(tensor, most: int) -> memoryview:
    """As it travels, read piece by piece."""
    parts, start = [], 0
    while start < tensor.size_bytes:
        parts.append(bytes(tensor.read(start, min(start + most, tensor.size_bytes))))
        start += len(parts[-1])
    return memoryview(b"".join(parts))


def test_boundary_says_when_x_is_not_fit_to_be_sent(replica):
    stage, outer = replica(1)
    with torch.no_grad():
        next(stage.parameters()).view(-1)[3] = float("nan")
    assert not outer.take_boundary(0).is_finite


def test_a_correction_is_added_once_and_a_dropped_one_never(replica):
    (_, a), (_, b) = replica(1), replica(2)
    a.take_boundary(0)
    x_b = frozen_x(b, 0)
    a.verify(0, x_b)
    a.add_correction(0)
    with pytest.raises(LocalProtocolError):
        a.add_correction(0)
    a.verify(0, x_b)
    a.drop_correction(0)
    with pytest.raises(LocalProtocolError):
        a.add_correction(0)
    a.release(0)
    assert "nothing is kept" in a.verify(0, x_b).reason


def test_spread_is_the_distance_of_the_fast_weights_at_the_boundary(replica):
    (stage, a), (partner, b) = replica(1), replica(2)
    distance = float((fast(stage) - fast(partner)).pow(2).mean().sqrt())
    a.take_boundary(0)
    assert a.verify(0, frozen_x(b, 0)).spread == pytest.approx(distance, rel=1e-4)


def damaged(tensor: memoryview, place: int, value: float) -> memoryview:
    copy = np.frombuffer(tensor, np.float32).copy()
    copy[place] = value
    return memoryview(copy).cast("B")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_tensor_that_is_not_finite_is_refused(replica, value):
    (_, a), (_, b) = replica(1), replica(2)
    a.take_boundary(0)
    x_b = frozen_x(b, 0)
    for place in (0, -1):
        assert a.verify(0, damaged(x_b, place, value)).reason == "tensor is not finite"
    with pytest.raises(LocalProtocolError):
        a.add_correction(0)


def test_difference_that_overflows_is_refused(replica):
    (_, a), (_, b) = replica(1), replica(2)
    a.take_boundary(0)
    huge = damaged(frozen_x(b, 0), 3, 3e38)
    assert "not finite" in a.verify(0, huge).reason


def test_tensor_of_another_size_is_refused(replica):
    _, a = replica(1)
    tensor = frozen_x(a, 0)
    for wrong in (tensor[:-4], memoryview(bytes(tensor) + b"\0\0\0\0"), memoryview(b"")):
        assert "bytes, expected" in a.verify(0, wrong).reason


def test_norm_far_above_the_usual_is_refused_and_not_learnt():
    gauge = NormGauge()
    assert [gauge.judge(norm) for norm in [1.0, 900.0] + [1.0] * limits.NORM_MEDIAN_MIN] == [""] * 6
    for _ in range(40):
        assert "far above" in gauge.judge(1.01 * limits.NORM_FACTOR_MAX)
    assert gauge.judge(0.99 * limits.NORM_FACTOR_MAX) == ""
    assert "not finite" in gauge.judge(float("nan"))


def test_gauge_of_equal_replicas_refuses_nothing():
    gauge = NormGauge()
    assert [gauge.judge(norm) for norm in [0.0] * 8 + [1.0]] == [""] * 9
