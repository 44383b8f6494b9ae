"""Mode prefetch on real stages: phi travels before the boundary, Delta after it; c is that of joint, and opposite."""

import asyncio
from dataclasses import replace

import pytest
import torch

from noloco_node.core import codec_sizes
from noloco_node.core.outer_update import Coefficients
from noloco_node.core.types import Seat
from noloco_node.errors import LocalProtocolError
from noloco_node.training.architecture import model_config
from noloco_node.training.codec import NAMES
from noloco_node.training.initialisation import draw_weights
from noloco_node.training.lane import TrainingLane
from noloco_node.training.outer_state import ExchangeWay, OuterState
from noloco_node.training.settings import TrainerPlace
from noloco_node.training.stage import cut_stage

K = 3
CODECS = [name for name in NAMES if not name.startswith("lattice")]


@pytest.fixture
def replica(tiny_model):
    """A replica of one stage whose slow and fast weights both differ from the other's."""

    def make(seed: int, codec: str = "float32", gamma: float = 0.7, *, prefetch: bool = True):
        stage = cut_stage(model_config(tiny_model("qwen2")), 1, 0)
        stage.materialise(torch.device("cpu"))
        draw_weights(stage, 7)
        move(stage, seed)
        outer = OuterState(stage, Coefficients(0.5, 0.7, gamma), ExchangeWay(codec=codec, prefetch=prefetch))
        outer.start()
        move(stage, seed + 10)
        return outer

    return make


@torch.no_grad()
def move(stage, seed: int) -> None:
    draws = torch.Generator().manual_seed(seed)
    for parameter in stage.parameters():
        parameter += 0.01 * torch.randn(parameter.shape, generator=draws)


def travelling(outer: OuterState, start: int = 0) -> memoryview:
    tensor = outer.tensor(K)
    pieces = []
    while start < tensor.size_bytes:
        pieces.append(bytes(tensor.read(start, min(start + 4096, tensor.size_bytes))))
        start += len(pieces[-1])
    return memoryview(b"".join(pieces))


def corrections(pair: list[OuterState]) -> list[torch.Tensor]:
    for outer in pair:
        outer.take_boundary(K)
    sent = [travelling(outer) for outer in pair]
    for outer, theirs in zip(pair, reversed(sent), strict=True):
        assert outer.verify(K, theirs).reason == ""
    return [outer._open[K].correction for outer in pair]


@pytest.mark.parametrize("gamma", [0.7, 0.45])
@pytest.mark.parametrize("codec", CODECS)
def test_corrections_are_opposite_bit_for_bit_and_near_those_of_joint(replica, codec, gamma):
    c_a, c_b = corrections([replica(seed, codec, gamma) for seed in (1, 2)])
    assert torch.equal(c_a, -c_b)  # a zero may have either sign
    lossless, _ = corrections([replica(seed, gamma=gamma, prefetch=False) for seed in (1, 2)])
    tolerance = {"float32": 1e-6, "bfloat16": 4e-3, "int8": 4e-3, "int4": 1e-2}[codec]  # weights of the norms are 1
    assert float((c_a - lossless).abs().max()) < tolerance
    assert float(lossless.abs().max()) > 0.01


@pytest.mark.parametrize("codec", CODECS)
def test_slow_weights_can_be_read_before_the_boundary_and_are_first_in_the_tensor(replica, codec):
    outer = replica(1, codec)
    frozen = outer.freeze_slow_weights(K)
    tensor = outer.tensor(K)
    assert tensor.known_bytes == codec_sizes.encoded_bytes(codec_sizes.slow_codec(codec), outer.size)
    assert frozen.tensor_bytes == tensor.known_bytes + codec_sizes.encoded_bytes(codec, outer.size)
    ahead = bytes(tensor.read(0, tensor.known_bytes))
    with pytest.raises(LocalProtocolError):
        tensor.read(tensor.known_bytes, tensor.known_bytes + 64)
    boundary = outer.take_boundary(K)
    assert (boundary.tensor_id, boundary.tensor_bytes) == (frozen.tensor_id, frozen.tensor_bytes)
    assert bytes(travelling(outer))[: len(ahead)] == ahead


