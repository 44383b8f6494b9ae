"""What strangers answer, and what breaks in the background, does not end a node's loops."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import RUN, settings_in, until

from noloco_node.core import limits
from noloco_node.core.types import PeerId
from noloco_node.discovery.address_book import AddressBook
from noloco_node.discovery.bootstrap import Bootstrap
from noloco_node.discovery.daemon import Daemon
from noloco_node.discovery.records import RecordRules, RecordVerifier
from noloco_node.discovery.seat_table import SeatTable
from noloco_node.errors import PeerLost

PEER = PeerId("12D3KooWQY9i4vgkKea7aNZ3UFN88MTQox1zCtZtMKPLzcyspScC")


@pytest.mark.parametrize("node_id", [b"\xff" * 64, b"\xff" * 21])
async def test_impossible_node_id_is_no_answer(node_id: bytes) -> None:
    table = SeatTable(RUN, PEER, RecordVerifier(RecordRules(RUN, 2, 2, 1, 1), lambda: 0), client_mode=True)

    async def ping(request: Any, timeout: float) -> Any:
        return SimpleNamespace(peer=SimpleNamespace(node_id=node_id), dht_time=0.0)

    async def update(*arguments: Any, **named: Any) -> None: ...

    protocol = SimpleNamespace(
        node_info=None, get_stub=lambda peer: SimpleNamespace(rpc_ping=ping), update_routing_table=update
    )
    table._node = SimpleNamespace(protocol=protocol)
    with pytest.raises(PeerLost):
        await table.greet(PEER)


class StrangeTable:
    """Answers a greeting with an error nobody expected, breaks the first look-up, then works."""

    def __init__(self) -> None:
        self.peers: frozenset[PeerId] = frozenset()
        self.greeted = 0
        self.explored = 0

    async def greet(self, peer: PeerId) -> float:
        self.greeted += 1
        if self.greeted == 1:
            raise ValueError("an answer of the wrong kind")
        self.peers = frozenset({peer})
        return 0.0

    async def explore(self) -> None:
        self.explored += 1
        if self.explored == 1:
            self.peers = frozenset()
            raise RuntimeError("broken")


async def test_joining_goes_on_whatever_breaks_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JOIN_CHECK_S", "BOOTSTRAP_RETRY_S", "BOOTSTRAP_RETRY_MAX_S"):
        monkeypatch.setattr(limits, name, 0.01)

    async def connect(peer: PeerId, addresses: Any) -> None: ...

    table = StrangeTable()
    bootstrap = Bootstrap({PEER: ()}, table, SimpleNamespace(connect=connect), AddressBook(loopback=True))  # type: ignore[arg-type]
    await bootstrap.start()
    await until(lambda: table.explored >= 2 and bootstrap.joined)
    await bootstrap.close()


async def test_daemon_is_started_again_whatever_broke_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DAEMON_RESTART_S", "DAEMON_RESTART_MAX_S", "BOOTSTRAP_RETRY_S"):
        monkeypatch.setattr(limits, name, 0.01)
    faults: list[Exception] = [RuntimeError("the DHT did not start"), KeyError("left")]
    reasons: list[str] = []

    async def up(*arguments: Any) -> None: ...

    async def launch() -> None:
        if faults:
            raise faults.pop(0)
        daemon._p2p = SimpleNamespace(_child=SimpleNamespace(wait=asyncio.Event().wait))

    daemon = Daemon(settings_in(tmp_path), None, (), on_up=up, on_down=reasons.append)  # type: ignore[arg-type]
    monkeypatch.setattr(daemon, "_launch", launch)
    supervisor = asyncio.create_task(daemon._supervise())
    await until(lambda: daemon.restarts == 1)
    assert reasons == ["it was not started", "RuntimeError: the DHT did not start", "KeyError: 'left'"]
    assert not supervisor.done()
    supervisor.cancel()
    await asyncio.gather(supervisor, return_exceptions=True)
