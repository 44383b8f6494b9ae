"""Fetching a donor's checkpoint file: into a .part file, resumed at its length, renamed when the digest is right.

An offset belongs to one donor and one digest (DESIGN 4), so the part's name holds both; another donor starts again.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import zlib
from pathlib import Path
from typing import Any, BinaryIO

from noloco_node.core import limits
from noloco_node.core.types import PeerId, Seat
from noloco_node.errors import DiskFailed, HopBusy, PeerLost, RemoteProtocolError
from noloco_node.ports import FetchedState, Gatekeeper, StateParts
from noloco_node.transport.calls import close_call, learn_record, peer_errors, record_metadata
from noloco_node.transport.channels import Channels, Lane
from noloco_node.transport.exchange_codec import encode_seat
from noloco_node.transport.frames import split_frame
from noloco_node.transport.framing import digest_of
from noloco_node.transport.meter import Meter
from noloco_node.transport.pace import Pace
from noloco_node.transport.state_service import PARTS
from noloco_node.wire.state_pb2 import DescribeRequest, FetchRequest, StateDescription, StateFrame

DESCRIBE = "/noloco.v1.StateService/Describe"
FETCH = "/noloco.v1.StateService/Fetch"
DESCRIBE_DEADLINE_S = 12 * limits.UNARY_DEADLINE_S  # the donor may have to read its whole file for the digest
READ_BYTES = 1 << 20


class DonorBusy(PeerLost):
    """It serves as many newcomers as it may."""


class DonorSlow(PeerLost):
    """It sends, and so slowly that another donor is better."""


class StateClient:
    def __init__(self, channels: Channels, gatekeeper: Gatekeeper, meter: Meter) -> None:
        self._channels = channels
        self._gatekeeper = gatekeeper
        self._meter = meter

    async def fetch_state(
        self,
        peer: PeerId,
        into: Path,
        seat: Seat | None = None,
        parts: StateParts = StateParts.WHOLE,
        bytes_max: int = limits.TENSOR_BYTES_MAX,
    ) -> FetchedState:
        """What the file now at `into` is. Raises PeerLost (DonorBusy, DonorSlow), RemoteProtocolError, DiskFailed."""
        request = DescribeRequest(parts=PARTS[parts], seat=None if seat is None else encode_seat(seat))
        try:
            described = await self._describe(peer, request)
            check_description(described, bytes_max)
            await self._download(peer, into, described)
        except RemoteProtocolError as fault:
            self._gatekeeper.strike(peer, str(fault))
            raise
        except OSError as fault:
            raise DiskFailed(
                f"cannot write {into}: {fault}", "free some space or choose another data folder"
            ) from fault
        return FetchedState(described.outer_step, described.data_next)

    async def _download(self, peer: PeerId, into: Path, described: StateDescription) -> None:
        part = await asyncio.to_thread(PartFile.open, into, peer, described)
        try:
            await self._fill(peer, part)
            await asyncio.to_thread(part.finish, into)
        except (RemoteProtocolError, OSError):  # useless, or what fills the disk
            part.discard()
            raise
        finally:
            part.close()

    async def _describe(self, peer: PeerId, request: DescribeRequest) -> StateDescription:
        described: StateDescription = await self._call(
            peer, Lane.CONTROL, lambda peer, channel: self._describe_on(peer, channel, request)
        )
        return described

    async def _describe_on(self, peer: PeerId, channel: Any, request: DescribeRequest) -> StateDescription:
        method = channel.unary_unary(
            DESCRIBE,
            request_serializer=DescribeRequest.SerializeToString,
            response_deserializer=StateDescription.FromString,
        )
        metadata = record_metadata(self._gatekeeper)
        call = method(request, timeout=DESCRIBE_DEADLINE_S, metadata=metadata)
        described: StateDescription = await call
        await learn_record(self._gatekeeper, peer, call)
        return described

    async def _fill(self, peer: PeerId, part: PartFile) -> None:
        """Until END; cuts are mended as long as each stream brings something."""
        barren, pace = 0, Pace()
        while True:
            before = part.held_bytes
            try:
                await self._call(peer, Lane.BULK, lambda peer, channel: self._stream(peer, channel, part, pace))
                return
            except DonorSlow:
                raise
            except PeerLost as fault:
                if isinstance(fault, DonorBusy) and part.held_bytes == 0:
                    raise  # nothing to lose: the next donor at once
                barren = barren + 1 if part.held_bytes == before else 0
                if barren >= limits.STATE_RESUMES_MAX:
                    raise
                await asyncio.sleep(limits.LINK_REOPEN_S)

    async def _stream(self, peer: PeerId, channel: Any, part: PartFile, pace: Pace) -> None:
        request = FetchRequest(digest=part.digest, offset=part.held_bytes)
        method = channel.unary_stream(FETCH, request_serializer=FetchRequest.SerializeToString)
        call = method(request, metadata=record_metadata(self._gatekeeper))
        try:
            await self._read_all(call, part, pace)
        finally:
            call.cancel()

    async def _read_all(self, call: Any, part: PartFile, pace: Pace) -> None:
        chunks = 0
        while True:
            async with asyncio.timeout(limits.CHUNK_DEADLINE_S):
                data = await call.read()
            if not isinstance(data, bytes):
                raise PeerLost("the stream ended before END")
            frame, payload = split_frame(StateFrame, data)
            if frame.HasField("end"):
                check_end(frame, chunks, part)
                await close_call(call)
                return
            await asyncio.to_thread(part.add, frame, payload)
            self._meter.received("state", len(payload))
            chunks += 1
            pace.moved(len(payload))
            if pace.is_too_slow():
                raise DonorSlow(f"less than {limits.STATE_RATE_MIN} bytes/s came")

    async def _call(self, peer: PeerId, lane: Lane, action: Any) -> Any:
        async with self._channels.use(peer, lane) as channel:
            try:
                with peer_errors(peer):
                    return await action(peer, channel)
            except HopBusy as fault:
                raise DonorBusy(f"{peer} is busy with other newcomers") from fault


def check_description(described: StateDescription, bytes_max: int) -> None:
    if len(described.digest) != limits.DIGEST_BYTES or not 0 < described.size_bytes <= limits.TENSOR_BYTES_MAX:
        raise RemoteProtocolError("an impossible description of a checkpoint")
    if described.size_bytes > bytes_max:
        raise RemoteProtocolError(f"a checkpoint of {described.size_bytes} bytes, this one has {bytes_max} at most")


def check_end(frame: StateFrame, chunks: int, part: PartFile) -> None:
    if frame.end.chunks != chunks or frame.end.size_bytes != part.size_bytes or part.held_bytes != part.size_bytes:
        raise RemoteProtocolError(f"ended after {part.held_bytes} of {part.size_bytes} bytes")


class PartFile:
    """A download under way. All methods but `held_bytes` touch the disk: call them on a thread."""

    def __init__(self, path: Path, handle: BinaryIO, described: StateDescription) -> None:
        self.path = path
        self.digest = described.digest
        self.size_bytes = described.size_bytes
        self.held_bytes = 0
        self._handle = handle
        self._hash = hashlib.blake2b(digest_size=limits.DIGEST_BYTES)

    @classmethod
    def open(cls, into: Path, peer: PeerId, described: StateDescription) -> PartFile:
        """Go on with what the same donor sent of the same file; parts of others are removed."""
        source = digest_of(peer.encode() + described.digest).hex()[:16]
        path = into.with_name(f"{into.name}.{source}.part")
        for other in into.parent.glob(f"{into.name}.*.part"):
            if other != path:
                other.unlink()
        part = cls(path, path.open("a+b"), described)
        part._digest_held()
        return part

    def _digest_held(self) -> None:
        self._handle.seek(0)
        while data := self._handle.read(READ_BYTES):
            self._hash.update(data)
            self.held_bytes += len(data)
        if self.held_bytes > self.size_bytes:
            self.discard()
            raise RemoteProtocolError("a part longer than the whole")

    def add(self, frame: StateFrame, payload: memoryview) -> None:
        if not frame.HasField("chunk") or not 0 < len(payload) <= limits.CHUNK_BYTES_MAX:
            raise RemoteProtocolError("no chunk where one was due")
        if frame.chunk.offset != self.held_bytes or self.held_bytes + len(payload) > self.size_bytes:
            raise RemoteProtocolError(f"chunk at offset {frame.chunk.offset}, expected {self.held_bytes}")
        if zlib.crc32(payload) != frame.chunk.crc32:
            raise RemoteProtocolError("a chunk's checksum is wrong")
        self._handle.write(payload)
        self._hash.update(payload)
        self.held_bytes += len(payload)

    def finish(self, into: Path) -> None:
        """Verify, make durable, put in place."""
        if self._hash.digest() != self.digest:
            raise RemoteProtocolError("the checkpoint's digest is wrong")
        self._handle.flush()
        os.fsync(self._handle.fileno())
        self.path.replace(into)

    def discard(self) -> None:
        self.path.unlink(missing_ok=True)

    def close(self) -> None:
        self._handle.close()
