"""The private socket directory, names of callers, channels, and what is left after a close."""

from __future__ import annotations

import asyncio
import errno
import gc
import itertools
import os
import resource
import stat
from pathlib import Path

import pytest
from loopback_streams import LoopbackStreams, Wires
from loopback_swarm import ALICE, BOB, Node, Swarm, micro_batch, until

from noloco_node.core import limits
from noloco_node.core.types import PeerId
from noloco_node.errors import PeerLost
from noloco_node.transport.channels import Lane
from noloco_node.transport.options import BOTH, CLIENT, SERVER
from noloco_node.transport.pump import Duplex, pump
from noloco_node.transport.tunnel import SOCKET_PATH_BYTES_MAX, Tunnel, peer_named, streams_max


def test_keepalive_of_client_and_server_fit() -> None:
    client, server = dict(CLIENT), dict(SERVER)
    assert client["grpc.keepalive_time_ms"] > server["grpc.http2.min_ping_interval_without_data_ms"]
    assert client["grpc.keepalive_permit_without_calls"] == server["grpc.keepalive_permit_without_calls"] == 1
    for name in ("grpc.max_send_message_length", "grpc.max_receive_message_length"):
        assert client[name] == server[name] == limits.MESSAGE_BYTES_MAX > limits.CHUNK_BYTES_MAX
    assert server["grpc.so_reuseport"] == client["grpc.enable_http_proxy"] == client["grpc.enable_retries"] == 0
    assert set(BOTH) <= set(CLIENT) & set(SERVER)


def test_only_names_a_pump_gave_are_peers() -> None:
    folder = Path("/run/x/t-abc")
    assert peer_named(f"unix:/run/x/t-abc/{ALICE}-17", folder) == ALICE
    for address in (
        "unix:",
        f"unix:/run/x/t-other/{ALICE}-17",
        f"unix:/run/x/t-abc/{ALICE}",
        f"ipv4:/run/x/t-abc/{ALICE}-17",
        "unix:/run/x/t-abc/0OIl-1",
        "ipv4:127.0.0.1:99",
        "unix:/run/x/t-abc/grpc.sock",
    ):
        assert peer_named(address, folder) is None


async def test_directory_is_private_and_removed(tmp_path: Path) -> None:
    tunnel = Tunnel(LoopbackStreams(ALICE, Wires()), tmp_path / "sockets")
    tunnel.open()
    assert stat.S_IMODE(tunnel.directory.stat().st_mode) == 0o700
    await tunnel.close()
    assert not tunnel.directory.exists()


async def test_deep_data_folder_still_gives_short_socket_names(tmp_path: Path) -> None:
    tunnel = Tunnel(LoopbackStreams(ALICE, Wires()), tmp_path / ("deep" * 20) / ("er" * 30))
    tunnel.open()
    assert len(os.fsencode(tunnel.directory / f"{ALICE}-12345678")) <= SOCKET_PATH_BYTES_MAX
    await tunnel.close()
    assert not tunnel.directory.exists()


async def test_close_leaves_no_socket_task_or_stream(peers: Swarm) -> None:
    before = asyncio.all_tasks()
    alice, bob = await peers.add(ALICE), await peers.add(BOB)
    await alice.network.run_hop(bob.peer, micro_batch(), lambda: None)
    alice.network.exchange.open(bob.peer, 1, decider=True)
    await until(lambda: bob.driver.opened)
    for node in (alice, bob):
        await node.network.close()
        await node.network.close()
        assert not node.network.tunnel.directory.exists()
    await until(lambda: asyncio.all_tasks() <= before)


async def test_small_calls_have_a_channel_of_their_own(alice: Node, bob: Node, peers: Swarm) -> None:
    await alice.network.hello(bob.peer)
    await alice.network.run_hop(bob.peer, micro_batch(), lambda: None)
    assert len(alice.network.channels) == peers.wires.opened == 2


