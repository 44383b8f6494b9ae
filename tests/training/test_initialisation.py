"""Portable initial weights: the same bits everywhere, nearly normal, stage by stage as in the whole model."""

import json
from pathlib import Path

import numpy as np
import torch

from noloco_node.training.architecture import model_config
from noloco_node.training.initialisation import CHUNK_ELEMENTS, draw_weights, normal_draws, shape_hash, stage_hash
from noloco_node.training.stage import cut_stage

VECTORS = Path(__file__).parents[1] / "vectors" / "initialisation.json"


def drawn(model: dict, num_stages: int = 1, stage: int = 0, seed: int = 7):
    made = cut_stage(model_config(model), num_stages, stage)
    made.materialise(torch.device("cpu"))
    draw_weights(made, seed)
    return made


def test_golden_draws_hold():
    for vector in json.loads(VECTORS.read_text()):
        values = np.concatenate(list(normal_draws(vector["seed"], vector["name"], vector["count"], vector["std"])))
        picked = values[vector["places"]].view(np.uint32)
        assert [f"{bits:08x}" for bits in picked] == vector["float32_bits"]


def test_draws_do_not_depend_on_chunks():
    count = CHUNK_ELEMENTS + 17
    values = np.concatenate(list(normal_draws(1, "w", count, 0.02)))
    assert values.size == count
    np.testing.assert_array_equal(values[:100], np.concatenate(list(normal_draws(1, "w", 100, 0.02))))


def test_draws_are_nearly_normal():
    values = np.concatenate(list(normal_draws(3, "w", 400_000, 0.02))).astype(np.float64)
    assert abs(values.mean()) < 2e-4
    assert abs(values.std() / 0.02 - 1) < 0.005
    assert abs(np.mean(np.abs(values) < 0.02) - 0.683) < 0.015


def test_stages_are_drawn_as_the_whole_model_is(tiny_model):
    whole = drawn(tiny_model("qwen2", layers=4)).state_dict()
    for stage in range(2):
        for name, tensor in drawn(tiny_model("qwen2", layers=4), 2, stage).state_dict().items():
            assert torch.equal(tensor, whole[name]), name


def test_norms_are_one_biases_zero_and_matrices_differ(tiny_model):
    named = drawn(tiny_model("qwen2")).state_dict()
    assert torch.equal(named["model.norm.weight"], torch.ones(32))
    assert torch.equal(named["model.layers.0.self_attn.q_proj.bias"], torch.zeros(32))
    first, second = (named[f"model.layers.{layer}.self_attn.q_proj.weight"] for layer in (0, 1))
    assert not torch.equal(first, second)
    assert abs(float(named["model.embed_tokens.weight"].std()) / 0.02 - 1) < 0.05


def test_stage_hash_follows_the_seed_and_shape_hash_does_not(tiny_model):
    one, same, other = drawn(tiny_model()), drawn(tiny_model()), drawn(tiny_model(), seed=8)
    assert stage_hash(one) == stage_hash(same) != stage_hash(other)
    assert shape_hash(one) == shape_hash(other) != shape_hash(drawn(tiny_model(), 2, 0))
