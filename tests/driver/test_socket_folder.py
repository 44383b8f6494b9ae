"""The folder of sockets: gone after the end, and after a kill with the next start of the same node only."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from noloco_node.driver.socket_folder import socket_folder
from noloco_node.errors import DiskFailed


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "tmp"
    place.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(place))
    return place


def killed(data_dir: Path) -> Path:
    """What a node leaves that never came to its end."""
    data_dir.mkdir(exist_ok=True)
    path = Path(tempfile.mkdtemp(prefix="noloco-"))
    (path / "server").write_bytes(b"")
    (data_dir / "sockets").write_text(str(path))
    return path


def test_a_leftover_is_removed_by_the_next_start_of_the_same_node_and_no_other(tmp_path: Path) -> None:
    ours, others = killed(tmp_path / "one"), killed(tmp_path / "two")
    elsewhere = ours.parent / "nl-elsewhere"
    elsewhere.mkdir(mode=0o700)
    (ours / "elsewhere").write_text(str(elsewhere))
    with socket_folder(tmp_path / "one") as path:
        assert path.exists()
        assert not ours.exists()
        assert not elsewhere.exists()
    assert not path.exists()
    assert others.exists()


@pytest.mark.parametrize("named", ["precious", "noloco-open"])
def test_a_note_that_names_another_folder_harms_nothing(tmp_path: Path, named: str) -> None:
    folder = tmp_path / named
    folder.mkdir(mode=0o755)
    (tmp_path / "sockets").write_text(str(folder))
    with socket_folder(tmp_path):
        assert folder.exists()


@pytest.mark.parametrize(
    "rubbish", [b"", bytes(8), b"\xff\xfe\x00", b"x" * 5000], ids=["empty", "zeros", "no text", "long"]
)
def test_a_note_that_is_none_stops_no_start(tmp_path: Path, rubbish: bytes) -> None:
    (tmp_path / "sockets").write_bytes(rubbish)
    with socket_folder(tmp_path) as path:
        assert (tmp_path / "sockets").read_text() == str(path)
    assert not (tmp_path / "sockets").exists()


def test_no_room_for_sockets_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    with pytest.raises(DiskFailed, match="no folder for sockets"), socket_folder(tmp_path):
        pass