async def test_idle_channels_are_closed(alice: Node, bob: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    channels = alice.network.channels
    assert channels._sweeper is not None
    channels._sweeper.cancel()
    monkeypatch.setattr(limits, "CHANNEL_IDLE_S", 0.1)
    channels.start()
    await alice.network.hello(bob.peer)
    await until(lambda: len(channels) == 0)
    await until(lambda: bob.network.tunnel.stream_count == 0)


async def test_channel_is_made_anew_after_failures_in_a_row(alice: Node, bob: Node, peers: Swarm) -> None:
    await alice.network.hello(bob.peer)
    first = alice.network.channels._entries[bob.peer, Lane.CONTROL]
    peers.wires.unreachable.add(bob.peer)
    peers.wires.cut()
    for _ in range(limits.CHANNEL_FAILURES_MAX + 1):
        with pytest.raises(PeerLost):
            await alice.network.hello(bob.peer)
    peers.wires.unreachable.clear()
    await asyncio.sleep(0.3)
    await alice.network.hello(bob.peer)
    assert alice.network.channels._entries[bob.peer, Lane.CONTROL] is not first


async def test_channels_in_use_are_bounded(alice: Node, bob: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CHANNELS_MAX", 1)
    await alice.network.hello(bob.peer)
    await alice.network.run_hop(bob.peer, micro_batch(), lambda: None)
    assert len(alice.network.channels) == 1
    async with alice.network.channels.use(bob.peer, Lane.BULK):
        with pytest.raises(PeerLost, match="in use"):
            await alice.network.hello(bob.peer)


async def test_no_file_left_for_a_socket_is_a_lost_peer(
    alice: Node, bob: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def exhausted(*arguments: object, **named: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(asyncio, "start_unix_server", exhausted)
    with pytest.raises(PeerLost, match="Too many open files"):
        await alice.network.hello(bob.peer)


def test_streams_stay_within_the_files_that_may_be_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda what: (256, 256))
    assert streams_max() == 64
    monkeypatch.setattr(resource, "getrlimit", lambda what: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert streams_max() == limits.TUNNEL_STREAMS_MAX


async def test_closed_peer_is_lost(alice: Node, bob: Node) -> None:
    await alice.network.hello(bob.peer)
    await bob.network.close()
    with pytest.raises(PeerLost):
        await alice.network.hello(bob.peer)


async def test_closed_network_refuses_calls(alice: Node, bob: Node) -> None:
    await alice.network.close()
    with pytest.raises(PeerLost, match="closed"):
        await alice.network.hello(bob.peer)


# --- pump -----------------------------------------------------------------------------------------


NUMBERS = itertools.count()


async def pipe(folder: Path) -> tuple[Duplex, Duplex]:
    """Two connected ends."""
    ends: asyncio.Queue[Duplex] = asyncio.Queue()
    path = folder / f"p{next(NUMBERS)}"
    server = await asyncio.start_unix_server(lambda reader, writer: ends.put_nowait(Duplex(reader, writer)), path)
    one = Duplex(*await asyncio.open_unix_connection(path))
    other = await ends.get()
    server.close()
    return one, other


async def test_pump_closes_both_sides_when_one_ends(tmp_path: Path) -> None:
    (left, left_end), (right_end, right) = await pipe(tmp_path), await pipe(tmp_path)
    pumping = asyncio.create_task(pump(left_end, right_end))
    left.writer.write(b"hello")
    assert await right.reader.readexactly(5) == b"hello"
    left.writer.close()
    assert await right.reader.read() == b""
    await asyncio.wait_for(pumping, 5)
    right.writer.close()


async def test_pump_cuts_a_side_that_takes_no_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "DRAIN_WATCHDOG_S", 0.3)
    (left, left_end), (right_end, right) = await pipe(tmp_path), await pipe(tmp_path)
    right.writer.transport.pause_reading()  # type: ignore[attr-defined]  # a dead link
    pumping = asyncio.create_task(pump(left_end, right_end))
    left.writer.write(bytes(16 * limits.MIB))
    await asyncio.wait_for(pumping, 10)
    left.writer.transport.abort()
    right.writer.transport.abort()


# --- soak -----------------------------------------------------------------------------------------


async def test_five_hundred_failed_exchanges_leave_nothing_behind(
    alice: Node, bob: Node, peers: Swarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LINK_REOPEN_S", 0.01)
    ghosts = [PeerId(f"12D3KooWGhost{number}".replace("0", "z")) for number in range(5)]
    hub = alice.network.exchange

    async def fail(outer_step: int) -> None:
        peer = [bob.peer, *ghosts][outer_step % 6]
        hub.open(peer, outer_step, decider=True)
        hub.expect(peer, outer_step, 1 << 30, bytes(32))
        await asyncio.sleep(0.005)
        if outer_step % 25 == 0:
            peers.wires.cut()
        hub.release(peer, outer_step)

    for outer_step in range(50):
        await fail(outer_step)
    await settled(alice, bob, peers)
    gc.collect()
    tasks, objects, files = len(asyncio.all_tasks()), len(gc.get_objects()), open_files()
    for outer_step in range(50, 550):
        await fail(outer_step)
    await settled(alice, bob, peers)
    gc.collect()
    assert hub.link_count == bob.network.exchange.link_count == 0
    assert len(asyncio.all_tasks()) <= tasks + 2
    assert open_files() <= files + 4
    assert len(gc.get_objects()) < objects + 2000


async def settled(alice: Node, bob: Node, peers: Swarm) -> None:
    """Released links live on until idle; cutting their streams ends them now."""

    def quiet() -> bool:
        peers.wires.cut()
        networks = (alice.network, bob.network)
        return not any(network.exchange.link_count or network.tunnel.stream_count for network in networks)

    await until(quiet)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
