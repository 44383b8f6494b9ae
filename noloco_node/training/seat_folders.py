"""The checkpoint folders of one run on this disk: one a seat.

Owns their names, and what is removed when a node starts. Must not know which seat is held.
"""

from __future__ import annotations

import re
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from noloco_node.core import limits
from noloco_node.core.types import Seat
from noloco_node.training import checkpoint

_NAME = re.compile(r"(\d+)\.(\d+)")


@dataclass(frozen=True, slots=True)
class SeatFolders:
    """`root` holds a folder a seat, named stage.replica; beside `root` lie states that are being fetched."""

    root: Path

    def of(self, seat: Seat) -> Path:
        return self.root / str(seat)

    def seats(self) -> list[Seat]:
        """Those that have a folder."""
        names = (_NAME.fullmatch(path.name) for path in sorted(self.root.glob("*.*")))
        return [Seat(int(name[1]), int(name[2])) for name in names if name]

    def newest(self, seat: Seat) -> tuple[Path, int] | None:
        """Of the newest complete checkpoint: path, outer step. Raises BadCheckpoint when it is removed meanwhile."""
        path = checkpoint.newest(self.of(seat))
        return None if path is None else (path, checkpoint.read_meta(path).outer_step)

    def steps(self) -> dict[Seat, int]:
        """Outer step of the newest complete checkpoint, of each seat that has one."""
        found = {seat: self.newest(seat) for seat in self.seats()}
        return {seat: newest[1] for seat, newest in found.items() if newest is not None}

    def tidy(self, own: Seat | None) -> None:
        """Before a node starts: remove what a crash left half written or half fetched, and the folders of all seats but
        `own` and the KEPT_ANNOUNCED_MAX that are furthest. What cannot be removed stays."""
        for left in (*self.root.glob("*/*.partial"), *self.root.parent.glob("fetched-*")):
            with suppress(OSError):
                left.unlink()
        steps = self.steps()
        kept = sorted(steps, key=lambda seat: -steps[seat])[: limits.KEPT_ANNOUNCED_MAX]
        for seat in steps.keys() - {own, *kept}:
            shutil.rmtree(self.of(seat), ignore_errors=True)
