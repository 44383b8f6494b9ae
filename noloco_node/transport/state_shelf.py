"""Checkpoint files this node gives away: opened once, which pins them, digested once.

Owns open file handles by digest and the cap on uploads. A file deleted meanwhile stays readable through its handle.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from noloco_node.core import limits
from noloco_node.ports import StateHandler

READ_BYTES = 1 << 20


class ShelfBusy(Exception):
    """As many uploads as allowed are under way."""


@dataclass(slots=True)
class PinnedFile:
    """An open checkpoint. `uses` uploads read it now."""

    name: str
    outer_step: int
    size_bytes: int
    digest: bytes
    handle: BinaryIO
    key: tuple[int, int, int]  # device, inode, mtime_ns
    used_at: float
    uses: int = 0

    def read(self, offset: int, size_bytes: int) -> bytes:
        """Positioned read, so that uploads share one handle."""
        return os.pread(self.handle.fileno(), size_bytes, offset)


class StateShelf:
    """`uploads_max` at once (None: the limit); `on_upload(complete)` is told when one ends."""

    def __init__(
        self,
        handler: StateHandler,
        uploads_max: int | None = None,
        on_upload: Callable[[bool], None] = lambda complete: None,
    ) -> None:
        self._handler = handler
        self._uploads_max = uploads_max
        self._on_upload = on_upload
        self._pinned: dict[bytes, PinnedFile] = {}
        self._uploads = 0
        self._describing = asyncio.Lock()
        self._sweep: asyncio.TimerHandle | None = None

    async def newest(self) -> PinnedFile | None:
        """The newest complete checkpoint, pinned; digested on a thread when it is new."""
        async with self._describing:
            self._close_idle()
            found = self._handler.state_file()
            if found is None:
                return None
            path, outer_step = found
            return self._known(path) or await self._pin(path, outer_step)

    def _known(self, path: Path) -> PinnedFile | None:
        key = file_key(os.stat(path))
        for file in self._pinned.values():
            if file.key == key:
                file.used_at = self._now()
                return file
        return None

    async def _pin(self, path: Path, outer_step: int) -> PinnedFile:
        handle = path.open("rb")
        try:
            digest = await asyncio.to_thread(digest_file, handle)
        except BaseException:
            handle.close()
            raise
        stat = os.fstat(handle.fileno())
        file = PinnedFile(path.name, outer_step, stat.st_size, digest, handle, file_key(stat), self._now())
        if (older := self._pinned.get(digest)) is not None:
            handle.close()
            return older
        self._pinned[digest] = file
        self._sweep_later()
        return file

    @contextmanager
    def upload(self, digest: bytes) -> Iterator[PinnedFile | None]:
        """The file of that digest while it is sent; None when it is no longer here. Raises ShelfBusy."""
        if self._uploads >= (limits.STATE_UPLOADS_MAX if self._uploads_max is None else self._uploads_max):
            raise ShelfBusy
        file = self._pinned.get(digest)
        if file is None:
            yield None
            return
        self._uploads += 1
        file.uses += 1
        complete = False
        try:
            yield file
            complete = True
        finally:
            self._on_upload(complete)
            self._uploads -= 1
            file.uses -= 1
            file.used_at = self._now()

    def _sweep_later(self) -> None:
        if self._sweep is None and self._pinned:
            self._sweep = asyncio.get_running_loop().call_later(limits.STATE_PIN_S, self._on_sweep)

    def _on_sweep(self) -> None:
        """Again and again while anything is pinned, so that a deleted file does not fill the disk for ever."""
        self._sweep = None
        self._close_idle()
        self._sweep_later()

    def _close_idle(self) -> None:
        for digest, file in list(self._pinned.items()):
            if file.uses == 0 and self._now() - file.used_at > limits.STATE_PIN_S:
                del self._pinned[digest]
                file.handle.close()

    def close(self) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
        for file in self._pinned.values():
            file.handle.close()
        self._pinned.clear()

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


def file_key(stat: os.stat_result) -> tuple[int, int, int]:
    return stat.st_dev, stat.st_ino, stat.st_mtime_ns


def digest_file(handle: BinaryIO) -> bytes:
    digest = hashlib.blake2b(digest_size=limits.DIGEST_BYTES)
    handle.seek(0)
    while data := handle.read(READ_BYTES):
        digest.update(data)
    return digest.digest()
