"""Processes that a swarm starts: out of the terminal's reach, and gone with the one who started them."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console

from noloco_node.cli.live_table import node_table
from noloco_node.cli.local_swarm import FINISHED, LocalNode, LocalSwarm
from noloco_node.core.types import Phase, Seat

STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, lambda *_: None); print('up', flush=True); time.sleep(60)"
)
SEATS = [Seat(0, 0), Seat(0, 1)]


class Sleepers(LocalSwarm):
    """Processes that do nothing, in place of nodes."""

    def command(self, seat: Seat, initial_peers: Sequence[str]) -> list[str]:
        return [sys.executable, "-c", STUBBORN if seat == SEATS[1] else "import time; time.sleep(60)"]


def sleeping(folder: Path) -> Sleepers:
    swarm = Sleepers(folder / "swarm.toml", folder, SEATS, temporary=folder)
    swarm.nodes = [swarm._spawn(seat, ()) for seat in SEATS]
    wait_until_stubborn(swarm.nodes[1])
    return swarm


def wait_until_stubborn(node: LocalNode) -> None:
    deadline = time.monotonic() + 30
    while "up" not in (node.folder / "node.log").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_each_node_has_a_session_and_the_folder_for_temporary_files_of_its_own(tmp_path: Path) -> None:
    with sleeping(tmp_path) as swarm:
        for node in swarm.nodes:
            assert os.getsid(node.process.pid) == node.process.pid
            assert f"TMPDIR={tmp_path}".encode() in Path(f"/proc/{node.process.pid}/environ").read_bytes().split(b"\0")
        swarm.nodes[1].process.kill()


def test_second_ctrl_c_ends_the_nodes_that_do_not_hear_the_first(tmp_path: Path) -> None:
    swarm = sleeping(tmp_path)
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        swarm.stop()
    assert [node.process.returncode for node in swarm.nodes] == [-signal.SIGTERM, -signal.SIGKILL]


def test_nodes_are_asked_to_stop_when_whoever_started_them_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys, time; sys.path.insert(0, sys.argv[1]); from pathlib import Path;"
        "from test_local_swarm import sleeping;"
        "print(sleeping(Path(sys.argv[2])).nodes[0].process.pid, flush=True); time.sleep(60)"
    )
    arguments = [sys.executable, "-c", code, str(Path(__file__).parent), str(tmp_path)]
    starter = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
    assert starter.stdout is not None
    pid = int(starter.stdout.readline())
    stubborn = children_of(starter.pid) - {pid}
    starter.kill()
    starter.wait()
    starter.stdout.close()
    try:
        deadline = time.monotonic() + 10
        while Path(f"/proc/{pid}").exists() and "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text():
            assert time.monotonic() < deadline, "the node lives on"
            time.sleep(0.02)
    finally:
        for left in stubborn:
            os.kill(left, signal.SIGKILL)


def children_of(pid: int) -> set[int]:
    return {int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


def test_node_that_ended_is_shown_with_its_end_and_its_last_outer_step(tmp_path: Path) -> None:
    done = [subprocess.Popen([sys.executable, "-c", f"raise SystemExit({code})"]) for code in (0, 3)]
    nodes = [LocalNode(seat, tmp_path, process, io.BytesIO()) for seat, process in zip(SEATS, done, strict=True)]
    for node in nodes:
        node.process.wait()
        node.status = {"seat": str(node.seat), "phase": "draining", "outer_step": 20, "inner_step": 0}
    statuses = [node.poll() for node in nodes]
    assert [status["phase"] for status in statuses] == [FINISHED, "exit code 3"]
    cells = {column.header: list(column.cells) for column in node_table(statuses).columns}
    assert cells["phase"] == [FINISHED, "exit code 3"]
    assert cells["outer\nstep"] == ["20", "20"]
    assert cells["inner\nstep"] == ["-", "0"]


def test_table_is_whole_in_a_terminal_of_80_columns() -> None:
    status = {"seat": "10.12", "phase": Phase.EXCHANGING, "outer_step": 10_000, "inner_step": 100, "loss": 10.1234}
    status |= {"tokens_per_s": 123_456.0, "partner": "10.13", "outer_steps": {"paired": 999, "solo": 99}}
    status |= {"bytes_sent": 1000.4 * 2**20, "bytes_received": 1000.4 * 2**20}
    console = Console(width=80)
    with console.capture() as capture:
        console.print(node_table([status], "noloco-node demo"))
    row = capture.get().splitlines()[-1]
    assert row.split() == ["10.12", "exchanging", "10000", "100", "10.123", "123,456", "10.13", "999/99"] + 2 * [
        "1000.4",
        "MiB",
    ]
