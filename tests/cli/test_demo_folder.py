"""One demo at a time in a folder, and nothing of an earlier one in the results of the next."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import pytest

from noloco_node.cli import demo_folder as module
from noloco_node.cli import main
from noloco_node.cli.demo_folder import MARKER, RESULTS, demo_folder
from noloco_node.driver.data_dir_lock import DataDirInUse, data_dir_locked
from noloco_node.errors import DiskFailed, ExitCode


def fill(folder: Path) -> list[Path]:
    """What a whole demo leaves."""
    files = [folder / "node-0.0/node.log", folder / "model/config.json", folder / "summary.json"]
    files += [folder / "training.png", folder / "swarm.toml", folder / MARKER]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("{}\n")
    return files


def test_second_demo_is_refused_with_the_first_ones_process_and_touches_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with demo_folder(tmp_path):
        files = fill(tmp_path)
        assert main(["demo", "--data-dir", str(tmp_path)]) == ExitCode.BAD_CONFIG
        assert all(file.read_text() == "{}\n" for file in files)
    said = capsys.readouterr().err.splitlines()
    assert said[0] == f"error: a demo runs in {tmp_path} (process {os.getpid()})"
    assert said[1] == "advice: stop it, or name another --data-dir"


def test_nothing_of_an_earlier_demo_is_left_when_the_next_begins(tmp_path: Path) -> None:
    fill(tmp_path)
    with demo_folder(tmp_path):
        assert sorted(path.name for path in tmp_path.iterdir()) == [MARKER, "lock"]
    assert not any((tmp_path / name).exists() for name in RESULTS)


def test_folder_that_is_no_demos_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(DiskFailed, match="not a demo's"), demo_folder(tmp_path):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_folder_for_sockets_is_gone_after_a_demo_and_after_a_killed_one_with_the_next(tmp_path: Path) -> None:
    with demo_folder(tmp_path) as sockets:
        assert json.loads((tmp_path / MARKER).read_text()) == {"sockets": str(sockets)}
    assert not sockets.exists()
    left = Path(tempfile.mkdtemp(prefix=module.SOCKETS_PREFIX))
    foreign = tmp_path / f"{module.SOCKETS_PREFIX}x"
    foreign.mkdir()
    for path in (left, foreign):
        (tmp_path / MARKER).write_text(json.dumps({"sockets": str(path)}))
        with demo_folder(tmp_path):
            pass
    assert not left.exists()
    assert foreign.exists(), "not where such folders are made"


def test_node_of_a_killed_demo_that_is_still_ending_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path)
    monkeypatch.setattr(module, "STOP_TIMEOUT_S", 0.0)
    with data_dir_locked(tmp_path / "node-0.0"):
        with pytest.raises(DataDirInUse, match=r"node-0\.0 is in use"), demo_folder(tmp_path):
            pass
        assert (tmp_path / "node-0.0/node.log").exists()
    with demo_folder(tmp_path):
        assert not (tmp_path / "node-0.0").exists()
