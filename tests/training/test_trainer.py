"""The synchronous trainer: micro-batches, inner steps and what strangers may send."""

from dataclasses import replace

import pytest
import torch

from noloco_node.errors import BadModel, DeviceFailed, LocalProtocolError, RemoteProtocolError
from noloco_node.ports import MicroBatch, TensorBlob
from noloco_node.training.device import resolve_device
from noloco_node.training.initialisation import stage_hash
from noloco_node.training.tensors import to_blob, to_tensor

CPU = torch.device("cpu")


@pytest.fixture
def pair(make_trainer, settings):
    """Two stages of one path and a micro-batch of the first's data."""
    trainers = [make_trainer(stage, num_stages=2) for stage in range(2)]
    for trainer in trainers:
        trainer.initialise()
    return trainers, trainers[0].draw(0)


def hop(batch: MicroBatch, activation: TensorBlob) -> MicroBatch:
    return replace(batch, inputs=activation)


def run(trainers, call: int, batch: MicroBatch, *, count: bool = True):
    first, last = trainers
    made = first.forward(call, batch, count=count)
    return last.forward(call, hop(batch, made.activation), count=count)


def gradients(trainer) -> dict[str, torch.Tensor]:
    return {
        name: parameter.grad.clone()
        for name, parameter in trainer.stage.named_parameters()
        if parameter.grad is not None
    }


def test_activation_and_gradient_have_the_promised_shape(pair):
    trainers, batch = pair
    made = trainers[0].forward(1, batch, count=True)
    assert (made.finite, made.loss_sum, made.activation.dtype, made.activation.shape) == (
        True,
        None,
        "float32",
        (2, 24, 32),
    )
    answer = trainers[1].forward(1, hop(batch, made.activation), count=True)
    assert answer.loss_sum > 0
    assert answer.gradient.shape == (2, 24, 32)
    assert trainers[0].backward(1, answer.gradient, count=True, recompute=False) is None


def test_uncounted_micro_batch_is_answered_alike_and_leaves_no_gradient(pair):
    trainers, batch = pair
    counted = run(trainers, 1, batch)
    before = gradients(trainers[1])
    answered = run(trainers, 2, batch, count=False)
    assert bytes(answered.gradient.data) == bytes(counted.gradient.data)
    assert answered.loss_sum == counted.loss_sum
    assert all(torch.equal(before[name], value) for name, value in gradients(trainers[1]).items())
    trainers[0].backward(2, answered.gradient, count=False, recompute=False)
    assert gradients(trainers[0]) == {}


def test_late_gradient_is_counted_through_a_second_forward(pair):
    trainers, batch = pair
    answer = run(trainers, 1, batch)
    trainers[0].backward(1, answer.gradient, count=True, recompute=False)
    straight = gradients(trainers[0])
    trainers[0].inner_step(tokens=0, position=0)
    assert gradients(trainers[0]) == {}
    run(trainers, 2, batch)
    trainers[0].drop_graph(2)
    with pytest.raises(LocalProtocolError):
        trainers[0].backward(2, answer.gradient, count=True, recompute=False)
    trainers[0].backward(2, answer.gradient, count=True, recompute=True)
    assert all(torch.equal(straight[name], value) for name, value in gradients(trainers[0]).items())


def test_middle_stage_answers_with_the_gradient_by_its_input(make_trainer, settings, tiny_model):
    trainers = [make_trainer(stage, num_stages=3, model=tiny_model(layers=3)) for stage in range(3)]
    for trainer in trainers:
        trainer.initialise()
    batch = trainers[0].draw(0)
    first = trainers[0].forward(0, batch, count=True)
    second = trainers[1].forward(0, hop(batch, first.activation), count=True)
    last = trainers[2].forward(0, hop(batch, second.activation), count=True)
    middle = trainers[1].backward(0, last.gradient, count=True, recompute=False)
    uncounted = trainers[1].forward(1, hop(batch, first.activation), count=False)
    again = trainers[1].backward(1, last.gradient, count=False, recompute=False)
    assert bytes(middle.data) == bytes(again.data) != bytes(last.gradient.data)
    assert bytes(uncounted.activation.data) == bytes(second.activation.data)


def test_bfloat16_on_the_wire_halves_the_bytes_and_trains(make_trainer):
    trainers = [make_trainer(stage, num_stages=2, wire_dtype="bfloat16") for stage in range(2)]
    for trainer in trainers:
        trainer.initialise()
    batch = trainers[0].draw(0)
    answer = run(trainers, 0, batch)
    assert answer.gradient.dtype == "bfloat16"
    assert memoryview(answer.gradient.data).nbytes == 2 * 2 * 24 * 32
    trainers[0].backward(0, answer.gradient, count=True, recompute=False)
    assert all(value.dtype == torch.float32 for value in gradients(trainers[0]).values())


