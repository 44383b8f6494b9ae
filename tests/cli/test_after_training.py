"""export, eval and generate on real checkpoints of a tiny two-stage run."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from noloco_node.cli import main
from noloco_node.config.presets import preset
from noloco_node.config.spec_file import dump, load_run_spec
from noloco_node.core.types import Seat
from noloco_node.errors import ExitCode
from noloco_node.training.settings import TrainerPlace


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """swarm.toml, texts, and a checkpoint of three of the four seats below nodes/."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "texts").mkdir()
    for number in range(40):
        (folder / f"texts/{number}.txt").write_text(f"text {number}: " + "the quick brown fox jumps. " * 20)
    data = {"source": "text", "path": "texts/*.txt", "held_out_fraction": 0.3}
    (folder / "swarm.toml").write_text(dump(preset("tiny", data=data)))
    for seat in (Seat(0, 0), Seat(1, 0), Seat(1, 1)):
        save_initial(folder, seat)
    return folder


def save_initial(folder: Path, seat: Seat) -> None:
    from noloco_node.training.trainer import build_trainer

    settings = load_run_spec(folder / "swarm.toml").training_settings()
    trainer = build_trainer(settings, TrainerPlace(seat, "cpu", folder / f"nodes/{seat}/checkpoints", threads=1))
    trainer.initialise()
    trainer.save_checkpoint(outer_step=1, inner_step=0, data_next=0, notes={})()
    trainer.close()


@pytest.fixture(autouse=True)
def own_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.upper().startswith("NOLOCO_")]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="module")
def model_dir(run_dir: Path) -> Path:
    out = run_dir / "model"
    assert main(["export", "--checkpoints", str(run_dir / "nodes"), "--out", str(out)]) == 0
    return out


def test_export_then_generate(model_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (model_dir / "config.json").is_file()
    arguments = ["generate", str(model_dir), "--prompt", "the ", "--max-tokens", "4", "--device", "cpu", "--seed", "3"]
    assert main(arguments) == 0
    first, said = capsys.readouterr()
    assert first.startswith("the ")
    assert said == f"reading {model_dir}\n", "no bar for weights that are read in a moment"
    assert main(arguments) == 0
    assert capsys.readouterr().out == first


def test_export_takes_several_folders_but_never_a_full_target(model_dir: Path, run_dir: Path, tmp_path: Path) -> None:
    folders = [part for seat in ("0.0", "1.0") for part in ("--checkpoints", str(run_dir / "nodes" / seat))]
    assert main(["export", *folders, "--out", str(tmp_path / "out")]) == 0
    assert main(["export", *folders, "--out", str(model_dir)]) == ExitCode.USAGE


def test_eval_of_the_export_and_of_its_checkpoints_agree(
    model_dir: Path, run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = ["--spec", str(run_dir / "swarm.toml"), "--rows", "8", "--device", "cpu"]
    assert main(["eval", str(model_dir), *spec, "--json", str(tmp_path / "a.json")]) == 0
    assert main(["eval", "--checkpoints", str(run_dir / "nodes"), *spec, "--json", str(tmp_path / "b.json")]) == 0
    parts = [line for line in capsys.readouterr().err.splitlines() if line.startswith("evaluating")]
    assert parts[0] == "evaluating the exported model"
    assert parts[1:] == [f"evaluating {part}" for part in ("the averaged model", "replica path 0", "replica path 1")]
    exported, gathered = (json.loads((tmp_path / name).read_text()) for name in ("a.json", "b.json"))
    assert exported["perplexity"] == pytest.approx(gathered["averaged_perplexity"], rel=1e-5)
    assert 150 < exported["perplexity"] < 400
    assert set(gathered["replica_perplexities"]) == {"0", "1"}


def test_eval_json_on_stdout_is_nothing_else(
    model_dir: Path, run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = ["--spec", str(run_dir / "swarm.toml"), "--rows", "2", "--device", "cpu"]
    assert main(["eval", str(model_dir), *spec, "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["tokens"] > 0


def test_checkpoints_of_another_run_are_refused(run_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "other.toml").write_text(dump(preset("tiny", swarm={"seed": 2})))
    arguments = ["--checkpoints", str(run_dir / "nodes"), "--spec", str(tmp_path / "other.toml")]
    assert main(["eval", *arguments]) == ExitCode.WRONG_RUN
    assert main(["export", *arguments, "--out", str(tmp_path / "out")]) == ExitCode.WRONG_RUN
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["export", "--out", "out"], ExitCode.USAGE),
        (["export", "--from-swarm", "--out", "out"], ExitCode.USAGE),
        (["export", "--checkpoints", ".", "--peer", "x", "--out", "out"], ExitCode.USAGE),
        (["export", "--checkpoints", ".", "--out", "out"], ExitCode.BAD_CHECKPOINT),
        (["eval", "--spec", "swarm.toml"], ExitCode.USAGE),
        (["eval", ".", "--spec", "swarm.toml"], ExitCode.BAD_SPEC),
        (["generate", "."], ExitCode.BAD_MODEL),
        (["generate", "none"], ExitCode.BAD_MODEL),
        (["export", "--checkpoints", "none", "--out", "out"], ExitCode.BAD_CHECKPOINT),
        (["swarm", "new", "--model-config", "none.json"], ExitCode.BAD_SPEC),
    ],
)
def test_each_slip_has_its_code(
    arguments: list[str], code: ExitCode, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == code


@pytest.mark.parametrize("what", [["none"], ["--checkpoints", "none"]])
def test_missing_folder_is_said_in_our_own_words(
    what: list[str], run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", *what, "--spec", str(run_dir / "swarm.toml")]) in (ExitCode.BAD_MODEL, ExitCode.BAD_CHECKPOINT)
    cause, advice = capsys.readouterr().err.splitlines()
    assert cause == "error: there is no folder none"
    assert advice.startswith("advice: ")


def test_stage_without_a_checkpoint_is_named(run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["export", "--checkpoints", str(run_dir / "nodes/1.0"), "--out", str(tmp_path / "out")]
    assert main(arguments) == ExitCode.BAD_CHECKPOINT
    assert "stage 0 of 2" in capsys.readouterr().err
