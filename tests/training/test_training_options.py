"""What a node may choose for its own device: the results stay, time and memory change."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from noloco_node.config.node_config import NodeConfig
from noloco_node.core.types import Seat
from noloco_node.errors import DeviceFailed
from noloco_node.training.device import check_compiler
from noloco_node.training.initialisation import stage_hash
from noloco_node.training.settings import TrainerPlace
from noloco_node.training.trainer import StageTrainer, build_trainer

CPU = torch.device("cpu")


class Watch(TorchDispatchMode):
    """Names of the operators that run meanwhile, and the most bytes that their results held at one moment."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: set[str] = set()
        self.peak_bytes = 0
        self._live = WeakIdKeyDictionary()

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        self.operators.add(str(func._schema.name))
        for tensor in tree_leaves(found):
            if isinstance(tensor, Tensor):
                self._live[tensor.untyped_storage()] = tensor.untyped_storage().nbytes()
        self.peak_bytes = max(self.peak_bytes, sum(self._live.values()))
        return found


@pytest.fixture
def path(settings, tiny_model, tmp_path) -> Callable[..., list[StageTrainer]]:
    """The trainers of both stages, with these options."""

    def make(**options: bool) -> list[StageTrainer]:
        split = replace(settings, num_stages=2, model=tiny_model(layers=8))
        places = [TrainerPlace(Seat(stage, 0), "cpu", tmp_path / str(stage), **options) for stage in range(2)]
        trainers = [build_trainer(split, place) for place in places]
        for trainer in trainers:
            trainer.initialise()
        return trainers

    return make


def train(trainers: list[StageTrainer], *, count: bool = True) -> tuple[float, bytes, bytes]:
    """Loss, activation and gradient of one micro-batch."""
    first, last = trainers
    batch = first.draw(0)
    made = first.forward(0, batch, count=count)
    answer = last.forward(0, replace(batch, inputs=made.activation), count=count)
    first.backward(0, answer.gradient, count=count, recompute=False)
    return answer.loss_sum, bytes(made.activation.data), bytes(answer.gradient.data)


def gradients(trainers: list[StageTrainer]) -> list[Tensor]:
    return [parameter.grad for trainer in trainers for parameter in trainer.stage.parameters()]


def test_activation_checkpointing_changes_no_bit(path) -> None:
    plain, saving = path(), path(activation_checkpointing=True)
    for _ in range(2):
        assert train(plain) == train(saving)
        assert all(torch.equal(one, other) for one, other in zip(gradients(plain), gradients(saving), strict=True))
        for trainer in (*plain, *saving):
            trainer.inner_step(tokens=40, position=0)
    assert train(plain, count=False) == train(saving, count=False)
    assert [stage_hash(trainer.stage) for trainer in plain] == [stage_hash(trainer.stage) for trainer in saving]


def test_activation_checkpointing_takes_less_memory(path) -> None:
    peaks = []
    for chosen in (False, True):
        trainers = path(activation_checkpointing=chosen)
        train(trainers)  # the sums of the gradients are there
        with Watch() as watch:
            train(trainers)
        peaks.append(watch.peak_bytes)
    assert peaks[1] < 0.7 * peaks[0]


def test_attention_and_optimizer_run_as_one_operator_each(path) -> None:
    trainers = path()
    with Watch() as watch:
        train(trainers)
        trainers[0].inner_step(tokens=40, position=0)
    assert any("scaled_dot_product" in name for name in watch.operators)
    assert "aten::_fused_adamw_" in watch.operators
    assert "aten::softmax" not in watch.operators
    assert not any(name.startswith("aten::_softmax") for name in watch.operators)


@pytest.mark.slow
@pytest.mark.parametrize("saving", [False, True])
def test_compiled_layers_have_the_same_loss_and_gradients(path, saving: bool) -> None:
    plain, compiled = path(), path(compile=True, activation_checkpointing=saving)
    assert [list(trainer.stage.state_dict()) for trainer in plain] == [
        list(trainer.stage.state_dict()) for trainer in compiled
    ]
    assert train(compiled)[0] == pytest.approx(train(plain)[0], rel=1e-5)
    for one, other in zip(gradients(plain), gradients(compiled), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_a_machine_without_a_compiler_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import config as inductor_config

    monkeypatch.setattr(inductor_config.cpp, "cxx", ("no-such-compiler",))
    with pytest.raises(DeviceFailed, match=r"torch\.compile does not work on cpu here") as refusal:
        check_compiler(CPU)
    assert "\n" not in refusal.value.cause
    assert "leave compile off" in refusal.value.advice


def test_a_node_hands_its_choices_to_its_trainer(tmp_path) -> None:
    config = NodeConfig(compile=True, activation_checkpointing=True, threads=3, device="cpu", fetch_moments=True)
    place = config.trainer_place(Seat(1, 2), tmp_path)
    assert (place.compile, place.activation_checkpointing, place.threads) == (True, True, 3)
    plain = NodeConfig().trainer_place(Seat(1, 2), tmp_path)
    assert (plain.compile, plain.activation_checkpointing) == (False, False)
    assert plain.fetched_parts is not place.fetched_parts
