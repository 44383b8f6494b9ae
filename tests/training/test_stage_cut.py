"""Where a model may be cut, and what a stage holds."""

import pytest
import torch

from noloco_node.errors import BadModel
from noloco_node.training.architecture import model_config
from noloco_node.training.stage import count_tokens, cut_stage, loss_sum


def cut(model: dict, num_stages: int, stage: int = 0):
    return cut_stage(model_config(model), num_stages, stage)


def test_a_fresh_stage_takes_no_memory(tiny_model):
    assert all(parameter.is_meta for parameter in cut(tiny_model(layers=4), 2).parameters())


def test_stages_hold_every_parameter_exactly_once_under_its_hugging_face_name(tiny_model):
    whole = set(cut(tiny_model(layers=4), 1).state_dict())
    parts = [list(cut(tiny_model(layers=4), 4, stage).state_dict()) for stage in range(4)]
    assert sorted(name for part in parts for name in part) == sorted(whole)
    assert "model.embed_tokens.weight" in parts[0]
    assert "model.layers.3.self_attn.q_proj.weight" in parts[3]
    assert {"model.norm.weight", "lm_head.weight"} <= set(parts[3])


def test_layers_that_do_not_divide_are_refused(tiny_model):
    with pytest.raises(BadModel, match="4 layers cannot be cut into 3"):
        cut(tiny_model(layers=4), 3)


def test_tied_embeddings_over_two_stages_are_refused_with_advice(tiny_model):
    with pytest.raises(BadModel) as refusal:
        cut(tiny_model(tie_word_embeddings=True), 2)
    assert "tie_word_embeddings = false" in refusal.value.advice


def test_tied_embeddings_stay_one_tensor_in_one_stage(tiny_model):
    stage = cut(tiny_model(tie_word_embeddings=True), 1)
    stage.materialise(torch.device("cpu"))
    assert stage.lm_head.weight is stage.model.embed_tokens.weight


@pytest.mark.parametrize(
    "change",
    [
        {"model_type": "gpt2"},
        {"num_key_value_heads": 3},
        {"hidden_size": "wide"},
        {"hidden_size": 0},
        {"attention_dropout": 0.1},
        {"hidden_act": "no-such-act"},
    ],
)
def test_impossible_models_are_refused(tiny_model, change):
    with pytest.raises(BadModel):
        cut(tiny_model() | change, 1)


def test_loss_is_a_sum_over_the_labels_that_count():
    logits = torch.zeros(1, 3, 8)
    labels = torch.tensor([[1, -100, 2]])
    assert count_tokens(labels) == 2
    torch.testing.assert_close(loss_sum(logits, labels), 2 * torch.tensor(8.0).log())
