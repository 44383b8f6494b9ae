"""Sequence numbers of signed records: unix milliseconds, always above the last, across restarts and clock jumps."""

from __future__ import annotations

import os
from pathlib import Path

from noloco_node.errors import DiskFailed


class SequenceFile:
    """Owns one small text file that holds the last number given out.

    It is replaced before a number is used, so a killed process never repeats one. A power loss may bring an older
    file back; the clock is ahead of it then.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._last: int | None = None

    def next(self, now_ms: int) -> int:
        """A number above every earlier one, `now_ms` if possible. Raises DiskFailed."""
        if self._last is None:
            self._last = self._read()
        number = max(now_ms, self._last + 1)
        self._write(number)
        self._last = number
        return number

    def _read(self) -> int:
        try:
            return int(self._path.read_text("ascii"))
        except (OSError, ValueError):  # missing or damaged: the clock decides
            return 0

    def _write(self, number: int) -> None:
        temporary = self._path.with_name(self._path.name + ".new")
        try:
            temporary.write_text(f"{number}\n", "ascii")
            os.replace(temporary, self._path)
        except OSError as error:
            raise DiskFailed(
                f"cannot write {self._path}: {error.strerror}", "Free some space or choose another data directory."
            ) from error
