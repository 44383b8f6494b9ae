"""p2pd is watched, started again, and never left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import SEAT, MakeNode, record_of, settings_in, until

from noloco_node.core import limits
from noloco_node.core.types import PeerId
from noloco_node.discovery.dht import SwarmDiscovery
from noloco_node.errors import DaemonFailed, PeerLost

PROTOCOL = "/noloco-test/1"


@pytest.fixture
def sockets_before() -> set[str]:
    return socket_folders()


def socket_folders() -> set[str]:
    return {name for name in os.listdir(tempfile.gettempdir()) if name.startswith("noloco-p2pd-")}


def lives(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


async def freeze(pid: int) -> None:
    """SIGSTOP, and wait until every thread stands: on a loaded machine the others go on until the first one has run."""
    os.kill(pid, signal.SIGSTOP)
    await until(lambda: stands(pid))


def stands(pid: int) -> bool:
    try:
        states = [task.read_text() for task in Path(f"/proc/{pid}/task").glob("*/status")]
    except OSError:  # a thread ended meanwhile
        return False
    return all("\nState:\tT" in state for state in states)


async def echo(peer: PeerId, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(await reader.readline())
    await writer.drain()


async def heard(caller: SwarmDiscovery, callee: SwarmDiscovery) -> bool:
    try:
        reader, writer = await caller.streams.open(callee.peer_id, PROTOCOL)
    except PeerLost:
        return False
    writer.write(b"hello\n")
    answer = await reader.read()
    writer.close()
    return answer == b"hello\n"


async def test_killed_daemon_comes_back_with_streams_records_and_its_port(make_node: MakeNode) -> None:
    changes: list[tuple[bool, str]] = []
    a = await make_node("a")
    b = await make_node("b", join=a, on_daemon=lambda up, reason: changes.append((up, reason)))
    await a.streams.serve(PROTOCOL, echo)
    await b.streams.serve(PROTOCOL, echo)
    old_pid, old_addresses = b.daemon_pid, b.addresses
    assert old_pid is not None
    record, _, _ = await b.publish(record_of(b))
    os.kill(old_pid, signal.SIGKILL)
    await until(lambda: b.daemon_restarts == 1 and b.bootstrapped)
    assert [up for up, _ in changes] == [True, False, True]
    assert "exit code" in changes[1][1]
    assert b.daemon_pid != old_pid
    assert b.addresses == old_addresses
    await until(lambda: heard(a, b))
    await until(lambda: heard(b, a))
    newer, _, confirmed = await b.publish(record_of(b))
    assert confirmed
    assert newer.seq > record.seq
    assert await a.read(SEAT) == [newer]


async def test_calls_fail_at_once_while_the_daemon_is_down(make_node: MakeNode, monkeypatch: Any) -> None:
    monkeypatch.setattr(limits, "DAEMON_RESTART_S", 3.0)
    a = await make_node("a")
    b = await make_node("b", join=a)
    assert b.daemon_pid is not None
    os.kill(b.daemon_pid, signal.SIGKILL)
    await until(lambda: b.daemon_pid is None)
    async with asyncio.timeout(1):
        with pytest.raises(PeerLost):
            await b.read(SEAT)
        with pytest.raises(PeerLost):
            await b.streams.open(a.peer_id, PROTOCOL)
        assert not (await b.publish(record_of(b)))[2]


async def test_call_under_way_when_the_daemon_dies_ends_in_time(make_node: MakeNode, monkeypatch: Any) -> None:
    monkeypatch.setattr(limits, "DHT_RPC_DEADLINE_S", 1.0)
    a = await make_node("a")
    b = await make_node("b", join=a)
    assert a.daemon_pid is not None
    await freeze(a.daemon_pid)
    try:
        read = asyncio.create_task(b.read(SEAT))
        await asyncio.sleep(0.2)
        assert b.daemon_pid is not None
        os.kill(b.daemon_pid, signal.SIGKILL)
        with pytest.raises(PeerLost):
            await asyncio.wait_for(read, limits.DHT_DEADLINE_S + 1)
    finally:
        os.kill(a.daemon_pid, signal.SIGCONT)


async def test_hung_daemon_is_replaced(make_node: MakeNode, monkeypatch: Any) -> None:
    monkeypatch.setattr(limits, "DAEMON_PROBE_S", 0.2)
    monkeypatch.setattr(limits, "DAEMON_STOP_S", 0.3)
    node = await make_node("a")
    hung = node.daemon_pid
    assert hung is not None
    await freeze(hung)
    await until(lambda: node.daemon_restarts == 1)
    assert not lives(hung)
    assert (await node.publish(record_of(node)))[0] in await node.read(SEAT)


async def test_many_deaths_in_a_row_lead_to_a_long_pause(make_node: MakeNode, monkeypatch: Any) -> None:
    node = await make_node("a")
    daemon = node._daemon
    pauses = [daemon._first_pause() for _ in range(limits.DAEMON_RESTARTS_MAX)]
    assert pauses[:-1] == [limits.DAEMON_RESTART_S] * (limits.DAEMON_RESTARTS_MAX - 1)
    assert pauses[-1] == limits.DAEMON_RESTART_MAX_S


async def test_ctrl_c_in_a_terminal_does_not_reach_the_daemon(make_node: MakeNode) -> None:
    """A terminal signals the foreground process group: the node, who says goodbye through the daemon."""
    pid = (await make_node("a")).daemon_pid
    assert pid is not None
    assert os.getsid(pid) == os.getpgid(pid) == pid


async def test_close_leaves_no_process_no_socket_and_no_pid_file(
    make_node: MakeNode, tmp_path: Path, sockets_before: set[str]
) -> None:
    node = await make_node("a")
    pid = node.daemon_pid
    assert pid is not None
    assert lives(pid)
    await node.close()
    assert not lives(pid)
    assert socket_folders() == sockets_before
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["identity.key", "identity.key.lock"]


# --- the owner is killed ------------------------------------------------------------------------------

OWNER = """
import asyncio, sys
from pathlib import Path
import uvloop
from noloco_node.discovery.dht import SwarmDiscovery
from noloco_node.discovery.settings import DiscoverySettings

