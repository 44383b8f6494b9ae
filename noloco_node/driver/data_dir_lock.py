"""One node per data directory: two keys in one would share checkpoints, history and the daemon's pid file.

Owns an flock on `DATA_DIR/lock`, held while the process lives; the kernel drops it at any death. The lock on the key
itself is discovery's.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from noloco_node.errors import BadConfig, DiskFailed

LOCK_FILE = "lock"
PID_BYTES_MAX = 32


class DataDirInUse(BadConfig):
    """`holder`: "process N", or "another process"."""

    def __init__(self, cause: str, advice: str, holder: str) -> None:
        super().__init__(cause, advice)
        self.holder = holder


@contextlib.contextmanager
def data_dir_locked(data_dir: Path) -> Iterator[None]:
    """Raises DataDirInUse, naming the holder's process if it is known, or DiskFailed."""
    path = data_dir / LOCK_FILE
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _failed(path, error) from error
    try:
        _lock(descriptor, data_dir)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, data_dir: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    except BlockingIOError as error:
        holder = os.pread(descriptor, PID_BYTES_MAX, 0).decode("ascii", "replace").strip()
        who = f"process {holder}" if holder.isdigit() else "another process"
        raise DataDirInUse(
            f"the data directory {data_dir} is in use by {who}",
            "stop it, or give this node its own data directory (--data-dir)",
            who,
        ) from error
    except OSError as error:
        raise _failed(data_dir / LOCK_FILE, error) from error


def _failed(path: Path, error: OSError) -> DiskFailed:
    return DiskFailed(f"{path} cannot be locked: {error.strerror}", "choose a --data-dir on a local disk")
