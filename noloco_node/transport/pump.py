"""Copies bytes between two stream pairs until either ends; then both are closed.

Owns nothing but the two streams it was given. A side that takes no byte for DRAIN_WATCHDOG_S counts as dead: gRPC
notices a dead link only after 40 s, this in 10 (DESIGN 6).
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

from noloco_node.core import limits

READ_BYTES_MAX = 256 * 1024
BROKEN = (OSError, EOFError, TimeoutError)


@dataclass(frozen=True, slots=True)
class Duplex:
    """Both directions of one byte stream."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    """Copy until end of file, error or a stalled drain."""
    with contextlib.suppress(*BROKEN):
        while data := await source.read(READ_BYTES_MAX):
            target.write(data)
            async with asyncio.timeout(limits.DRAIN_WATCHDOG_S):
                await target.drain()


async def pump(one: Duplex, other: Duplex) -> None:
    """Join two streams. Returns when both are closed; cancelling it closes them too."""
    tasks = [asyncio.create_task(copy(one.reader, other.writer)), asyncio.create_task(copy(other.reader, one.writer))]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(shut(one.writer), shut(other.writer))


async def shut(writer: asyncio.StreamWriter) -> None:
    """Close, give what is buffered a moment to leave, then cut."""
    with contextlib.suppress(*BROKEN):
        writer.close()
        async with asyncio.timeout(limits.DRAIN_WATCHDOG_S):
            await writer.wait_closed()
            return
    writer.transport.abort()
