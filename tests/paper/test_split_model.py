"""A model cut into pipeline stages is the same function as the whole one (DESIGN sections 1 and 5).

Loss and *all* gradients, embedding and head included, are compared bit for bit with the unsplit Hugging Face model, on
packed documents, the activations and gradients passing between the stages as bytes, as they do between nodes.
"""

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from noloco_node.core.types import MicroBatchId
from noloco_node.ports import MicroBatch, TensorBlob
from noloco_node.training.architecture import model_config
from noloco_node.training.graphs import MicroBatchGraphs
from noloco_node.training.initialisation import draw_weights
from noloco_node.training.stage import Stage, cut_stage

ROWS, TOKENS, LAYERS = 2, 24, 12
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 257,
    "max_position_embeddings": 64,
    "num_hidden_layers": LAYERS,
    "tie_word_embeddings": False,
}
FAMILIES = {
    "llama": {"model_type": "llama"},
    "mistral": {"model_type": "mistral", "sliding_window": None},
    "mistral-sliding": {"model_type": "mistral", "sliding_window": 8},
    "qwen2": {"model_type": "qwen2"},
    "qwen2-sliding": {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 6},
    "qwen3": {"model_type": "qwen3", "head_dim": 16},
    "olmo2": {"model_type": "olmo2"},
}


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> None:
    torch.set_num_threads(1)


def stages_of(family: str, num_stages: int) -> list[Stage]:
    made = [cut_stage(model_config(SIZES | FAMILIES[family]), num_stages, stage) for stage in range(num_stages)]
    for stage in made:
        stage.materialise(torch.device("cpu"))
        draw_weights(stage, seed=5)
    return made


def whole_of(stages: list[Stage]) -> torch.nn.Module:
    model = AutoModelForCausalLM.from_config(stages[0].config, attn_implementation="sdpa", dtype=torch.float32)
    merged = {name: tensor for stage in stages for name, tensor in stage.state_dict().items()}
    model.load_state_dict(merged, strict=True)
    return model.train()


def packed_micro_batch(number: int) -> MicroBatch:
    """Two rows of documents of 9 and 15, 1 and 23 tokens; the last token of each has no label."""
    draws = np.random.default_rng(number).integers(0, 257, (ROWS, TOKENS + 1)).astype(np.int32)
    positions = np.stack([np.r_[0:9, 0:15], np.r_[0:1, 0:23]]).astype(np.int32)
    labels = draws[:, 1:].copy()
    labels[[0, 0, 1, 1], [8, 23, 0, 23]] = -100
    return MicroBatch(MicroBatchId(0, number), 0, *map(blob, (draws[:, :-1].copy(), positions, labels)))


def blob(array: np.ndarray) -> TensorBlob:
    return TensorBlob("int32", array.shape, array.tobytes())


def graphs_of(stage: Stage) -> MicroBatchGraphs:
    return MicroBatchGraphs(stage, rows=ROWS, tokens=TOKENS, wire_dtype="float32", autocast=False)


def run_through(stages: list[MicroBatchGraphs], batch: MicroBatch) -> float:
    """Forward and backward along the path, each hop handing on bytes. Returns the summed loss."""
    inputs = batch.inputs
    for stage in stages:
        result = stage.forward(0, MicroBatch(batch.id, 0, inputs, batch.position_ids, batch.labels), count=True)
        inputs = result.activation
    gradient = result.gradient
    for stage in reversed(stages[:-1]):
        gradient = stage.backward(0, gradient, count=True, recompute=False)
    assert gradient is None
    return result.loss_sum


def train_whole(model: torch.nn.Module, batch: MicroBatch) -> float:
    """Hugging Face's own loss of the unsplit model, as a sum."""
    ids, positions, labels = (
        torch.from_numpy(np.frombuffer(part.data, np.int32).reshape(part.shape).copy()).long()
        for part in (batch.inputs, batch.position_ids, batch.labels)
    )
    logits = model(input_ids=ids, position_ids=positions, use_cache=False).logits
    loss = model.loss_function(
        logits=logits, labels=None, vocab_size=257, shift_labels=labels, num_items_in_batch=torch.tensor(1)
    )
    loss.backward()
    return float(loss.detach())


def differing_gradients(stages: list[Stage], whole: torch.nn.Module) -> list[str]:
    named = dict(whole.named_parameters())
    split = {name: parameter for stage in stages for name, parameter in stage.named_parameters()}
    assert set(split) == set(named)
    assert all(parameter.grad is not None for parameter in split.values())
    return [name for name, parameter in split.items() if not torch.equal(parameter.grad, named[name].grad)]


@pytest.mark.parametrize("num_stages", [1, 2, 3, 4])
@pytest.mark.parametrize("family", FAMILIES)
def test_split_model_has_loss_and_all_gradients_of_the_whole_model(family: str, num_stages: int) -> None:
    stages = stages_of(family, num_stages)
    whole = whole_of(stages)
    graphs = [graphs_of(stage) for stage in stages]
    for number in range(3):  # gradients add up over micro-batches, in the same order
        assert run_through(graphs, packed_micro_batch(number)) == train_whole(whole, packed_micro_batch(number))
    assert differing_gradients(stages, whole) == []


def test_mean_loss_is_the_sum_over_the_tokens_trained_on() -> None:
    stages = stages_of("llama", 2)
    whole, batch = whole_of(stages), packed_micro_batch(1)
    summed = run_through([graphs_of(stage) for stage in stages], batch)
    ids, positions, labels = (
        torch.from_numpy(np.frombuffer(part.data, np.int32).reshape(part.shape).copy()).long()
        for part in (batch.inputs, batch.position_ids, batch.labels)
    )
    logits = whole(input_ids=ids, position_ids=positions, use_cache=False).logits
    mean = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
    assert summed / int((labels != -100).sum()) == pytest.approx(float(mean), rel=1e-6)


def test_the_embedding_is_trained() -> None:
    """The authors' code gives the embedding table a zero gradient for the whole run."""
    stages = stages_of("llama", 3)
    run_through([graphs_of(stage) for stage in stages], packed_micro_batch(0))
    assert float(stages[0].model.embed_tokens.weight.grad.abs().sum()) > 0


@pytest.mark.parametrize("family", ["llama", "mistral-sliding", "qwen2-sliding", "qwen3"])
def test_a_document_is_blind_to_the_one_before_it_in_its_row(family: str) -> None:
    stages = stages_of(family, 2)
    ids = torch.arange(24)[None] + 40
    positions = torch.tensor([[*range(9), *range(15)]])

    def logits(tokens: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        return stages[1](stages[0](tokens, places), places)

    with torch.no_grad():
        packed, alone = logits(ids, positions)[:, 9:], logits(ids[:, 9:], positions[:, 9:])
    torch.testing.assert_close(packed, alone, rtol=1e-4, atol=1e-5)
