"""Hundreds of exchanges that break midway leave nothing behind; over real gRPC."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

import pytest
from loopback_swarm import Node, Swarm, until
from test_exchange_link import begin, trade

from noloco_node.core import limits
from noloco_node.transport.exchange_link import Link

FAILURES = 500
WARM_UP = 60
MIB = 1 << 20
TENSOR = bytes(MIB)
CHUNK_BYTES = 64 * 1024
BREAKS = (0.01, 0.5, 0.93, 0.99)  # shares of the tensor that have arrived when the partner is gone
PAGE_BYTES = 4096


def resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES


async def fail_once(alice: Node, bob: Node, peers: Swarm, outer_step: int) -> None:
    """Both open, the tensors travel, the wire is cut; both give the step up."""
    share = BREAKS[outer_step % len(BREAKS)]
    for node, other in ((alice, bob), (bob, alice)):
        node.network.exchange.open(other.peer, outer_step, decider=node is alice)
    await until(lambda: bob.moved("exchange", "received") >= min(share * len(TENSOR), len(TENSOR) - CHUNK_BYTES))
    peers.wires.cut()
    for node, other in ((alice, bob), (bob, alice)):
        node.network.exchange.release(other.peer, outer_step)
        node.traffic.clear()
        node.driver.tensors.clear()
        node.driver.messages.clear()


@pytest.mark.slow
async def test_memory_is_back_at_its_baseline_after_500_failed_exchanges(
    alice: Node, bob: Node, peers: Swarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CHUNK_BYTES_MAX", CHUNK_BYTES)
    monkeypatch.setattr(limits, "LINK_REOPEN_S", 0.01)
    monkeypatch.setattr(limits, "LINK_IDLE_S", 2.0)  # a stream that came up late answers questions for so long
    trade(alice, TENSOR)
    trade(bob, TENSOR)
    baseline = 0
    for outer_step in range(FAILURES + WARM_UP):
        await fail_once(alice, bob, peers, outer_step)
        if outer_step == WARM_UP:
            baseline = resident_bytes()
    for hub in (alice.network.exchange, bob.network.exchange):
        await until(lambda hub=hub: hub.link_count == 0)
        assert (hub._keepers, hub._dials) == ({}, {})
    await asyncio.sleep(0.1)
    gc.collect()
    assert not [found for found in gc.get_objects() if isinstance(found, Link)]
    grown = resident_bytes() - baseline
    assert grown < 32 * MIB, f"{grown / MIB:.1f} MiB"  # the failed tensors made 500 MiB
    alice.network.exchange.open(bob.peer, 9999, decider=True)
    bob.network.exchange.open(alice.peer, 9999, decider=False)
    await until(lambda: bob.driver.tensors and alice.driver.tensors)  # and the next one succeeds
    assert begin(TENSOR).tensor_bytes == len(bob.driver.tensors[0][2])