async def main() -> None:
    folder = Path(sys.argv[1])
    node = SwarmDiscovery(DiscoverySettings("run", 1, 1, folder / "identity.key", folder, listen=(sys.argv[2],)))
    await node.start()
    print(node.daemon_pid, node.addresses[0], flush=True)
    await asyncio.sleep(120)

uvloop.run(main())
"""


def start_owner(folder: Path, listen: str) -> tuple[subprocess.Popen[str], int, str]:
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(folder), listen], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    pid, address = owner.stdout.readline().split()
    owner.stdout.close()
    return owner, int(pid), address


async def test_killed_owner_leaves_no_daemon_and_restarts_at_once_on_its_port(
    tmp_path: Path, sockets_before: set[str]
) -> None:
    folder = tmp_path / "node"
    owner, daemon_pid, address = await asyncio.to_thread(start_owner, folder, "127.0.0.1:0")
    assert lives(daemon_pid)
    owner.kill()
    owner.wait()
    node = SwarmDiscovery(settings_in(folder, listen=(address.partition("/p2p/")[0],)))
    try:
        await node.start()
        assert node.addresses == (address,)
        await until(lambda: not lives(daemon_pid), within_s=5)
    finally:
        await node.close()
    assert socket_folders() == sockets_before


@pytest.mark.slow
async def test_hung_orphan_is_ended_at_the_next_start(tmp_path: Path, sockets_before: set[str]) -> None:
    folder = tmp_path / "node"
    owner, daemon_pid, address = await asyncio.to_thread(start_owner, folder, "127.0.0.1:0")
    await freeze(daemon_pid)
    owner.kill()
    owner.wait()
    assert lives(daemon_pid)
    node = SwarmDiscovery(settings_in(folder, listen=(address.partition("/p2p/")[0],)))
    try:
        await node.start()
        await until(lambda: not lives(daemon_pid), within_s=5)
    finally:
        await node.close()
    assert socket_folders() == sockets_before


async def test_pid_file_that_names_a_stranger_harms_nobody(make_node: MakeNode, tmp_path: Path) -> None:
    stranger = await asyncio.to_thread(subprocess.Popen, [sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        (tmp_path / "a").mkdir()
        (tmp_path / "a" / "p2pd.json").write_text(f'{{"pid": {stranger.pid}, "sockets": "{tmp_path}"}}')
        await make_node("a")
        assert stranger.poll() is None
        assert "a" in os.listdir(tmp_path)
    finally:
        stranger.kill()
        stranger.wait()


# --- a daemon that cannot run -------------------------------------------------------------------------


def fake_p2pd(folder: Path, script: str, mode: int = 0o755) -> Path:
    path = folder / "p2pd"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(mode)
    return path


async def failure(folder: Path, **changes: Any) -> DaemonFailed:
    node = SwarmDiscovery(settings_in(folder, **changes))
    try:
        with pytest.raises(DaemonFailed) as caught:
            await node.start()
    finally:
        await node.close()
    return caught.value


async def test_slow_daemon_is_given_up_after_the_time_that_the_message_names(
    tmp_path: Path, sockets_before: set[str]
) -> None:
    path = fake_p2pd(tmp_path, "exec sleep 60")
    began = time.monotonic()
    error = await failure(tmp_path / "node", p2pd_path=path, start_timeout_s=1.5)
    assert "1.5 s" in error.cause
    assert error.advice
    assert time.monotonic() - began < 30
    assert socket_folders() == sockets_before


async def test_daemon_that_starts_late_is_waited_for(make_node: MakeNode, tmp_path: Path) -> None:
    from noloco_node.discovery.daemon import bundled_p2pd

    path = fake_p2pd(tmp_path, f'sleep 1; exec {bundled_p2pd()} "$@"')
    node = await make_node("a", p2pd_path=path)
    assert node.addresses


async def test_daemon_that_ends_at_once_is_reported_with_its_last_words(tmp_path: Path) -> None:
    error = await failure(tmp_path / "node", p2pd_path=fake_p2pd(tmp_path, "echo out of luck; exit 3"))
    assert "out of luck" in error.cause


@pytest.mark.parametrize("mode", [0o644, None])
async def test_daemon_that_cannot_be_executed_is_reported(tmp_path: Path, mode: int | None) -> None:
    path = tmp_path / "absent" if mode is None else fake_p2pd(tmp_path, "", mode)
    error = await failure(tmp_path / "node", p2pd_path=path)
    assert str(path) in error.cause
