"""Our tensor on its way over one stream: made one piece ahead of what is written, framed off the event loop.

Owns the order of pieces and the digest that END carries. Must not know what the bytes mean.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from noloco_node.core import limits
from noloco_node.errors import TensorReleased
from noloco_node.ports import TensorSource
from noloco_node.transport.framing import byte_view, chunk_frame, end_frame, new_hash
from noloco_node.wire.exchange_pb2 import ExchangeFrame

PIECES_AHEAD = 2

Frame = tuple[bytes, int]
"""An encoded frame and how many bytes of the tensor are in it."""


class Outgoing:
    """From `offset` on, END last. `wake` is called whenever there is a frame to take; `chunk_bytes` says how large the
    next piece shall be."""

    def __init__(
        self, source: TensorSource, offset: int, wake: Callable[[], None], chunk_bytes: Callable[[], int]
    ) -> None:
        self._source = source
        self._offset = offset
        self._wake = wake
        self._chunk_bytes = chunk_bytes
        self.left_bytes = source.size_bytes - offset  # not taken yet
        self._hash = new_hash()
        self._frames: asyncio.Queue[Frame] = asyncio.Queue(PIECES_AHEAD)
        self._fault: BaseException | None = None
        self._making = asyncio.create_task(self._make())
        self._making.add_done_callback(self._made)

    def take(self) -> Frame | None:
        """The next frame, if it is made already. Raises what went wrong with the making."""
        if not self._frames.empty():
            frame = self._frames.get_nowait()
            self.left_bytes -= frame[1]
            return frame
        if self._fault is not None:
            raise self._fault
        return None

    def close(self) -> None:
        self._making.cancel()

    async def _make(self) -> None:
        chunks, position, size = 0, 0, self._source.size_bytes
        try:
            while position < size:
                held = position < self._offset
                stop, step = (self._offset, limits.CHUNK_BYTES_MAX) if held else (size, self._chunk_bytes())
                piece = byte_view(await self._source.read(position, min(stop, position + step)))
                frame = await asyncio.to_thread(self._frame, position, piece)
                position += len(piece)
                if position > self._offset:
                    chunks += 1
                    await self._put((frame, len(piece)))
        except TensorReleased:
            return  # the step is over
        await self._put((end_frame(ExchangeFrame, size, chunks, self._hash.digest()), 0))

    def _made(self, making: asyncio.Task[None]) -> None:
        self._fault = None if making.cancelled() else making.exception()
        self._wake()

    def _frame(self, position: int, piece: memoryview) -> bytes:
        """What the partner holds already only counts for the digest."""
        self._hash.update(piece)
        return b"" if position < self._offset else chunk_frame(ExchangeFrame, position, piece)

    async def _put(self, frame: Frame) -> None:
        await self._frames.put(frame)
        self._wake()