def test_int8_on_the_wire_takes_a_byte_a_value_and_trains_like_float32(make_trainer):
    grown = {}
    for dtype in ("float32", "int8"):
        trainers = [make_trainer(stage, num_stages=2, wire_dtype=dtype) for stage in range(2)]
        for trainer in trainers:
            trainer.initialise()
        answer = run(trainers, 0, trainers[0].draw(0))
        assert answer.gradient.dtype == dtype
        grown[dtype] = [trainers[0].backward(0, answer.gradient, count=True, recompute=False), gradients(trainers[0])]
    assert memoryview(answer.gradient.data).nbytes == 2 * 24 * 32 // 256 * 257
    for name, exact in grown["float32"][1].items():
        assert (grown["int8"][1][name] - exact).norm() < 0.05 * exact.norm(), name


def test_what_is_not_finite_is_not_sent_as_int8(make_trainer):
    first = make_trainer(0, num_stages=2, wire_dtype="int8")
    first.initialise()
    batch = first.draw(0)
    with torch.no_grad():
        next(first.stage.parameters()).fill_(float("nan"))
    result = first.forward(0, batch, count=True)
    assert (result.finite, result.activation) == (False, None)


def test_blobs_round_trip_bit_for_bit():
    for dtype, tensor in [("float32", torch.randn(2, 3)), ("bfloat16", torch.randn(2, 3).bfloat16())]:
        blob = to_blob(tensor, dtype)
        assert memoryview(blob.data).readonly
        assert torch.equal(to_tensor(blob, CPU), tensor)
        assert torch.equal(to_tensor(replace(blob, data=bytearray(blob.data)), CPU), tensor)


def zeros(dtype: str, shape: tuple[int, ...], size: int) -> TensorBlob:
    return TensorBlob(dtype, shape, bytes(size))


@pytest.mark.parametrize(
    "change",
    [
        {"inputs": zeros("bfloat16", (2, 24, 32), 3072)},
        {"inputs": zeros("float32", (2, 24, 31), 5952)},
        {"inputs": zeros("float32", (1, 24, 32), 3072)},
        {"inputs": zeros("float32", (2, 24, 32), 6140)},
        {"inputs": zeros("float32", (2, 24, 32), 6148)},
        {"position_ids": zeros("int32", (2, 23), 184)},
        {"position_ids": TensorBlob("int32", (2, 24), b"\xff" * 192)},
        {"labels": zeros("float32", (2, 24), 192)},
        {"labels": TensorBlob("int32", (2, 24), b"\x01\x01\x00\x00" * 48)},  # 257, one above the vocabulary
        {"labels": TensorBlob("int32", (2, 24), b"\xff" * 192)},
    ],
)
def test_micro_batch_of_wrong_form_is_refused_before_it_is_run(pair, change):
    trainers, batch = pair
    good = hop(batch, trainers[0].forward(0, batch, count=True).activation)
    with pytest.raises(RemoteProtocolError):
        trainers[1].forward(0, replace(good, **change), count=True)
    assert gradients(trainers[1]) == {}


def test_gradient_that_is_not_finite_or_of_wrong_form_is_refused(pair):
    trainers, batch = pair
    trainers[0].forward(0, batch, count=True)
    poisoned = to_blob(torch.full((2, 24, 32), float("nan")), "float32")
    with pytest.raises(FloatingPointError):
        trainers[0].backward(0, poisoned, count=True, recompute=False)
    with pytest.raises(RemoteProtocolError):
        trainers[0].backward(0, zeros("float32", (2, 24), 192), count=True, recompute=False)
    assert gradients(trainers[0]) == {}


def test_activation_that_is_not_finite_is_flagged_and_not_counted(pair):
    trainers, batch = pair
    poisoned = to_blob(torch.full((2, 24, 32), float("inf")), "float32")
    answer = trainers[1].forward(0, hop(batch, poisoned), count=True)
    assert not answer.finite
    assert gradients(trainers[1]) == {}


def test_step_with_a_gradient_that_is_not_finite_is_skipped(pair):
    trainers, batch = pair
    run(trainers, 0, batch)
    before = stage_hash(trainers[1].stage)
    next(trainers[1].stage.parameters()).grad[0] = float("nan")
    result = trainers[1].inner_step(tokens=40, position=0)
    assert not result.applied
    assert stage_hash(trainers[1].stage) == before
    run(trainers, 1, batch)
    assert trainers[1].inner_step(tokens=40, position=0).applied
    assert stage_hash(trainers[1].stage) != before


