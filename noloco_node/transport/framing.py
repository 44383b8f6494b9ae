"""Large things in small pieces: chunks with offset and checksum, an END with count and digest.

Owns cutting and assembling. Nothing is handed on before END came and fits (DESIGN 6: streams that break can look
complete). Memory is reserved for exactly the announced size, and only after the caller agreed to that size.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from noloco_node.core import limits
from noloco_node.errors import LocalProtocolError, RemoteProtocolError
from noloco_node.ports import Bytes
from noloco_node.transport.frames import join_frame
from noloco_node.wire import transfer_pb2


def new_hash() -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=limits.DIGEST_BYTES)


def digest_of(data: Bytes) -> bytes:
    """BLAKE2b-256, the digest of everything that travels."""
    return hashlib.blake2b(data, digest_size=limits.DIGEST_BYTES).digest()


def byte_view(data: Bytes) -> memoryview:
    """One flat view of bytes, whatever the element type was."""
    return memoryview(data).cast("B")


def cut(parts: Iterable[Bytes], offset: int = 0) -> Iterator[tuple[int, memoryview]]:
    """(offset, piece) of at most CHUNK_BYTES_MAX from `offset` on; pieces never span two parts."""
    start = 0
    for part in parts:
        view = byte_view(part)
        first = max(0, offset - start)
        for position in range(first, len(view), limits.CHUNK_BYTES_MAX):
            yield start + position, view[position : position + limits.CHUNK_BYTES_MAX]
        start += len(view)


def chunk_frame(kind: Any, offset: int, piece: memoryview) -> bytes:
    """An encoded frame of type `kind` (HopRequest, HopReply, ExchangeFrame, StateFrame) with one chunk."""
    return join_frame(kind(chunk=transfer_pb2.Chunk(offset=offset, crc32=zlib.crc32(piece))), piece)


def end_frame(kind: Any, size_bytes: int, chunks: int, digest: bytes) -> bytes:
    return join_frame(kind(end=transfer_pb2.End(size_bytes=size_bytes, chunks=chunks, digest=digest)))


def frames_of(kind: Any, parts: list[Bytes]) -> Iterator[tuple[bytes, int]]:
    """(encoded frame, payload bytes in it) for all parts in order, END last; the digest grows with the chunks."""
    digest, chunks, size = new_hash(), 0, 0
    for offset, piece in cut(parts):
        digest.update(piece)
        chunks, size = chunks + 1, offset + len(piece)
        yield chunk_frame(kind, offset, piece), len(piece)
    yield end_frame(kind, size, chunks, digest.digest()), 0


class TensorInbox:
    """Assembles one announced run of bytes; survives a reopened stream (`restart`).

    `tensor_id` names what it is, for one that is resumed. Raises RemoteProtocolError with a short reason.
    """

    def __init__(self, size_bytes: int, tensor_id: bytes = b"") -> None:
        self.size_bytes = size_bytes
        self.tensor_id = tensor_id
        self.held_bytes = 0
        self.complete = False
        self._chunks = 0
        self._hash = new_hash()
        self._buffer: np.ndarray[Any, np.dtype[np.uint8]] | None = None

    def restart(self) -> None:
        """A new stream begins; what is here already stays."""
        self._chunks = 0

    def add(self, chunk: transfer_pb2.Chunk, payload: memoryview) -> None:
        self._check(chunk, payload)
        end = self.held_bytes + len(payload)
        self._memory()[self.held_bytes : end] = payload
        self._hash.update(payload)
        self.held_bytes = end
        self._chunks += 1

    def _check(self, chunk: transfer_pb2.Chunk, payload: memoryview) -> None:
        if not 0 < len(payload) <= limits.CHUNK_BYTES_MAX:
            raise RemoteProtocolError(f"a chunk of {len(payload)} bytes")
        if chunk.offset != self.held_bytes:
            raise RemoteProtocolError(f"chunk at offset {chunk.offset}, expected {self.held_bytes}")
        if self.held_bytes + len(payload) > self.size_bytes:
            raise RemoteProtocolError(f"more than the announced {self.size_bytes} bytes")
        if zlib.crc32(payload) != chunk.crc32:
            raise RemoteProtocolError("a chunk's checksum is wrong")

    def _memory(self) -> memoryview:
        if self._buffer is None:
            self._buffer = np.empty(self.size_bytes, dtype=np.uint8)
        return memoryview(self._buffer)

    def head(self, size_bytes: int) -> memoryview:
        """The first bytes; they must be here."""
        return self._memory()[:size_bytes]

    def finish(self, end: transfer_pb2.End) -> memoryview:
        """END came: check count, size and digest, hand out the whole."""
        if end.size_bytes != self.size_bytes or self.held_bytes != self.size_bytes:
            raise RemoteProtocolError(f"ended after {self.held_bytes} of {self.size_bytes} bytes")
        if end.chunks != self._chunks:
            raise RemoteProtocolError(f"{self._chunks} chunks came, {end.chunks} were sent")
        if end.digest != self._hash.digest():
            raise RemoteProtocolError("the digest is wrong")
        self.complete = True
        return self._memory()

    def whole(self) -> memoryview:
        """The assembled bytes; only after `finish`."""
        if not self.complete:
            raise LocalProtocolError("read before END")
        return self._memory()
