"""From checkpoints to a model that Hugging Face tools load; perplexity of the average, of paths, of a directory."""

import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from noloco_node.core.types import Seat
from noloco_node.errors import BadCheckpoint, BadModel, DiskFailed
from noloco_node.training.evaluation import evaluate_checkpoints, evaluate_exported, evaluate_initial
from noloco_node.training.export import average_stages, collect, export_model, find_checkpoints, slow_weights
from noloco_node.training.generation import generate_text


@torch.no_grad()
def checkpoints_of(make_trainer, replicas: int = 2, stages: int = 2, **changes) -> list:
    """A checkpoint of each seat; the replicas' slow weights differ, the fast ones are elsewhere altogether."""
    paths = []
    for stage in range(stages):
        for replica in range(replicas):
            folder = f"{changes.get('run', 'run')}/seat-{stage}.{replica}"
            trainer = make_trainer(stage, replica, folder, num_stages=stages, num_replicas=replicas, **changes)
            trainer.initialise()
            for parameter in trainer.stage.parameters():
                parameter.fill_(9.0)
            for phi in trainer.outer.slow_weights().values():
                phi.add_(0.02 * torch.randn(phi.shape, generator=torch.Generator().manual_seed(replica)))
            paths.append(trainer.save_checkpoint(outer_step=3, inner_step=0, data_next=0, notes={})())
    return paths


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_exported_model_has_the_logits_of_the_averaged_stages(make_trainer, tiny_model, tmp_path, family):
    paths = checkpoints_of(make_trainer, model=tiny_model(family))
    out = export_model(paths, tmp_path / "model")
    loaded = AutoModelForCausalLM.from_pretrained(out)
    stages = [make_trainer(stage, num_stages=2, model=tiny_model(family)).stage for stage in range(2)]
    for stage, weights in zip(stages, average_stages(collect(paths)), strict=True):
        stage.load_state_dict(weights)
    ids, positions = torch.arange(40).view(2, 20), torch.arange(20).expand(2, 20)
    with torch.no_grad():
        composed = stages[1](stages[0](ids, positions), positions)
        assert torch.equal(loaded(input_ids=ids, use_cache=False).logits, composed)


def test_average_is_the_mean_of_the_replicas_slow_weights(make_trainer):
    paths = checkpoints_of(make_trainer, replicas=3, stages=1)
    mean = average_stages(collect(paths))[0]
    parts = [slow_weights(path) for path in paths]
    for name, tensor in mean.items():
        torch.testing.assert_close(tensor, torch.stack([part[name] for part in parts]).mean(0))
        assert tensor.dtype == torch.float32


def test_exported_directory_is_complete(make_trainer, tmp_path):
    out = export_model(checkpoints_of(make_trainer), tmp_path / "model")
    config = json.loads((out / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert (config["dtype"], config["eos_token_id"]) == ("float32", 256)
    index = json.loads((out / "model.safetensors.index.json").read_text())["weight_map"]
    shards = {name: load_file(out / name) for name in set(index.values())}
    assert len(shards) == 2
    assert all(name in shards[shard] for name, shard in index.items())
    tokenizer = AutoTokenizer.from_pretrained(out)
    assert tokenizer.decode(tokenizer("def f():\n")["input_ids"]) == "def f():\n"


def test_tied_model_of_one_stage_is_exported(make_trainer, tiny_model, tmp_path):
    paths = checkpoints_of(make_trainer, stages=1, model=tiny_model(tie_word_embeddings=True))
    loaded = AutoModelForCausalLM.from_pretrained(export_model(paths, tmp_path / "model"))
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight
    average = average_stages(collect(paths))[0]["model.embed_tokens.weight"]
    assert torch.equal(loaded.lm_head.weight, average)


def test_perplexity_is_that_of_the_exported_model(make_trainer, settings, tmp_path):
    paths = checkpoints_of(make_trainer)
    report = evaluate_checkpoints(paths, settings)
    exported = evaluate_exported(export_model(paths, tmp_path / "model"), settings)
    assert report.average == exported
    assert set(report.paths) == {0, 1}
    assert report.paths[0].loss != report.paths[1].loss
    assert report.average.tokens > 100


def test_perplexity_starts_near_the_vocabulary_size(settings):
    assert evaluate_initial(settings).perplexity == pytest.approx(257, rel=0.05)


def test_path_of_a_vacant_seat_goes_through_another_replica(make_trainer):
    paths = checkpoints_of(make_trainer)
    found = collect(path for path in paths if path.parent.name != "seat-1.0")
    assert [path.parent.name for path in found.path_of(0)] == ["seat-0.0", "seat-1.1"]
    assert set(found.files) == {Seat(0, 0), Seat(0, 1), Seat(1, 1)}


def test_checkpoints_are_found_below_a_folder(make_trainer, tmp_path):
    paths = checkpoints_of(make_trainer)
    assert sorted(find_checkpoints(tmp_path)) == sorted(paths)


def test_what_makes_no_whole_model_is_refused(make_trainer, tmp_path):
    paths = checkpoints_of(make_trainer)
    with pytest.raises(BadCheckpoint, match="no checkpoint of stage 1 of 2"):
        collect(paths[:2])
    with pytest.raises(BadCheckpoint, match="no complete checkpoint"):
        collect([])
    with pytest.raises(BadCheckpoint, match="different runs"):
        collect([*checkpoints_of(make_trainer, run="other")[:2], *paths[2:]])


def test_export_to_a_place_that_cannot_be_written_is_disk_failed(make_trainer, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DiskFailed):
        export_model(checkpoints_of(make_trainer, stages=1), tmp_path / "file" / "model")


def test_generation_continues_the_prompt_and_follows_its_seed(make_trainer, tmp_path):
    out = export_model(checkpoints_of(make_trainer), tmp_path / "model")
    texts = [generate_text(out, "def ", new_tokens_max=12, seed=seed, device="cpu") for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]
    assert texts[0].startswith("def ")
    greedy = [generate_text(out, "def ", new_tokens_max=5, temperature=0.0, seed=s, device="cpu") for s in (1, 2)]
    assert greedy[0] == greedy[1]
    assert generate_text(out, "", new_tokens_max=3, device="cpu")


def test_generation_from_a_folder_without_a_model_is_bad_model(tmp_path, settings):
    with pytest.raises(BadModel):
        generate_text(tmp_path, "x")
    with pytest.raises(BadModel):
        evaluate_exported(tmp_path, settings)