def test_the_tensor_is_the_same_whether_or_not_phi_went_ahead(replica):
    early, late = replica(1), replica(1)
    early.freeze_slow_weights(K)
    early.freeze_slow_weights(K)
    for outer in (early, late):
        outer.take_boundary(K)
    assert travelling(early) == travelling(late)
    assert torch.equal(early._slow, late._slow)


def test_a_float32_tensor_is_phi_then_delta(replica):
    outer = replica(1)
    phi = outer._slow.clone()
    theta = torch.cat([p.detach().reshape(-1) for p in outer._parameters.values()])
    outer.take_boundary(K)
    sent = torch.frombuffer(bytearray(travelling(outer)), dtype=torch.float32)
    assert torch.equal(sent, torch.cat([phi, theta - phi]))


def test_what_is_released_before_the_boundary_is_frozen_anew_under_another_name(replica):
    outer = replica(1)
    first = outer.freeze_slow_weights(K)
    outer.release(K)
    assert outer.take_boundary(K).tensor_id != first.tensor_id


def test_slow_weights_that_are_not_finite_are_told(replica):
    outer = replica(1)
    outer._slow[5] = float("nan")
    assert not outer.freeze_slow_weights(K).is_finite
    assert not outer.take_boundary(K).is_finite


@pytest.mark.parametrize("part", ["phi", "delta"])
def test_a_tensor_that_is_not_finite_in_either_part_is_refused(replica, part):
    one, other = replica(1), replica(2)
    for outer in (one, other):
        outer.take_boundary(K)
    sent = torch.frombuffer(bytearray(travelling(other)), dtype=torch.float32)
    sent[7 if part == "phi" else other.size + 7] = float("inf")
    assert "not finite" in one.verify(K, memoryview(sent.numpy()).cast("B")).reason


@pytest.mark.parametrize("codec", CODECS)
def test_a_correction_is_the_same_whether_or_not_the_partners_phi_was_met_before(replica, codec):
    pairs = [[replica(seed, codec) for seed in (1, 2)] for _ in range(2)]
    plain, _ = corrections(pairs[0])
    one, other = pairs[1]
    for outer in (one, other):
        outer.freeze_slow_weights(K)
    known = one.tensor(K).known_bytes
    one.tensor(K).meet(memoryview(bytes(known)))  # of a tensor that another took the place of
    other.take_boundary(K)
    theirs = travelling(other)
    one.tensor(K).meet(theirs[:known])
    met = one.tensor(K)._half
    one.take_boundary(K)
    assert one.verify(K, theirs).reason == ""
    assert torch.equal(one._open[K].correction, plain)
    assert one._open[K].correction is met  # no second copy
    assert one.tensor(K)._half is one.tensor(K)._met is None


async def test_what_follows_phi_waits_for_the_boundary(settings, tmp_path):
    lane = TrainingLane(
        replace(settings, prefetch=True, codec="int8"), TrainerPlace(Seat(0, 0), "cpu", tmp_path, threads=1)
    )
    try:
        await lane.initialise()
        await lane.freeze_slow_weights(K)
        source, known = lane.source(K), lane.source(K)._tensor.known_bytes
        assert len(await source.read(0, 100)) == 100
        lane.await_head(K, b"theirs")
        await lane.meet(K, b"another", memoryview(bytes(known)))
        assert source._tensor._half is None
        await lane.meet(K, b"theirs", memoryview(bytes(known)))
        assert source._tensor._half is not None
        rest = asyncio.create_task(source.read(known, known + 64))
        await asyncio.sleep(0.05)
        assert not rest.done()
        await lane.take_boundary(K)
        assert len(await asyncio.wait_for(rest, 5)) == 64
        await lane.release_exchange(K)
        assert lane._built().outer._open == lane._met == lane._awaited == {}
    finally:
        await lane.close()
