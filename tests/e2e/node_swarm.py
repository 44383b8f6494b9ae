"""Swarms of real node processes for the tests: tiny, on loopback, bounded in time, and looked after to the end."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from noloco_node.cli.local_swarm import LocalNode, LocalSwarm
from noloco_node.config.presets import preset
from noloco_node.config.run_spec import RunSpec
from noloco_node.config.spec_file import dump
from noloco_node.core import limits
from noloco_node.core.types import Admit, Phase, Seat
from noloco_node.training import checkpoint

SEED = 2
SOCKET_FOLDERS = ("noloco-", "nl-", "t-", "hivemind-")
RUN_MAX_S = 150.0  # a whole tiny run on a busy machine
STATUS_MAX_S = 90.0
GONE_MAX_S = 8.0  # children of a process that was killed


def tiny_spec(
    stages: int,
    replicas: int,
    *,
    admit: Admit = Admit.ORDERED,
    micro_batches: int = 2,
    timing: dict[str, Any] | None = None,
    **outer: Any,
) -> RunSpec:
    """Steps clock, a run that starts when all seats are there.

    Micro-batches of 1024 tokens make an inner phase long enough for an OFFER and its answer on a busy machine: who
    has no answer at the boundary takes a solo step. With SEED the pairs of four replicas change at every outer step,
    so that no pair runs more than one outer step ahead of the others.
    """
    outer = {"inner_steps": 3, "total_outer_steps": 3, "start_seats": stages * replicas, **outer}
    return preset(
        "tiny",
        swarm={"num_stages": stages, "num_replicas": replicas, "seed": SEED},
        model={"num_hidden_layers": 2 * stages},
        batch={"sequence_length": 64, "micro_batch_size": 16, "micro_batches": micro_batches},
        outer=outer,
        pipeline={"admit": str(admit)},
        timing={"grace_s": 60.0, "late_s": 60.0, **(timing or {})},
        inner={"total_steps": 1000},
    )


@dataclass(slots=True)
class Watched:
    """A swarm and every process of it that was ever seen, so that what stays behind can be named. `sockets` is the
    nodes' folder for temporary files."""

    spec: RunSpec
    swarm: LocalSwarm
    sockets: Path
    pids: set[int] = field(default_factory=set)
    children: dict[int, set[int]] = field(default_factory=dict)

    def node(self, stage: int, replica: int) -> LocalNode:
        return next(node for node in reversed(self.swarm.nodes) if node.seat == Seat(stage, replica))

    def start(self) -> None:
        self.swarm.start()
        self.note_processes()

    def spawn(self, seat: Seat) -> LocalNode:
        """The same node once more, in its own folder; it may not be up yet."""
        peers = [address for node in self.swarm.running for address in node.info.get("addresses", ())]
        node = self.swarm._spawn(seat, peers)
        self.swarm.nodes.append(node)
        self.note_processes()
        return node

    def wait_for_status(self, node: LocalNode, holds: Callable[[dict[str, Any]], bool], what: str) -> dict[str, Any]:
        """Until /status.json of the node shows it; the answer that did."""

        def check() -> bool:
            assert node.process.poll() is None, f"{node.seat} ended: {node.last_words()}"
            return bool(node.info) and holds(node.poll() or {"phase": ""})

        wait_until(check, STATUS_MAX_S, f"{node.seat}: {what}", lambda: f"{node.status}\n{node.last_words()}")
        self.note_processes()
        return node.status

    def wait_for_phase(self, node: LocalNode, *phases: Phase) -> dict[str, Any]:
        return self.wait_for_status(node, lambda status: status.get("phase") in phases, f"is {' or '.join(phases)}")

    def stop(self, node: LocalNode, *signals: signal.Signals) -> int:
        """Signal the node and wait for its end, no longer than a stop may take. Its children must be gone as well."""
        self.note_processes()
        for number in signals or (signal.SIGTERM,):
            node.process.send_signal(number)
        try:
            code = node.process.wait(limits.STOP_GRACE_S + 2.0)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{node.seat} is still there: {node.last_words()}") from None
        gone = {pid for pid in self.pids if pid in self.children.get(node.process.pid, ())}
        wait_until(lambda: not any(map(is_running, gone)), GONE_MAX_S, f"the children of {node.seat} are gone")
        return code

    def note_processes(self) -> None:
        for node in self.swarm.running:
            pid = node.process.pid
            self.children.setdefault(pid, set()).update(children_of(pid))
            self.pids |= {pid, *self.children[pid]}

    def wait_for_end(self, *killed: LocalNode) -> None:
        """All nodes but those `killed` must end by themselves with code 0."""
        wait_until(lambda: not self.swarm.running, RUN_MAX_S, "every node has ended", self.last_words)
        codes = {str(node.seat): node.process.returncode for node in self.swarm.nodes if node not in killed}
        assert set(codes.values()) == {0}, f"{codes}\n{self.last_words()}"

    def last_words(self) -> str:
        return "\n".join(f"--- {node.seat}\n{node.last_words()}" for node in self.swarm.nodes)

    # --- what a node left behind ------------------------------------------------------------------

    def run_dir(self, seat: Seat) -> Path:
        return self.swarm.folder_of(seat) / "runs" / self.spec.run_id

    def history(self, seat: Seat, kind: str) -> list[dict[str, Any]]:
        return [entry for entry in self.history_of(self.run_dir(seat)) if entry["kind"] == kind]

    def history_of(self, run_dir: Path) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (run_dir / "history.jsonl").read_text().splitlines()]

    def log(self, seat: Seat, event: str) -> list[dict[str, Any]]:
        """Log lines of one kind, as written."""
        return self.log_of(self.swarm.folder_of(seat), event)

    def log_of(self, folder: Path, event: str) -> list[dict[str, Any]]:
        lines = (folder / "node.log").read_text(errors="replace").splitlines()
        entries = [json.loads(line) for line in lines if line.startswith("{")]
        return [entry for entry in entries if entry.get("event") == event]

    def newest_checkpoint(self, seat: Seat) -> tuple[checkpoint.Meta, dict[str, Any]] | None:
        path = checkpoint.newest(self.run_dir(seat) / "checkpoints" / str(seat))
        if path is None:
            return None
        meta = checkpoint.read_meta(path)
        return meta, checkpoint.read_tensors(path, meta)

    def assert_nothing_left(self) -> None:
        """No process of the swarm and no socket folder of one."""
        wait_until(lambda: not self.left_over(), GONE_MAX_S, "all processes are gone", lambda: str(self.left_over()))
        left = self.sockets_left()
        assert left == [], left
        assert [str(n.seat) for n in self.swarm.nodes if n.info] == [], "node.json stays"

    def wake_up(self) -> None:
        """A stopped process could not hear that it should end."""
        for node in self.swarm.running:
            node.process.send_signal(signal.SIGCONT)

    def end_orphans(self) -> None:
        for pid in self.left_over():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def left_over(self) -> list[int]:
        return [pid for pid in sorted(self.pids) if is_running(pid)]

    def sockets_left(self) -> list[str]:
        return sorted(path.name for path in self.sockets.iterdir() if path.name.startswith(SOCKET_FOLDERS))


