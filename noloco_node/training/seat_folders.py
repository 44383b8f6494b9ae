"""The checkpoint folders of one run on this disk: one a seat.

Owns their names. Must not know which seat is held.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from noloco_node.core.types import Seat
from noloco_node.training import checkpoint

_NAME = re.compile(r"(\d+)\.(\d+)")


@dataclass(frozen=True, slots=True)
class SeatFolders:
    """`root` holds a folder a seat, named stage.replica."""

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
