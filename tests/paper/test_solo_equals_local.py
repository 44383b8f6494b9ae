"""A replica without a partner trains exactly as a plain local run with group size 1 (paper eq. 2 and 3 with n = 1).

    delta <- alpha*delta + beta*Delta ;  phi <- phi + delta ;  theta <- phi        (Delta = theta - phi, eq. 1)

The plain run is written with torch and transformers alone: the whole model, its own AdamW, its own outer step.
"""

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from noloco_node.core.types import Seat
from noloco_node.training.architecture import model_config
from noloco_node.training.reader import build_reader
from noloco_node.training.settings import DataSettings, OptimizerSettings, TrainerPlace, TrainingSettings
from noloco_node.training.stage import cut_stage
from noloco_node.training.tensors import to_tensor
from noloco_node.training.trainer import StageTrainer, build_trainer

ALPHA, BETA, GAMMA = 0.5, 0.7, 0.7
INNER_STEPS, OUTER_STEPS, MICRO_BATCHES = 3, 4, 2
RATE = OptimizerSettings(learning_rate=3e-3, warmup_steps=2, total_steps=12, weight_decay=0.1, clip_norm=0.5)
MODEL = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": 257,
    "tie_word_embeddings": False,
}


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def settings(tmp_path: Path) -> TrainingSettings:
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(f"paragraph {number}: " + "word " * (number % 13) for number in range(60)))
    return TrainingSettings(
        run="solo",
        seed=11,
        num_stages=1,
        num_replicas=1,
        model=MODEL,
        sequence_length=24,
        micro_batch_size=2,
        micro_batches=MICRO_BATCHES,
        inner_steps=INNER_STEPS,
        alpha=ALPHA,
        beta=BETA,
        gamma=GAMMA,
        data=DataSettings(source="text", path=str(text)),
        optimizer=RATE,
    )


def test_solo_replica_trains_bit_for_bit_as_a_plain_local_run(settings: TrainingSettings, tmp_path: Path) -> None:
    trainer = build_trainer(settings, TrainerPlace(Seat(0, 0), "cpu", tmp_path / "seat"))
    trainer.initialise()
    plain = plain_model(trainer)
    losses = list(solo_losses(trainer))
    expected = list(plain_losses(plain, settings))
    assert losses == expected
    assert losses[-1] < losses[0]
    weights = dict(trainer.stage.named_parameters())
    assert [name for name, value in plain.named_parameters() if not torch.equal(value, weights[name])] == []


def solo_losses(trainer: StageTrainer) -> Iterator[float]:
    """Summed loss of each inner step of a seat that takes every outer step alone."""
    n = 0
    for outer_step in range(OUTER_STEPS):
        for inner_step in range(INNER_STEPS):
            total, tokens = 0.0, 0
            for _ in range(MICRO_BATCHES):
                batch = trainer.draw(n)
                total += trainer.forward(n, batch, count=True).loss_sum
                tokens += int((to_tensor(batch.labels, torch.device("cpu")) != -100).sum())
                trainer.forget(n)
                n += 1
            assert trainer.inner_step(tokens=tokens, position=outer_step * INNER_STEPS + inner_step).applied
            yield total
        trainer.take_boundary(outer_step)
        trainer.release_exchange(outer_step)


def plain_model(trainer: StageTrainer) -> torch.nn.Module:
    model = AutoModelForCausalLM.from_config(model_config(MODEL), attn_implementation="sdpa", dtype=torch.float32)
    model.load_state_dict(trainer.stage.state_dict())
    return model.train()


def plain_losses(model: torch.nn.Module, settings: TrainingSettings) -> Iterator[float]:
    reader = build_reader(settings, 0)
    named = sorted(model.named_parameters())
    matrices, vectors = ([p for _, p in named if (p.dim() > 1) == wide] for wide in (True, False))
    adam = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": RATE.weight_decay}, {"params": vectors, "weight_decay": 0.0}],
        betas=(RATE.beta1, RATE.beta2),
        eps=RATE.eps,
        fused=True,
    )
    phi = {name: p.detach().clone() for name, p in named}
    delta = {name: torch.zeros_like(p) for name, p in named}
    n = 0
    for step in range(INNER_STEPS * OUTER_STEPS):
        total, tokens = 0.0, 0
        for _ in range(MICRO_BATCHES):
            loss, count = plain_loss(model, reader.read(n))
            loss.backward()
            total, tokens, n = total + float(loss.detach()), tokens + count, n + 1
        for _, p in named:
            p.grad /= tokens
        torch.nn.utils.clip_grad_norm_([p for _, p in named], RATE.clip_norm)
        for group in adam.param_groups:
            group["lr"] = RATE.learning_rate * factor(step)
        adam.step()
        adam.zero_grad()
        yield total
        if (step + 1) % INNER_STEPS == 0:
            plain_outer_step(named, phi, delta)


def plain_loss(model: torch.nn.Module, batch) -> tuple[torch.Tensor, int]:
    ids, positions, labels = (
        to_tensor(part, torch.device("cpu")).long() for part in (batch.inputs, batch.position_ids, batch.labels)
    )
    logits = model(input_ids=ids, position_ids=positions, use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
    return loss, int((labels != -100).sum())


def factor(step: int) -> float:
    """Linear warm-up, cosine to a tenth."""
    if step < RATE.warmup_steps:
        return (step + 1) / RATE.warmup_steps
    done = (step - RATE.warmup_steps) / (RATE.total_steps - RATE.warmup_steps)
    return RATE.final_lr_ratio + (1 - RATE.final_lr_ratio) * (1 + math.cos(math.pi * done)) / 2


@torch.no_grad()
def plain_outer_step(named, phi, delta) -> None:
    for name, theta in named:
        delta[name] = ALPHA * delta[name] + BETA * (theta - phi[name])
        phi[name] = phi[name] + delta[name]
        theta.copy_(phi[name])


def test_stage_names_are_those_of_the_plain_model(settings: TrainingSettings) -> None:
    stage = cut_stage(model_config(settings.model), 1, 0)
    whole = AutoModelForCausalLM.from_config(model_config(MODEL))
    assert set(stage.state_dict()) == set(whole.state_dict())
