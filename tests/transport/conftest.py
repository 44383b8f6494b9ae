"""Makes the helpers of this folder importable; runs the loop that the node runs."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

sys.path.insert(0, str(Path(__file__).parent))

from loopback_swarm import ALICE, BOB, Node, Swarm, swarm


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> dict[str, Any]:
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
async def peers(tmp_path: Path) -> AsyncIterator[Swarm]:
    async with swarm(tmp_path) as made:
        yield made


@pytest.fixture
async def alice(peers: Swarm) -> Node:
    return await peers.add(ALICE)


@pytest.fixture
async def bob(peers: Swarm) -> Node:
    return await peers.add(BOB)
