"""Checkpoints: whole or not there, refused when of another run or shape, and a resume that changes nothing."""

import errno
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from noloco_node.core import limits
from noloco_node.core.types import Seat
from noloco_node.errors import BadCheckpoint, DiskFailed, WrongRun
from noloco_node.ports import StateParts
from noloco_node.training import checkpoint
from noloco_node.training.checkpoint import Meta, newest, read_meta
from noloco_node.training.initialisation import stage_hash
from noloco_node.training.tensors import to_tensor

INNER_STEPS = 4


def losses(trainer, n: int, count: int) -> Iterator[float]:
    """Summed loss of `count` inner steps of two micro-batches, an outer step taken alone after every fourth."""
    for step in range(n // 2, n // 2 + count):
        total, tokens = 0.0, 0
        for number in (2 * step, 2 * step + 1):
            batch = trainer.draw(number)
            total += trainer.forward(number, batch, count=True).loss_sum
            tokens += int((to_tensor(batch.labels, torch.device("cpu")) != -100).sum())
            trainer.forget(number)
        trainer.inner_step(tokens=tokens, position=step)
        if (step + 1) % INNER_STEPS == 0:
            trainer.take_boundary(step // INNER_STEPS)
            trainer.release_exchange(step // INNER_STEPS)
        yield total


def save(trainer, outer_step: int = 0, **changes) -> Path:
    fields = {"outer_step": outer_step, "inner_step": 0, "data_next": 0, "notes": {}} | changes
    return trainer.save_checkpoint(**fields)()


@pytest.mark.parametrize("steps", [6, 8])
def test_resumed_replica_has_the_same_next_20_losses(make_trainer, steps):
    """In the middle of an inner phase and at a boundary; the reader had drawn ahead by three."""
    straight = make_trainer()
    straight.initialise()
    list(losses(straight, 0, steps))
    straight.draw(2 * steps + 2)
    path = save(straight, steps // 4, inner_step=steps % 4, data_next=2 * steps, notes={"outcome": "solo"})
    expected = list(losses(straight, 2 * steps, 20))
    resumed = make_trainer()
    loaded = resumed.load_checkpoint()
    assert (loaded.outer_step, loaded.inner_step, loaded.data_next) == (steps // 4, steps % 4, 2 * steps)
    assert list(losses(resumed, loaded.data_next, 20)) == expected
    assert stage_hash(resumed.stage) == stage_hash(straight.stage)
    assert read_meta(path).notes["outcome"] == "solo"


def test_newcomer_takes_slow_weights_and_momentum_and_begins_adam_anew(make_trainer):
    donor, newcomer = make_trainer(0, 0, num_replicas=2), make_trainer(0, 1, num_replicas=2)
    donor.initialise()
    list(losses(donor, 0, 6))
    path = save(donor, 1, inner_step=2, data_next=12)
    newcomer.initialise()
    loaded = newcomer.load_state_file(path)
    assert (loaded.outer_step, loaded.inner_step, loaded.data_next) == (1, 0, 0)
    slow, momentum = donor.outer.slow_weights(), donor.outer.momentum()
    for name, theta in newcomer.stage.named_parameters():
        assert torch.equal(theta, slow[name])
        assert torch.equal(newcomer.outer.slow_weights()[name], slow[name])
        assert torch.equal(newcomer.outer.momentum()[name], momentum[name])
    assert newcomer.optimizer.steps == 0
    assert stage_hash(donor.stage) != stage_hash(newcomer.stage)


def put_together(path: Path, parts: StateParts, into: Path) -> Path:
    """What a newcomer is sent: head and spans, one after the other."""
    head, spans = checkpoint.excerpt(path, parts)
    content = path.read_bytes()
    into.write_bytes(head + b"".join(content[offset : offset + size] for offset, size in spans))
    return into


def test_excerpt_holds_slow_weights_and_momentum_only_and_is_less_than_half_the_file(make_trainer, tmp_path):
    donor, newcomer = make_trainer(0, 0, num_replicas=2), make_trainer(0, 1, num_replicas=2)
    donor.initialise()
    list(losses(donor, 0, 6))
    path = save(donor, 1)
    given = put_together(path, StateParts.SLOW, tmp_path / "given")
    assert given.stat().st_size < path.stat().st_size / 2
    assert len(checkpoint.excerpt(path, StateParts.SLOW)[1]) == 1  # one stretch of the donor's file
    whole, part = read_meta(path), read_meta(given)
    assert replace(part, digests={}) == replace(whole, digests={})
    assert checkpoint.read_tensors(given, part, checkpoint.SLOW_PARTS).keys() == {"slow", "momentum"}
    newcomer.load_state_file(given)
    slow = donor.outer.slow_weights()
    assert all(torch.equal(theta, slow[name]) for name, theta in newcomer.stage.named_parameters())
    with pytest.raises(BadCheckpoint, match="no fast tensors"):
        checkpoint.read_tensors(given, part)


def test_newcomer_takes_the_donors_moments_if_its_node_is_set_so(make_trainer, tmp_path):
    donor, newcomer = make_trainer(0, 0, num_replicas=2), make_trainer(0, 1, num_replicas=2)
    donor.initialise()
    list(losses(donor, 0, 6))
    newcomer._place = replace(newcomer._place, fetched_parts=StateParts.SLOW_AND_MOMENTS)
    newcomer.load_state_file(put_together(save(donor, 1), StateParts.SLOW_AND_MOMENTS, tmp_path / "given"))
    assert newcomer.optimizer.steps == donor.optimizer.steps > 0
    for moment, named in donor.optimizer.moments().items():
        assert all(torch.equal(newcomer.optimizer.moments()[moment][name], value) for name, value in named.items())


def test_moments_of_a_donor_that_cannot_be_right_are_refused(make_trainer, tmp_path):
    trainer = make_trainer()
    trainer.initialise()
    list(losses(trainer, 0, 6))
    path = save(trainer, 1)
    trainer._place = replace(trainer._place, fetched_parts=StateParts.SLOW_AND_MOMENTS)
    name = "exp_avg_sq/model.norm.weight"
    for meta, tensors in (({}, {name: -torch.ones(32)}), ({}, {name: None}), ({"adam_steps": -1}, {})):
        with pytest.raises(BadCheckpoint):
            trainer.load_state_file(rewritten(path, meta, **tensors))


def test_excerpt_of_a_file_that_is_cut_short_or_none_of_ours_is_a_bad_checkpoint(make_trainer, tmp_path):
    trainer = make_trainer()
    trainer.initialise()
    content = save(trainer, 1).read_bytes()
    for number, damaged in enumerate((b"", content[:5], content[:100], b"\xff" * 200)):
        path = tmp_path / f"damaged-{number}"
        path.write_bytes(damaged)
        with pytest.raises(BadCheckpoint):
            checkpoint.excerpt(path, StateParts.SLOW)


def test_checkpoint_of_another_run_or_shape_is_refused(make_trainer, tiny_model):
    trainer = make_trainer()
    trainer.initialise()
    path = save(trainer)
    with pytest.raises(WrongRun, match="belongs to run test-run"):
        make_trainer(run="other-run").load_checkpoint()
    with pytest.raises(BadCheckpoint, match="shape"):
        make_trainer(model=tiny_model(layers=4)).load_state_file(path)


def test_newcomer_does_not_hear_where_the_donor_stood_in_the_data(make_trainer):
    """Even if the file says that it is of this very seat."""
    trainer = make_trainer()
    trainer.initialise()
    path = save(trainer, 1, data_next=1 << 40)
    resumed: list[object] = []
    trainer.reader.resume = resumed.append
    loaded = trainer.load_state_file(path)
    assert loaded.data_next == 0
    assert resumed == []
    assert loaded.notes["torch"]  # hearsay, for whoever knows what to make of it


def _names(named: dict[str, torch.Tensor], part: str) -> list[str]:
    return [name.removeprefix(f"{part}/") for name in named if name.startswith(f"{part}/")]


def rewritten(path: Path, meta: dict[str, object], **tensors: torch.Tensor | None) -> Path:
    """The file with other words and tensors (None: taken out), its digest right again."""
    old = read_meta(path)
    parts = checkpoint.read_tensors(path, old)
    named = {f"{part}/{name}": tensor for part, found in parts.items() for name, tensor in found.items()} | tensors
    named = {name: tensor for name, tensor in named.items() if tensor is not None}
    of_part = {part: {name: named[f"{part}/{name}"] for name in _names(named, part)} for part in parts}
    digests = {part: checkpoint._digest(tensors) for part, tensors in of_part.items()}
    header = asdict(replace(old, digests=digests)) | meta
    written = path.with_name("donated")
    checkpoint.save_file(named, written, {checkpoint.METADATA_KEY: json.dumps(header)})
    return written


NORM, GATE = "slow/model.norm.weight", "momentum/model.layers.0.mlp.gate_proj.weight"


@pytest.mark.parametrize(
    ("meta", "tensors"),
    [
        ({"run": "other-run"}, {}),
        ({"run": None}, {}),
        ({"seat": None}, {}),
        ({"outer_step": -1}, {}),
        ({"outer_step": "7"}, {}),
        ({"outer_step": True}, {}),
        ({"outer_step": 1.5}, {}),
        ({"outer_step": None}, {}),
        ({"outer_step": 1 << 41}, {}),
        ({"adam_steps": 10**400}, {}),
        ({}, {NORM: None}),
        ({}, {"slow/more": torch.ones(2)}),
        ({}, {NORM: torch.ones(31)}),
        ({}, {NORM: torch.ones(1)}),
        ({}, {NORM: torch.ones(32, dtype=torch.float64)}),
        ({}, {NORM: torch.ones(32, dtype=torch.float16)}),
        ({}, {NORM: torch.full((32,), float("nan"))}),
        ({}, {GATE: torch.full((64, 32), float("inf"))}),
    ],
)
def test_donors_file_that_is_not_what_it_should_be_is_a_bad_checkpoint_and_changes_nothing(make_trainer, meta, tensors):
    trainer = make_trainer()
    trainer.initialise()
    path = save(trainer, 1)
    before = stage_hash(trainer.stage)
    assert trainer.load_state_file(rewritten(path, {})).outer_step == 1
    with pytest.raises(BadCheckpoint):
        trainer.load_state_file(rewritten(path, meta, **tensors))
    assert stage_hash(trainer.stage) == before


def test_no_checkpoint_is_said(make_trainer):
    with pytest.raises(BadCheckpoint, match="no complete checkpoint"):
        make_trainer().load_checkpoint()


def test_file_cut_short_anywhere_is_passed_over_for_the_one_before(make_trainer):
    trainer = make_trainer()
    trainer.initialise()
    before, latest = save(trainer, 1), save(trainer, 2)
    whole = latest.read_bytes()
    for size in (0, 7, 8, 100, len(whole) // 2, len(whole) - 1):
        latest.write_bytes(whole[:size])
        with pytest.raises(BadCheckpoint):
            trainer.load_state_file(latest)
        assert newest(latest.parent) == before
    latest.write_bytes(whole)
    assert newest(latest.parent) == latest


def test_flipped_bit_is_detected(make_trainer):
    trainer = make_trainer()
    trainer.initialise()
    path = save(trainer)
    content = bytearray(path.read_bytes())
    content[-3] ^= 0x10
    path.write_bytes(content)
    with pytest.raises(BadCheckpoint, match="digest"):
        trainer.load_checkpoint()


def test_damaged_newest_is_put_aside_and_the_one_before_is_loaded(make_trainer):
    trainer = make_trainer()
    trainer.initialise()
    before, latest = save(trainer, 1), save(trainer, 2)
    content = bytearray(latest.read_bytes())
    content[-3] ^= 0x10
    latest.write_bytes(content)
    assert trainer.load_checkpoint().outer_step == 1
    assert latest.with_suffix(checkpoint.SET_ASIDE).read_bytes() == content
    assert newest(latest.parent) == before


def test_other_files_are_not_checkpoints(tmp_path):
    (tmp_path / "step-000001.safetensors").write_bytes(b"garbage" * 40)
    (tmp_path / "step-000002.partial").touch()
    checkpoint.save_file({"w": torch.zeros(2)}, tmp_path / "step-000003.safetensors")
    assert newest(tmp_path) is None
    assert newest(tmp_path / "nothing") is None
    with pytest.raises(BadCheckpoint, match="is not a checkpoint"):
        read_meta(tmp_path / "step-000003.safetensors")


def test_only_the_newest_are_kept_and_a_given_up_future_is_removed(make_trainer):
    trainer = make_trainer()
    trainer.initialise()
    for outer_step in (1, 2, 3, 9):
        path = save(trainer, outer_step)
    assert len(list(path.parent.iterdir())) == limits.CHECKPOINTS_KEPT
    save(trainer, 4)
    assert [file.name for file in sorted(path.parent.iterdir())] == [checkpoint.file_name(step) for step in (3, 4)]
    assert read_meta(newest(path.parent)).outer_step == 4


def test_state_that_is_not_finite_is_never_saved(make_trainer):
    trainer = make_trainer()
    trainer.initialise()
    kept = save(trainer, 1)
    for tensor in (next(trainer.stage.parameters()), next(iter(trainer.outer.momentum().values()))):
        value = tensor.detach().view(-1)[0].clone()
        tensor.detach().view(-1)[0] = float("inf")
        with pytest.raises(FloatingPointError):
            save(trainer, 2)
        tensor.detach().view(-1)[0] = value
    assert newest(kept.parent) == kept


def test_copy_is_taken_before_training_goes_on(make_trainer):
    trainer = make_trainer()
    trainer.initialise()
    before = stage_hash(trainer.stage)
    write = trainer.save_checkpoint(outer_step=0, inner_step=0, data_next=0, notes={})
    list(losses(trainer, 0, 4))
    write()
    trainer.load_checkpoint()
    assert stage_hash(trainer.stage) == before


META = Meta("run", (0, 0), 1, "shape", 1, 0, 0, 0, None, {}, {})
STATE = {"fast": {"w": torch.ones(4)}}


def test_folder_that_cannot_be_written_is_disk_failed(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DiskFailed):
        checkpoint.save(tmp_path / "file" / "below", META, STATE)


def test_full_disk_is_disk_failed_and_leaves_nothing_behind(tmp_path, monkeypatch):
    kept = checkpoint.save(tmp_path, META, STATE)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(checkpoint.os, "fsync", full)
    with pytest.raises(DiskFailed, match="No space left"):
        checkpoint.save(tmp_path, replace(META, outer_step=2), STATE)
    assert list(tmp_path.iterdir()) == [kept]


@pytest.mark.parametrize("delay_s", [0.0, 0.02])
def test_a_process_killed_while_saving_leaves_a_whole_checkpoint(tmp_path, delay_s):
    """SIGKILL at different moments of an endless series of saves of 16 MB."""
    script = textwrap.dedent("""
        import sys, torch
        from pathlib import Path
        from noloco_node.training.checkpoint import Meta, save
        state = {"fast": {"w": torch.ones(4_000_000)}}
        for step in range(1, 10_000):
            save(Path(sys.argv[1]), Meta("run", (0, 0), 1, "shape", step, 0, 0, 0, None, {}, {}), state)
            print(step, flush=True)
    """)
    child = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE)
    try:
        done = int(child.stdout.readline())
        time.sleep(delay_s)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
    path = newest(tmp_path)
    meta, tensors = checkpoint.load(path, run="run", shape_hash="shape", parts=("fast",))
    assert meta.outer_step >= done
    assert torch.equal(tensors["fast"]["w"], torch.ones(4_000_000))


def test_meta_names_the_seat(make_trainer):
    trainer = make_trainer(1, 3, num_stages=2, num_replicas=4)
    trainer.initialise()
    meta = read_meta(save(trainer, 5))
    assert (meta.place, meta.num_stages, meta.outer_step, meta.reader) == (Seat(1, 3), 2, 5, None)
    assert meta.model["model_type"] == "llama"
