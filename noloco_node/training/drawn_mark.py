"""The number drawn last from a seat's data, in a file of eight bytes: it outlives a killed process.

Owns that file. After a crash it tells how many micro-batches that were drawn since the checkpoint are drawn again. It
is only counted with: a disk that refuses it costs the count.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

FILE = "drawn-next"
BYTES = 8


class DrawnMark:
    """In the seat's checkpoint folder."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE

    def read(self) -> int:
        """The number to be drawn next when it was last written; 0 when it is not there or not ours."""
        with suppress(OSError):
            content = self._path.read_bytes()
            return int.from_bytes(content, "little") if len(content) == BYTES else 0
        return 0

    def write(self, draw_next: int) -> None:
        """In place and without a sync: the kernel keeps it when the process is killed."""
        with suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o600)
            try:
                os.pwrite(descriptor, draw_next.to_bytes(BYTES, "little"), 0)  # all of it or nothing
            finally:
                os.close(descriptor)
