"""Byte streams between real p2pd daemons."""

from __future__ import annotations

import asyncio

import pytest
from conftest import MakeNode, Trio, record_of, until

from noloco_node.core import limits
from noloco_node.core.types import PeerId
from noloco_node.errors import PeerLost

PROTOCOL = "/noloco-test/1"


async def whisper(peer: PeerId, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers with the caller's authenticated peer id and what it sent."""
    writer.write(f"{peer} said {(await reader.readline()).decode()}".encode())
    await writer.drain()


@pytest.mark.asyncio(loop_scope="session")
async def test_stream_carries_bytes_and_the_callers_peer_id(trio: Trio) -> None:
    a, b, c = trio
    for node in trio:
        await node.streams.serve(PROTOCOL, whisper)
    for caller, callee in ((a, b), (b, a), (c, b), (b, c)):
        reader, writer = await caller.streams.open(callee.peer_id, PROTOCOL)
        writer.write(b"hello\n")
        assert await reader.read() == f"{caller.peer_id} said hello\n".encode()
        writer.close()


@pytest.mark.asyncio(loop_scope="session")
async def test_protocol_that_nobody_serves_ends_in_an_error_or_at_once(trio: Trio) -> None:
    a, b, _ = trio
    try:
        reader, writer = await a.streams.open(b.peer_id, "/not-served/1")
        writer.write(b"hello\n")
        assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()
    except (PeerLost, ConnectionError):
        pass


@pytest.mark.asyncio(loop_scope="session")
async def test_streams_of_one_peer_are_limited(trio: Trio) -> None:
    a, b, _ = trio
    release = asyncio.Event()

    async def hold(peer: PeerId, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"!")
        await release.wait()

    await b.streams.serve(PROTOCOL, hold)
    streams = [await a.streams.open(b.peer_id, PROTOCOL) for _ in range(limits.STREAMS_PER_PEER_MAX + 4)]
    try:
        first_bytes = await asyncio.gather(*(first_byte(*stream) for stream in streams))
    finally:
        release.set()
    assert sorted(first_bytes) == [b""] * 4 + [b"!"] * limits.STREAMS_PER_PEER_MAX
    assert b.streams.refused == 4
    await until(lambda: not b.streams._tasks)


async def first_byte(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """Speak first, as libp2p agrees on a protocol lazily. A refused stream ends, or breaks while we write."""
    writer.write(b"x")
    try:
        return await reader.read(1)
    except ConnectionError:
        return b""
    finally:
        writer.close()


@pytest.mark.asyncio(loop_scope="session")
async def test_failing_handler_closes_its_stream_and_is_counted(trio: Trio) -> None:
    a, b, _ = trio

    async def fail(peer: PeerId, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raise RuntimeError("on purpose")

    await b.streams.serve(PROTOCOL, fail)
    reader, writer = await a.streams.open(b.peer_id, PROTOCOL)
    assert await first_byte(reader, writer) == b""
    assert b.streams.failed == 1


async def test_peer_is_dialled_at_the_addresses_of_its_record(make_node: MakeNode) -> None:
    a, b = await make_node("a"), await make_node("b")  # strangers: no DHT in common
    await b.streams.serve(PROTOCOL, whisper)
    with pytest.raises(PeerLost):
        await a.streams.open(b.peer_id, PROTOCOL)
    _, encoded, _ = await b.publish(record_of(b))
    a.decode(encoded)
    reader, writer = await a.streams.open(b.peer_id, PROTOCOL)
    writer.write(b"found\n")
    assert b"found" in await reader.read()
    writer.close()


async def test_close_cancels_running_handlers(make_node: MakeNode) -> None:
    a, b = await make_node("a"), await make_node("b")
    cancelled = asyncio.Event()

    async def wait(peer: PeerId, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    await b.streams.serve(PROTOCOL, wait)
    a.decode((await b.publish(record_of(b)))[1])
    reader, writer = await a.streams.open(b.peer_id, PROTOCOL)
    writer.write(b"x")
    await until(lambda: b.streams._tasks)
    await b.close()
    assert cancelled.is_set()
    assert await reader.read() == b""
    writer.close()
