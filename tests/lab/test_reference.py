"""The in-process reference swarm, checked against what must hold for any of its runs."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from noloco_node.config.presets import preset
from noloco_node.core.outer_update import Coefficients, two_tensor_step
from noloco_node.core.types import Seat
from noloco_node.lab.reference import ReferenceSwarm, build_reference
from noloco_node.training.outer_state import Tensors
from noloco_node.training.settings import TrainerPlace, TrainingSettings
from noloco_node.training.trainer import build_trainer

A, B = Seat(0, 0), Seat(0, 1)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> None:
    torch.set_num_threads(1)


def settings_of(stages: int, replicas: int) -> TrainingSettings:
    shape = {"num_stages": stages, "num_replicas": replicas}
    layers = {"num_hidden_layers": 2 * stages}
    return preset("tiny", swarm=shape, model=layers, outer={"inner_steps": 2}).training_settings()


def run(stages: int, replicas: int, outer_steps: int = 2) -> ReferenceSwarm:
    swarm = build_reference(settings_of(stages, replicas))
    for outer_step in range(outer_steps):
        swarm.run_outer_step(outer_step)
    return swarm


def test_two_runs_are_equal_to_the_last_bit() -> None:
    one, other = run(2, 2), run(2, 2)
    for seat, replica in one.seats.items():
        assert replica.losses == other.seats[seat].losses
        for name, value in replica.fast.items():
            assert torch.equal(value, other.seats[seat].fast[name])


def test_replicas_of_a_stage_begin_equal_and_train_apart() -> None:
    swarm = build_reference(settings_of(2, 2))
    one, other = swarm.seats[Seat(1, 0)].fast, swarm.seats[Seat(1, 1)].fast
    assert all(torch.equal(value, other[name]) for name, value in one.items())
    swarm.run_inner_step(0, 0)
    assert any(not torch.equal(value, other[name]) for name, value in one.items())


def test_losses_of_all_replicas_of_a_stage_add_up_to_the_same_sum() -> None:
    """Each micro-batch visits every stage once: what the stages divide among their replicas is the same."""
    swarm = run(3, 2, outer_steps=1)
    sums = [[swarm.seats[Seat(stage, 0)].losses, swarm.seats[Seat(stage, 1)].losses] for stage in range(3)]
    assert all(len(losses) == 2 for stage in sums for losses in stage)
    for one, other in sums[1:]:
        assert [a + b for a, b in zip(one, other, strict=True)] == pytest.approx(
            [a + b for a, b in zip(*sums[0], strict=True)], rel=1e-2
        )


def test_outer_step_is_the_papers_up_to_rounding() -> None:
    """Eq. 2 and 3 with both partners' Delta and phi at hand, against local step plus half a difference."""
    settings = settings_of(1, 2)
    swarm = build_reference(settings)
    swarm.run_outer_step(0)  # so that momentum and the slow weights of the two differ
    for inner_step in range(settings.inner_steps):
        swarm.run_inner_step(1, inner_step)
    c = Coefficients(settings.alpha, settings.beta, settings.gamma)
    pair = [swarm.seats[A], swarm.seats[B]]
    expected = {}
    for name in pair[0].fast:
        phis = [replica.slow[name].double() for replica in pair]
        deltas = [replica.fast[name].double() - phi for replica, phi in zip(pair, phis, strict=True)]
        expected[name] = two_tensor_step(pair[0].momentum[name].double(), deltas, phis, 0, c)
    frozen = [replica.step_locally(c) for replica in pair]
    pair[0].correct(frozen[0], frozen[1], c)
    for name, (momentum, slow) in expected.items():
        torch.testing.assert_close(pair[0].momentum[name].double(), momentum, rtol=0, atol=1e-6)
        torch.testing.assert_close(pair[0].slow[name].double(), slow, rtol=0, atol=1e-6)


@pytest.mark.parametrize("prefetch", [False, True])
def test_outer_step_of_a_pair_has_the_bits_of_the_nodes_own_outer_state(prefetch: bool) -> None:
    """The node keeps phi and delta flat and goes through take_boundary, verify and add_correction."""
    settings = replace(settings_of(1, 2), prefetch=prefetch)
    swarm = build_reference(settings)
    trainers = [build_trainer(settings, TrainerPlace(seat, "cpu", Path())) for seat in (A, B)]
    for trainer in trainers:
        trainer.initialise()
    for inner_step in range(settings.inner_steps):
        swarm.run_inner_step(0, inner_step)
    for trainer, seat in zip(trainers, (A, B), strict=True):
        for name, parameter in trainer.stage.named_parameters():
            parameter.data.copy_(swarm.seats[seat].fast[name])
    c = Coefficients(settings.alpha, settings.beta, settings.gamma)
    frozen = {seat: swarm.seats[seat].step_locally(c) for seat in (A, B)}
    for trainer in trainers:
        trainer.take_boundary(0)
    sent = [whole(trainer.outer.tensor(0)) for trainer in trainers]
    for own, other in ((0, 1), (1, 0)):
        assert trainers[own].verify(0, sent[other]).reason == ""
        trainers[own].add_correction(0)
    swarm.seats[A].correct(frozen[A], frozen[B], c)
    for name, slow in swarm.seats[A].slow.items():
        assert torch.equal(trainers[0].outer.slow_weights()[name], slow)
        assert torch.equal(trainers[0].outer.momentum()[name], swarm.seats[A].momentum[name])


def whole(tensor: Tensors) -> memoryview:
    """As it travels; a read ends where phi does."""
    first = bytes(tensor.read(0, tensor.size_bytes))
    return memoryview(first + bytes(tensor.read(len(first), tensor.size_bytes)))


def test_odd_replica_rests_and_takes_the_local_step_alone() -> None:
    swarm, twin = build_reference(settings_of(1, 3)), build_reference(settings_of(1, 3))
    (resting,) = [seat for seat in swarm.seats if swarm.partner(seat, 0) is None]
    swarm.run_outer_step(0)
    for inner_step in range(twin.settings.inner_steps):
        twin.run_inner_step(0, inner_step)
    alone = twin.seats[resting]
    alone.step_locally(Coefficients(twin.settings.alpha, twin.settings.beta, twin.settings.gamma))
    assert all(torch.equal(theta, alone.fast[name]) for name, theta in swarm.seats[resting].fast.items())
