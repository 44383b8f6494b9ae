"""Starting, joining, being alone, starting again: nodes of their own for each test."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import RUN, SEAT, MakeNode, record_of, settings_in, until

from noloco_node.core import limits
from noloco_node.discovery.bootstrap import Bootstrap
from noloco_node.discovery.dht import SwarmDiscovery, unix_ms
from noloco_node.discovery.identity import load_or_create_identity
from noloco_node.discovery.storage import seat_key
from noloco_node.errors import BadConfig, BadIdentity, IdentityInUse, PeerLost, PortInUse


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def refused(folder: Path, expected: type[Exception], **changes: Any) -> str:
    node = SwarmDiscovery(settings_in(folder, **changes))
    try:
        with pytest.raises(expected) as caught:
            await node.start()
    finally:
        await node.close()
    return str(caught.value)


async def test_node_alone_on_purpose_reads_its_own_record_and_is_not_confirmed(make_node: MakeNode) -> None:
    node = await make_node("alone")
    record, _, confirmed = await node.publish(record_of(node))
    assert not confirmed
    assert node.bootstrapped
    assert await node.read(SEAT) == [record]


async def test_record_is_confirmed_only_while_another_node_lives(make_node: MakeNode) -> None:
    first = await make_node("a")
    second = await make_node("b", join=first)
    assert (await second.publish(record_of(second)))[2]
    await first.close()
    record, _, confirmed = await second.publish(record_of(second))
    assert not confirmed
    with pytest.raises(PeerLost):
        await second.read(SEAT)
    assert record.seq > 0


async def test_record_replaces_its_predecessor_even_with_the_clock_set_back(make_node: MakeNode) -> None:
    back_ms = [0]
    first = await make_node("a")
    second = await make_node("b", join=first, now_ms=lambda: unix_ms() - back_ms[0])
    before, _, _ = await second.publish(record_of(second))
    back_ms[0] = 2_000
    after, _, confirmed = await second.publish(record_of(second))
    assert confirmed
    assert after.seq > before.seq
    assert await first.read(SEAT) == [after]


async def test_sequence_goes_on_after_a_restart(make_node: MakeNode) -> None:
    node = await make_node("a")
    before, _, _ = await node.publish(record_of(node))
    await node.close()
    again = await make_node("a", now_ms=lambda: before.seq - 3_600_000)
    after, _, _ = await again.publish(record_of(again))
    assert again.peer_id == before.peer
    assert after.seq > before.seq


async def test_an_answer_with_an_older_record_does_not_age_our_own_copy(make_node: MakeNode) -> None:
    """A peer that keeps an old record, and answers with it, must not end the newer one that we keep."""
    first = await make_node("a", lease_s=2.0)
    second = await make_node("b", join=first, lease_s=2.0)
    old, _, _ = await first.publish(record_of(first))
    stale = second._table.storage
    kept = dict(stale.get(seat_key(RUN, SEAT)).value.items())[first.peer_id]
    await asyncio.sleep(1.0)
    new, _, _ = await first.publish(record_of(first))
    stale.clear()
    stale.store_subkey(seat_key(RUN, SEAT), first.peer_id, kept.value, kept.expiration_time)
    assert await first.read(SEAT) == [new]
    await until(lambda: unix_ms() > old.expires + 100)
    assert await first.read(SEAT) == [new]


async def test_node_joins_when_its_bootstrap_peer_comes_up_later(make_node: MakeNode, tmp_path: Path) -> None:
    port = free_port()
    identity = load_or_create_identity(tmp_path / "seed" / "identity.key")
    seed_address = f"/ip4/127.0.0.1/tcp/{port}/p2p/{identity.peer_id}"
    early = await make_node("early", initial_peers=(seed_address,))
    assert not early.bootstrapped
    with pytest.raises(PeerLost):
        await early.read(SEAT)
    record, _, confirmed = await early.publish(record_of(early))
    assert not confirmed
    seed = await make_node("seed", listen=(f"127.0.0.1:{port}",))
    await until(lambda: early.bootstrapped)
    assert early.clock_offset_s is not None
    assert abs(early.clock_offset_s) < 1
    record, _, confirmed = await early.publish(record_of(early))
    assert confirmed
    assert await seed.read(SEAT) == [record]


async def test_one_good_bootstrap_peer_of_two_is_enough(make_node: MakeNode) -> None:
    seed = await make_node("seed")
    dead = f"/ip4/127.0.0.1/tcp/{free_port()}/p2p/12D3KooWQY9i4vgkKea7aNZ3UFN88MTQox1zCtZtMKPLzcyspScC"
    node = await make_node("node", initial_peers=(dead, *seed.addresses))
    assert node.bootstrapped


async def test_port_in_use_is_named_with_its_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PORT_WAIT_S", 0.3)
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        cause = await refused(tmp_path, PortInUse, listen=(f"127.0.0.1:{port}",))
    assert str(port) in cause
    assert str(os.getpid()) in cause


async def test_port_of_another_node_is_in_use(make_node: MakeNode, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(limits, "PORT_WAIT_S", 0.3)
    first = await make_node("a")
    listen = first.addresses[0].partition("/p2p/")[0]
    cause = await refused(tmp_path / "b", PortInUse, listen=(listen,))
    assert str(first.daemon_pid) in cause


async def test_key_in_use_is_refused_and_the_first_node_unharmed(make_node: MakeNode, tmp_path: Path) -> None:
    first = await make_node("a")
    cause = await refused(tmp_path / "a", IdentityInUse)
    assert str(os.getpid()) in cause
    assert not (await first.publish(record_of(first)))[2]


@pytest.mark.parametrize(
    "changes",
    [
        {"initial_peers": ("/ip4/127.0.0.1/tcp/1",)},
        {"initial_peers": ("junk",)},
        {"listen": ("somewhere",)},
        {"listen": ("/ip4/192.0.2.1/tcp/4001",)},  # no address of this machine
        {"announce": ("/ip4/198.51.100.7/tcp/0",)},
    ],
)
async def test_bad_address_is_a_configuration_error(tmp_path: Path, changes: dict[str, Any]) -> None:
    cause = await refused(tmp_path, BadConfig, **changes)
    assert "\n" not in cause


async def test_bad_key_file_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "identity.key").write_bytes(b"garbage")
    await refused(tmp_path, BadIdentity)


async def test_announced_addresses_replace_our_own(make_node: MakeNode) -> None:
    node = await make_node("a", announce=("/dns4/node.example.org/tcp/4001",))
    assert node.addresses == (f"/dns4/node.example.org/tcp/4001/p2p/{node.peer_id}",)
    assert node.reach == "public"
    assert (await node.publish(record_of(node)))[0].addresses == node.addresses


async def test_starting_takes_no_longer_than_the_dead_bootstrap_peers_dial(make_node: MakeNode) -> None:
    dead = f"/ip4/127.0.0.1/tcp/{free_port()}/p2p/12D3KooWQY9i4vgkKea7aNZ3UFN88MTQox1zCtZtMKPLzcyspScC"
    began = time.monotonic()
    node = await make_node("a", initial_peers=(dead,))
    assert not node.bootstrapped
    assert time.monotonic() - began < limits.DIAL_DEADLINE_S + limits.DHT_DEADLINE_S


@pytest.mark.slow
async def test_restarted_bootstrap_peer_is_met_again(make_node: MakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "JOIN_CHECK_S", 0.3)
    seed = await make_node("seed")
    seed_listen = seed.addresses[0].partition("/p2p/")[0]
    b, c = await make_node("b", join=seed), await make_node("c", join=seed)
    await until(lambda: len(b.peers) == 2 and len(c.peers) == 2)
    await seed.close()
    assert not await b.read(SEAT)  # notices that the seed is silent; c still answers
    seed = await make_node("seed", listen=(seed_listen,))
    assert not seed.peers
    await until(lambda: seed.peers == {b.peer_id, c.peer_id})


@pytest.mark.parametrize("turns", range(6))
async def test_close_ends_a_pause_in_whatever_turn_of_the_loop_a_new_daemon_ends_it_too(turns: int) -> None:
    bootstrap = Bootstrap({}, None, None, None)  # type: ignore[arg-type]

    async def pause_for_ever() -> None:
        while True:
            await bootstrap._pause(60.0)

    bootstrap._task = asyncio.create_task(pause_for_ever())
    await asyncio.sleep(0.01)
    bootstrap.hurry()
    for _ in range(turns):
        await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await bootstrap.close()
