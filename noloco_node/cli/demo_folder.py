"""The demo's folder: one demo at a time in it, and nothing of an earlier one left when the next begins.

Owns the lock, the marker that says a folder is a demo's and may be cleared, and a short folder for the nodes' sockets,
which is gone with the demo however its nodes ended. Must not know what a demo does.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from noloco_node.cli.local_swarm import STOP_TIMEOUT_S
from noloco_node.driver.data_dir_lock import DataDirInUse, data_dir_locked
from noloco_node.errors import BadConfig, DiskFailed

MARKER = "demo.json"
RESULTS = ("model", "summary.json", "training.png", "swarm.toml")
SOCKETS_PREFIX = "noloco-demo-"
RETRY_S = 0.2
ADVICE = "name another --data-dir"


@contextlib.contextmanager
def demo_folder(data_dir: Path) -> Iterator[Path]:
    """Yields the nodes' folder for temporary files. Raises BadConfig while another demo runs here, DiskFailed."""
    _claim(data_dir)
    with _locked(data_dir):
        try:
            _clear(data_dir)
            sockets = tempfile.TemporaryDirectory(prefix=SOCKETS_PREFIX, ignore_cleanup_errors=True)
            (data_dir / MARKER).write_text(json.dumps({"sockets": sockets.name}) + "\n")
        except OSError as error:
            raise _failed(data_dir, error) from error
        with sockets as name:
            yield Path(name)


def _claim(data_dir: Path) -> None:
    """Only an empty folder, or an earlier demo's, may be used."""
    marker = data_dir / MARKER
    if data_dir.exists() and not marker.exists() and any(data_dir.iterdir()):
        raise DiskFailed(f"{data_dir} is not empty and not a demo's", ADVICE)
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        marker.touch()
    except OSError as error:
        raise _failed(data_dir, error) from error


@contextlib.contextmanager
def _locked(data_dir: Path) -> Iterator[None]:
    with contextlib.ExitStack() as holding:
        try:
            holding.enter_context(data_dir_locked(data_dir))
        except DataDirInUse as error:
            raise BadConfig(f"a demo runs in {data_dir} ({error.holder})", f"stop it, or {ADVICE}") from error
        yield


def _clear(data_dir: Path) -> None:
    """Nodes of a demo that was killed may still be ending."""
    for folder in sorted(data_dir.glob("node-*")):
        _wait_until_left(folder)
        shutil.rmtree(folder)
    for path in (data_dir / name for name in RESULTS):
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    _remove_sockets(data_dir / MARKER)


def _wait_until_left(folder: Path) -> None:
    """Raises DataDirInUse when a node is still in it after STOP_TIMEOUT_S."""
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while True:
        try:
            with data_dir_locked(folder):
                return
        except DataDirInUse:
            if time.monotonic() >= deadline:
                raise
            time.sleep(RETRY_S)


def _remove_sockets(marker: Path) -> None:
    """What a killed demo left; only a folder such as we make."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        left = Path(json.loads(marker.read_text())["sockets"])
        if left.name.startswith(SOCKETS_PREFIX) and left.parent == Path(tempfile.gettempdir()):
            shutil.rmtree(left, ignore_errors=True)


def _failed(data_dir: Path, error: OSError) -> DiskFailed:
    return DiskFailed(f"{data_dir} cannot be written: {error.strerror}", ADVICE)
