"""Every implementation of PeerStreams, as one pair of peers per test file: a daemon takes seconds to start."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import uvloop

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "transport"))

from loopback_swarm import Node, started
from peer_pairs import Pair, libp2p_pair, loopback_pair


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> Mapping[str, Any]:
    return {"uvloop": uvloop.new_event_loop}


@pytest_asyncio.fixture(
    scope="module", loop_scope="module", params=[loopback_pair, libp2p_pair], ids=["loopback", "libp2p"]
)
async def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pair]:
    async for made in request.param(tmp_path_factory.mktemp("pair")):
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def started_nodes(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Node, Node]]:
    folder = tmp_path_factory.mktemp("sockets")
    made = [await started(peer.streams, peer.id, folder / str(index)) for index, peer in enumerate(pair)]
    yield made[0], made[1]
    for node in made:
        await node.network.close()


@pytest.fixture
def nodes(started_nodes: tuple[Node, Node]) -> tuple[Node, Node]:
    """Two running networks that remember nothing of earlier tests."""
    for node in started_nodes:
        node.forget()
    return started_nodes
