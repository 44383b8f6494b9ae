"""The folders of the seats held before: what a node finds at its start, and what it keeps of it."""

from pathlib import Path

import torch

from noloco_node.core import limits
from noloco_node.core.types import Seat
from noloco_node.training import checkpoint
from noloco_node.training.checkpoint import Meta
from noloco_node.training.seat_folders import SeatFolders


def kept(folders: SeatFolders, seat: Seat, outer_step: int) -> Path:
    meta = Meta("run", (seat.stage, seat.replica), 1, "hash", outer_step, 0, 0, 0, None, {}, {})
    tensors = {part: {"w": torch.zeros(2)} for part in checkpoint.PARTS}
    return checkpoint.save(folders.of(seat), meta, tensors)


def test_what_a_crash_left_half_written_or_half_fetched_goes_at_the_start(tmp_path: Path) -> None:
    folders = SeatFolders(tmp_path / "checkpoints")
    whole = kept(folders, Seat(0, 1), 3)
    partial, fetched = whole.with_name("step-000004.partial"), tmp_path / "fetched-0.1.safetensors.0a.part"
    identity = tmp_path / "history.jsonl"
    for path in (partial, fetched, identity):
        path.write_bytes(b"left")
    folders.tidy(None)
    assert not partial.exists()
    assert not fetched.exists()
    assert identity.exists()
    assert folders.newest(Seat(0, 1)) == (whole, 3)


def test_only_the_furthest_seats_and_our_own_are_kept(tmp_path: Path) -> None:
    folders = SeatFolders(tmp_path / "checkpoints")
    seats = [Seat(0, replica) for replica in range(limits.KEPT_ANNOUNCED_MAX + 3)]
    for seat in seats:
        kept(folders, seat, 10 + seat.replica)
    own = seats[0]
    folders.tidy(own)
    assert folders.seats() == [own, *seats[-limits.KEPT_ANNOUNCED_MAX :]]


def test_start_without_any_folder_removes_nothing(tmp_path: Path) -> None:
    SeatFolders(tmp_path / "checkpoints").tidy(Seat(0, 0))
    assert list(tmp_path.iterdir()) == []
