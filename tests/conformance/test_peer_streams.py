"""What every PeerStreams must do; the transport relies on nothing else."""

from __future__ import annotations

import asyncio

import pytest
import pytest_asyncio
from peer_pairs import Pair

from noloco_node.core.types import PeerId
from noloco_node.errors import PeerLost

pytestmark = pytest.mark.asyncio(loop_scope="module")

ECHO = "/conformance/echo/1"
SINK = "/conformance/sink/1"


async def echo(peer: PeerId, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Says who calls, then gives back what comes."""
    writer.write(f"{peer}\n".encode())
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module", autouse=True)
async def echoing(pair: Pair) -> None:
    await pair[1].streams.serve(ECHO, echo)


async def test_handler_knows_who_calls(pair: Pair) -> None:
    one, other = pair
    reader, writer = await one.streams.open(other.id, ECHO)
    writer.write(b"x")
    assert (await asyncio.wait_for(reader.readline(), 10)).decode().strip() == one.id
    writer.close()


async def test_bytes_come_back_in_order(pair: Pair) -> None:
    one, other = pair
    reader, writer = await one.streams.open(other.id, ECHO)
    sent = bytes(range(256)) * 8192  # 2 MiB

    async def write() -> None:
        writer.write(sent)
        await writer.drain()

    writing = asyncio.create_task(write())
    await asyncio.wait_for(reader.readline(), 10)
    assert await asyncio.wait_for(reader.readexactly(len(sent)), 20) == sent
    await writing
    writer.close()


async def test_close_of_one_side_ends_the_others_reading(pair: Pair) -> None:
    one, other = pair
    ended = asyncio.Event()

    async def read_all(peer: PeerId, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        ended.set()
        writer.close()

    await other.streams.serve(SINK, read_all)
    _, writer = await one.streams.open(other.id, SINK)
    writer.write(b"x")
    writer.close()
    await asyncio.wait_for(ended.wait(), 10)


async def test_protocol_nobody_serves_is_lost_or_ends_at_once(pair: Pair) -> None:
    one, other = pair
    try:
        reader, writer = await one.streams.open(other.id, "/conformance/unknown/1")
    except PeerLost:
        return
    writer.write(b"x")
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await asyncio.wait_for(reader.readexactly(1), 10)


async def test_unknown_peer_is_lost(pair: Pair) -> None:
    one, _ = pair
    with pytest.raises(PeerLost):
        await one.streams.open(PeerId("12D3KooWJWoaqZhDaoEFshF7Rh1bpY9ohihFhzcW6d69Lr2NASuq"), ECHO)
