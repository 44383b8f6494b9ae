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

from noloco_node.errors import DiskFailed
from noloco_node.transport.tunnel import ELSEWHERE, ELSEWHERE_PREFIX

PREFIX = "noloco-"
NOTE = "sockets"  # a file that holds the path of the folder, as ELSEWHERE does of the tunnel's


@contextmanager
def socket_folder(data_dir: Path) -> Iterator[Path]:
    """Hold the lock of the data directory: what an earlier process noted there is then a leftover."""
    note = data_dir / NOTE
    _remove_leftover(note)
    path = _made(note)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        note.unlink(missing_ok=True)


def _made(note: Path) -> Path:
    """Raises DiskFailed."""
    try:
        path = Path(tempfile.mkdtemp(prefix=PREFIX))
        note.write_text(str(path))
    except OSError as error:
        raise DiskFailed(f"no folder for sockets: {error.strerror}", "make room in the temporary directory") from error
    return path


def _remove_leftover(note: Path) -> None:
    """The folder, and the one that its note names in turn: where sockets went that had no room in it."""
    with suppress(OSError, ValueError):  # a note that is none, as after a power cut, names no folder
        path = Path(note.read_text())
        if (path / ELSEWHERE).exists() and _is_ours(path):
            _remove_leftover(path / ELSEWHERE)
        if _is_ours(path):
            shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):
        note.unlink()


def _is_ours(path: Path) -> bool:
    """Only a folder such as we make: by its name, and our own and private."""
    found = path.lstat()
    is_private = found.st_uid == os.getuid() and stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o077
    return path.name.startswith((PREFIX, ELSEWHERE_PREFIX)) and is_private
