"""Checkpoint files this node gives away: opened once, which pins them, digested once.

Owns open file handles by digest, the cap on uploads, and who may have one: a peer has one of them, and the last place
is kept from guests, who hold no live lease of the stage whose state it is. A file deleted meanwhile stays readable
through its handle.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from noloco_node.core import limits
from noloco_node.core.types import PeerId, Seat
from noloco_node.ports import StateFile, StateHandler, StateParts

READ_BYTES = 1 << 20


FileKey = tuple[int, int, int, str]  # device, inode, mtime_ns, parts


class ShelfBusy(Exception):
    """As many uploads as allowed are under way, or only the place that is kept from guests is free."""


@dataclass(slots=True)
class PinnedFile:
    """An open checkpoint. `uses` uploads read it now."""

    name: str
    outer_step: int
    size_bytes: int
    digest: bytes
    handle: BinaryIO
    key: FileKey
    used_at: float
    head: bytes = b""
    spans: tuple[tuple[int, int], ...] = ()
    stage: int | None = None
    uses: int = 0

    def read(self, offset: int, size_bytes: int) -> bytes:
        """Of the head and the spans as one. Positioned reads, so that uploads share one handle; may give less."""
        if offset < len(self.head):
            return self.head[offset : offset + size_bytes]
        offset -= len(self.head)
        for start, length in self.spans:
            if offset < length:
                return os.pread(self.handle.fileno(), min(size_bytes, length - offset), start + offset)
            offset -= length
        return b""


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
        self._uploads: dict[PeerId, Callable[[], None]] = {}  # how to end each
        self._guests: set[PeerId] = set()  # of them, those by guests
        self._refused_s = float("-inf")
        self._guest_refused_s = float("-inf")
        self._describing = asyncio.Lock()
        self._sweep: asyncio.TimerHandle | None = None

    def check_room(self, peer: PeerId, *, is_guest: bool) -> None:
        """Raises ShelfBusy: others have as many uploads as allowed, or other guests all but the last place."""
        uploads_max = limits.STATE_UPLOADS_MAX if self._uploads_max is None else self._uploads_max
        if len(self._uploads.keys() - {peer}) >= uploads_max:
            self._refused_s = self._now()
            raise ShelfBusy
        if is_guest and len(self._guests - {peer}) >= max(1, uploads_max - 1):
            self._guest_refused_s = self._now()
            raise ShelfBusy

    def refused_since(self, time_s: float, peer: PeerId) -> bool:
        """Whether somebody who could have that peer's place was turned away after that time of the loop's clock."""
        return self._refused_s >= time_s or (peer in self._guests and self._guest_refused_s >= time_s)

    def promised(self, seat: Seat) -> int:
        return self._handler.promised(seat)

    async def newest(self, stage: int | None = None, parts: StateParts = StateParts.WHOLE) -> PinnedFile | None:
        """The newest complete checkpoint, pinned; digested on a thread when it is new."""
        async with self._describing:
            self._close_idle()
            found = await asyncio.to_thread(self._handler.state_file, stage, parts)
            if found is None:
                return None
            with suppress(FileNotFoundError):  # a newer one took its place: who asks again gets that
                return self._known(found.path, parts) or await self._pin(found, parts)
            return None

    def _known(self, path: Path, parts: StateParts) -> PinnedFile | None:
        key = file_key(os.stat(path), parts)
        for file in self._pinned.values():
            if file.key == key:
                file.used_at = self._now()
                return file
        return None

    async def _pin(self, found: StateFile, parts: StateParts) -> PinnedFile:
        handle = found.path.open("rb")
        try:
            stat = os.fstat(handle.fileno())
            if found.stamp_ns not in (0, stat.st_mtime_ns):
                raise FileNotFoundError(found.path)  # replaced meanwhile
            spans = found.spans or ((0, stat.st_size),)
            size_bytes = len(found.head) + sum(length for _, length in spans)
            name, key = found.path.name, file_key(stat, parts)
            shown = found.head, spans, found.stage
            file = PinnedFile(name, found.outer_step, size_bytes, b"", handle, key, self._now(), *shown)
            file.digest = await asyncio.to_thread(digest_file, file)
        except BaseException:
            handle.close()
            raise
        if (older := self._pinned.get(file.digest)) is not None:
            handle.close()
            return older
        self._pinned[file.digest] = file
        self._sweep_later()
        return file

    @contextmanager
    def upload(
        self, digest: bytes, peer: PeerId, leased_stage: int | None, end: Callable[[], None]
    ) -> Iterator[PinnedFile | None]:
        """The file of that digest while it is sent; None when it is no longer here. Raises ShelfBusy.

        `leased_stage`: of which the peer holds a live lease; None: of none. An upload that the peer has already makes
        way, since who was cut off comes again: its `end` is called.
        """
        file = self._pinned.get(digest)
        is_guest = file is None or leased_stage is None or file.stage != leased_stage
        self.check_room(peer, is_guest=is_guest)
        if file is None:
            yield None
            return
        if (earlier := self._uploads.get(peer)) is not None:
            earlier()
        self._uploads[peer] = end
        (self._guests.add if is_guest else self._guests.discard)(peer)
        file.uses += 1
        complete = False
        try:
            yield file
            complete = True
        finally:
            self._on_upload(complete)
            if self._uploads.get(peer) is end:
                del self._uploads[peer]
                self._guests.discard(peer)
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


def file_key(stat: os.stat_result, parts: StateParts) -> FileKey:
    return stat.st_dev, stat.st_ino, stat.st_mtime_ns, str(parts)


def digest_file(file: PinnedFile) -> bytes:
    digest, offset = hashlib.blake2b(digest_size=limits.DIGEST_BYTES), 0
    while data := file.read(offset, READ_BYTES):
        digest.update(data)
        offset += len(data)
    return digest.digest()
