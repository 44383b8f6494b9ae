"""Damaged checkpoints, a full disk, no device, empty data: said in two lines, and nothing is lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from node_commands import PROGRAM, RunningNode, flags, run_to_end, write_spec

from noloco_node.config.spec_file import load_run_spec
from noloco_node.core.types import Seat
from noloco_node.errors import ExitCode
from noloco_node.training import checkpoint
from noloco_node.training.settings import TrainerPlace
from noloco_node.training.trainer import build_trainer

pytestmark = pytest.mark.slow
ALONE = {"num_stages": 1, "num_replicas": 1}
STEPS = {"total_outer_steps": 3, "start_seats": 1, "inner_steps": 1}
LIMITED = (
    "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))\n"
    "from noloco_node.cli import main; sys.exit(main())"
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three outer steps that one node has finished; its folder and the spec beside it."""
    folder = tmp_path_factory.mktemp("finished")
    ended = run_to_end(flags(write_spec(folder, swarm=ALONE, outer=STEPS), folder / "data"))
    assert ended.code == ExitCode.OK, ended.stderr
    assert [checkpoint.read_meta(path).outer_step for path in checkpoint.by_age(seat_folder(folder))] == [3, 2]
    return folder


def seat_folder(folder: Path) -> Path:
    return next((folder / "data/runs").glob("*/checkpoints/0.0"))


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    """A copy of it, to be damaged."""
    import shutil

    shutil.copytree(finished, tmp_path / "copy")
    return tmp_path / "copy"


def cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


def flip(content: bytes) -> bytes:
    return content[:-100] + bytes([content[-100] ^ 0x10]) + content[-99:]


def grow(content: bytes) -> bytes:
    return content + b"more"


def lie_about_the_header(content: bytes) -> bytes:
    return b"\xff" * 8 + content[8:]


@pytest.mark.parametrize("damage", [cut, flip, grow, lie_about_the_header])
def test_damaged_checkpoint_is_put_aside_for_the_one_before(folder: Path, damage: Callable[[bytes], bytes]) -> None:
    newest, before = checkpoint.by_age(seat_folder(folder))
    damaged = damage(newest.read_bytes())
    newest.write_bytes(damaged)
    ended = run_to_end(flags(folder / "swarm.toml", folder / "data"))
    assert ended.code == ExitCode.OK
    assert "Traceback" not in ended.stderr
    assert f"{newest.name} " in ended.stderr
    assert newest.with_suffix(".unusable").read_bytes() == damaged
    assert checkpoint.read_meta(newest).outer_step == 3
    assert before.exists()


def test_nothing_usable_begins_anew_and_keeps_every_file(folder: Path) -> None:
    files = checkpoint.by_age(seat_folder(folder))
    for path in files:
        path.write_bytes(flip(path.read_bytes()))
    ended = run_to_end(flags(folder / "swarm.toml", folder / "data"))
    assert ended.code == ExitCode.OK
    assert '"event": "state_unavailable"' in ended.stderr
    assert all(path.with_suffix(".unusable").exists() for path in files)
    assert checkpoint.read_meta(files[0]).outer_step == 3


def test_checkpoint_of_another_shape_is_put_aside(folder: Path) -> None:
    settings = load_run_spec(folder / "swarm.toml").training_settings()
    wider = replace(settings, model=settings.model | {"hidden_size": 64})
    trainer = build_trainer(wider, TrainerPlace(Seat(0, 0), "cpu", seat_folder(folder), threads=1))
    trainer.initialise()
    foreign = trainer.save_checkpoint(outer_step=3, inner_step=0, data_next=0, notes={})()
    trainer.close()
    ended = run_to_end(flags(folder / "swarm.toml", folder / "data"))
    assert ended.code == ExitCode.OK
    assert "another stage or model shape" in ended.stderr
    assert foreign.with_suffix(".unusable").exists()


def test_checkpoint_of_another_run_ends_the_node_and_stays(folder: Path) -> None:
    newest = checkpoint.by_age(seat_folder(folder))[0]
    content = newest.read_bytes()
    write_spec(folder, swarm=ALONE | {"seed": 5}, outer=STEPS)
    other = folder / "data/runs" / load_run_spec(folder / "swarm.toml").run_id / "checkpoints/0.0"
    other.mkdir(parents=True)
    newest.replace(other / newest.name)
    ended = run_to_end(flags(folder / "swarm.toml", folder / "data"))
    assert ended.is_fault(ExitCode.WRONG_RUN, newest.name, "belongs to run")
    assert (other / newest.name).read_bytes() == content


def test_full_disk_ends_the_node_with_the_last_whole_checkpoint_kept(folder: Path) -> None:
    """A limit on file sizes stands for the full disk: the write breaks off in the middle."""
    newest, before = checkpoint.by_age(seat_folder(folder))
    newest.unlink()
    kept = before.read_bytes()
    assert len(kept) > 65536
    ended = run_to_end(flags(folder / "swarm.toml", folder / "data"), (PROGRAM[0], "-c", LIMITED))
    assert ended.is_fault(ExitCode.DISK, "no checkpoint can be written", "free space")
    names = {path.name for path in seat_folder(folder).iterdir()}
    assert names - {"drawn-next"} == {before.name}  # beside it only the note of how far data was drawn
    assert before.read_bytes() == kept
    assert run_to_end(flags(folder / "swarm.toml", folder / "data")).code == ExitCode.OK


def test_missing_device_is_named(finished: Path, tmp_path: Path) -> None:
    ended = run_to_end(flags(finished / "swarm.toml", tmp_path / "data", device="cuda:7"))
    assert ended.is_fault(ExitCode.DEVICE, "cuda:7", "use auto or cpu")


@pytest.mark.parametrize("texts", [[""], ["\n \n", ""]], ids=["empty", "blank"])
def test_empty_data_is_said(tmp_path: Path, texts: list[str]) -> None:
    (tmp_path / "texts").mkdir()
    for number, text in enumerate(texts):
        (tmp_path / f"texts/{number}.txt").write_text(text)
    spec = write_spec(tmp_path, swarm=ALONE, outer=STEPS, data={"source": "text", "path": "texts/*.txt"})
    assert run_to_end(flags(spec, tmp_path / "data")).is_fault(ExitCode.BAD_DATA, "document")


def test_hub_that_cannot_be_reached_is_said(tmp_path: Path) -> None:
    data = {"source": "hub", "path": "nobody/nothing"}
    spec = write_spec(tmp_path, swarm=ALONE, outer=STEPS, data=data)
    assert run_to_end(flags(spec, tmp_path / "data")).is_fault(ExitCode.BAD_DATA, "data", "data.path")


def test_internal_fault_is_one_json_line_and_exit_1(tmp_path: Path) -> None:
    broken = (
        "import sys; from noloco_node.training import trainer\n"
        "trainer.StageTrainer.inner_step = lambda *_, **__: 1 / 0\n"
        "from noloco_node.cli import main; sys.exit(main())"
    )
    spec = write_spec(tmp_path, swarm=ALONE, outer=STEPS)
    with RunningNode(spec, tmp_path / "data", program=(PROGRAM[0], "-c", broken)) as node:
        ended = node.ended()
    assert ended.code == ExitCode.INTERNAL
    assert ended.stderr.splitlines()[-2].startswith("error: internal fault: ZeroDivisionError")
    fault = next(event for event in node.events if event["event"] == "internal_fault")
    assert "inner_step" in fault["exception"]