def spoil_the_gradient_by_the_input(trainer, factor: float = float("inf")) -> None:
    """The parameters' own gradients stay finite."""
    plain = trainer._graphs._pull
    trainer._graphs._pull = lambda *arguments: plain(*arguments) * factor


@pytest.mark.parametrize(("dtype", "factor"), [("float32", float("inf")), ("int8", 2.0**120)])
@pytest.mark.parametrize("stage", [1, 2])
def test_step_is_skipped_once_the_sums_hold_a_micro_batch_that_was_not_counted(
    make_trainer, tiny_model, stage, dtype, factor
):
    """Middle and last stage: the gradient by the input comes out not finite, or too large for the wire, when the
    parameters' are added already."""
    trainers = [make_trainer(s, num_stages=3, model=tiny_model(layers=3), wire_dtype=dtype) for s in range(3)]
    for trainer in trainers:
        trainer.initialise()
    spoilt = trainers[stage]
    before = stage_hash(spoilt.stage)
    plain = spoilt._graphs._pull
    spoil_the_gradient_by_the_input(spoilt, factor)
    made = [trainers[0].forward(0, trainers[0].draw(0), count=True)]
    for trainer in trainers[1:]:
        made.append(trainer.forward(0, hop(trainers[0].draw(0), made[-1].activation), count=True))
    if stage == 1:
        with pytest.raises(FloatingPointError):
            spoilt.backward(0, made[2].gradient, count=True, recompute=False)
    assert made[2].finite is (stage == 1)
    assert all(bool(torch.isfinite(gradient).all()) for gradient in gradients(spoilt).values())
    result = spoilt.inner_step(tokens=40, position=0)
    assert (result.applied, result.gradient_norm == result.gradient_norm) == (False, False)
    assert (stage_hash(spoilt.stage), gradients(spoilt)) == (before, {})
    spoilt._graphs._pull = plain
    trainers[2].forward(1, hop(trainers[0].draw(0), made[1].activation), count=True)
    assert trainers[2].inner_step(tokens=40, position=1).applied


def test_uncounted_gradient_that_is_not_finite_spoils_nothing(pair):
    trainers, batch = pair
    run(trainers, 0, batch)
    spoil_the_gradient_by_the_input(trainers[1])
    assert not run(trainers, 1, batch, count=False).finite
    assert trainers[1].inner_step(tokens=40, position=0).applied


def test_step_follows_the_schedule_position(pair, settings):
    trainers, batch = pair
    rates = []
    for position in (0, 49, 50, 5000):
        run(trainers, position, batch)
        rates.append(trainers[1].inner_step(tokens=40, position=position).learning_rate)
    assert rates == pytest.approx([1e-3 / 50, 1e-3, 1e-3, 1e-4])


def test_gradient_is_clipped_by_the_stage_norm(pair):
    trainers, batch = pair
    run(trainers, 0, batch)
    assert trainers[1].inner_step(tokens=1, position=0).gradient_norm > 1.0


def test_only_the_first_stage_reads_data(pair):
    trainers, _ = pair
    with pytest.raises(LocalProtocolError):
        trainers[1].draw(0)


def test_one_stage_answers_without_a_gradient(make_trainer):
    trainer = make_trainer()
    trainer.initialise()
    batch = trainer.draw(0)
    answered = trainer.forward(0, batch, count=False)
    assert (answered.activation, answered.gradient) == (None, None)
    assert gradients(trainer) == {}
    assert trainer.forward(1, batch, count=True).loss_sum == answered.loss_sum
    assert set(gradients(trainer)) == {name for name, _ in trainer.stage.named_parameters()}


def test_replicas_start_with_equal_weights_and_stages_do_not(make_trainer):
    a, b = (make_trainer(1, replica, num_stages=2, num_replicas=2) for replica in range(2))
    for trainer in (a, b):
        trainer.initialise()
    assert stage_hash(a.stage) == stage_hash(b.stage)
    assert a.shape_hash == b.shape_hash != make_trainer(0, num_stages=2).shape_hash


@pytest.mark.parametrize("name", ["tpu", "cuda:63", "meta", "CPU 1"])
def test_device_that_is_not_there_is_said(name):
    with pytest.raises(DeviceFailed):
        resolve_device(name)


def test_stage_that_cannot_be_cut_is_said(make_trainer):
    with pytest.raises(BadModel):
        make_trainer(0, num_stages=3)
