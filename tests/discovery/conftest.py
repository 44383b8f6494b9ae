"""Real p2pd daemons and a real DHT on loopback, each node in a folder of its own, all ended with the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import uvloop

from noloco_node.core.types import Seat, SeatRecord, SeatState
from noloco_node.discovery.dht import SwarmDiscovery, unix_ms
from noloco_node.discovery.settings import DiscoverySettings

RUN = "run-under-test"
SEAT = Seat(0, 1)
NUM_REPLICAS = 64

MakeNode = Callable[..., Awaitable[SwarmDiscovery]]
Trio = tuple[SwarmDiscovery, SwarmDiscovery, SwarmDiscovery]


def pytest_configure(config: pytest.Config) -> None:
    for message in ("Overriding the .event_loop_policy. fixture", "path is deprecated", ".torch.jit.script. is deprec"):
        config.addinivalue_line("filterwarnings", f"ignore:{message}:DeprecationWarning")


@pytest.fixture(scope="session")
def event_loop_policy() -> asyncio.AbstractEventLoopPolicy:
    """The loop that the node runs on."""
    return uvloop.EventLoopPolicy()


def settings_in(folder: Path, **changes: Any) -> DiscoverySettings:
    plain: dict[str, Any] = {
        "run": RUN,
        "num_stages": 2,
        "num_replicas": NUM_REPLICAS,
        "identity_path": folder / "identity.key",
        "data_dir": folder,
        "listen": ("/ip4/127.0.0.1/tcp/0",),
    }
    return DiscoverySettings(**(plain | changes))


def record_of(node: SwarmDiscovery, seat: Seat = SEAT, **changes: Any) -> SeatRecord:
    plain: dict[str, Any] = {"incarnation": 7, "seq": 0, "claim": unix_ms(), "expires": 0, "state": SeatState.ACTIVE}
    return SeatRecord(run=RUN, seat=seat, peer=node.peer_id, **(plain | changes))


async def until(holds: Callable[[], Any], within_s: float = 20.0) -> None:
    """Poll until `holds()` is true; may be a coroutine function."""
    async with asyncio.timeout(within_s):
        while True:
            outcome = holds()
            if asyncio.iscoroutine(outcome):
                outcome = await outcome
            if outcome:
                return
            await asyncio.sleep(0.05)


@pytest.fixture
async def make_node(tmp_path: Path) -> AsyncIterator[MakeNode]:
    nodes: list[SwarmDiscovery] = []

    async def make(name: str, *, join: SwarmDiscovery | None = None, **changes: Any) -> SwarmDiscovery:
        options = {"initial_peers": join.addresses} if join is not None else {}
        keywords = {word: changes.pop(word) for word in ("now_ms", "on_daemon") if word in changes}
        node = SwarmDiscovery(settings_in(tmp_path / name, **(options | changes)), **keywords)
        await node.start()
        nodes.append(node)
        return node

    yield make
    await asyncio.gather(*(node.close() for node in nodes))


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def trio(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Trio]:
    """Three nodes that know one another, shared by all tests that leave them unharmed; the first is the seed."""
    folder = tmp_path_factory.mktemp("trio")
    first = SwarmDiscovery(settings_in(folder / "a"))
    await first.start()
    second, third = (SwarmDiscovery(settings_in(folder / name, initial_peers=first.addresses)) for name in ("b", "c"))
    await asyncio.gather(second.start(), third.start())
    nodes = (first, second, third)
    await until(lambda: all(len(node.peers) == 2 for node in nodes))
    yield nodes
    await asyncio.gather(*(node.close() for node in nodes))


@pytest.fixture(scope="session")
def fresh_seats() -> Iterator[Seat]:
    return iter(Seat(0, replica) for replica in range(NUM_REPLICAS))


@pytest.fixture
def seat(fresh_seats: Iterator[Seat]) -> Seat:
    """A seat that no other test has used."""
    return next(fresh_seats)