@contextmanager
def watched_swarm(folder: Path, spec: RunSpec, seats: list[Seat] | None = None) -> Iterator[Watched]:
    """Not started yet. Its temporary files lie in a folder with a short name: socket names are limited."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "swarm.toml").write_text(dump(spec))
    seats = seats or [Seat(s, r) for s in range(spec.swarm.num_stages) for r in range(spec.swarm.num_replicas)]
    with tempfile.TemporaryDirectory(prefix="e2e-") as sockets, mock.patch.dict(os.environ, TMPDIR=sockets):
        with LocalSwarm(folder / "swarm.toml", folder, seats) as swarm:
            watched = Watched(spec, swarm, Path(sockets))
            try:
                yield watched
            finally:
                watched.note_processes()
                watched.wake_up()
        watched.end_orphans()


def wait_until(
    is_true: Callable[[], bool], timeout_s: float, what: str, detail: Callable[[], str] = lambda: ""
) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_true():
        assert time.monotonic() < deadline, f"not within {timeout_s:.0f} s: {what}\n{detail()}"
        time.sleep(0.05)


def children_of(pid: int) -> set[int]:
    """Direct children (Linux). A node has one: its libp2p daemon."""
    found = subprocess.run(["ps", "--no-headers", "-o", "pid", "--ppid", str(pid)], capture_output=True, text=True)
    return {int(word) for word in found.stdout.split()}


def catches(pid: int, number: signal.Signals) -> bool:
    """Whether the process has a handler for the signal yet (Linux)."""
    caught = re.search(r"^SigCgt:\s*([0-9a-f]+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return caught is not None and bool(int(caught[1], 16) >> (number - 1) & 1)


def is_running(pid: int) -> bool:
    """Neither gone nor a zombie that waits for its reaper."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False
