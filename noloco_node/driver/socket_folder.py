"""The private folder of a node's unix sockets: made at the start, removed at the end; a leftover by the next start.

Owns the folder and the note in the data directory that says where it is. Its path is short, as names of unix sockets
are limited to 108 bytes.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "noloco-"
NOTE = "sockets"


@contextmanager
def socket_folder(data_dir: Path) -> Iterator[Path]:
    """Hold the lock of the data directory: what an earlier process noted there is then a leftover."""
    note = data_dir / NOTE
    _remove_leftover(note)
    path = Path(tempfile.mkdtemp(prefix=PREFIX))
    try:
        note.write_text(str(path))
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        note.unlink(missing_ok=True)


def _remove_leftover(note: Path) -> None:
    """Only a folder such as we make: by its name, and our own and private."""
    with suppress(OSError):
        path = Path(note.read_text())
        found = path.lstat()
        is_ours = found.st_uid == os.getuid() and stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o077
        if path.name.startswith(PREFIX) and is_ours:
            shutil.rmtree(path, ignore_errors=True)
        note.unlink()
