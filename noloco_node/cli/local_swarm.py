"""Real node processes on this machine: started, watched, stopped; none survives the one who started them."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from noloco_node.core.types import Seat
from noloco_node.errors import NolocoError, SwarmUnreachable

START_TIMEOUT_S = 120.0
STATUS_TIMEOUT_S = 2.0
STOP_TIMEOUT_S = 30.0
STALL_S = 180.0  # no node moves on for so long: the swarm hangs
PR_SET_PDEATHSIG = 1
FINISHED = "finished"
RUN_FILE = "node.json"  # written by a running node: pid, peer, addresses, url


def end_with_parent() -> None:
    """In the child before exec: when the parent dies, this process is asked to stop (Linux; elsewhere nothing)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def run_info(folder: Path, pid: int) -> dict[str, Any]:
    """What the node of that process wrote about itself once it was up; empty before."""
    try:
        found: dict[str, Any] = json.loads((folder / RUN_FILE).read_text())
    except (OSError, ValueError):
        return {}
    return found if found.get("pid") == pid else {}


@dataclass(slots=True)
class LocalNode:
    """One node process. `status` is the newest answer of its /status.json."""

    seat: Seat
    folder: Path
    process: subprocess.Popen[bytes]
    log: IO[bytes]
    status: dict[str, Any] = field(default_factory=dict)

    @property
    def info(self) -> dict[str, Any]:
        """What the node wrote about itself once it was up; empty before."""
        return run_info(self.folder, self.process.pid)

    def poll(self) -> dict[str, Any]:
        """Its newest answer; of a node that has ended the last one, with its end for a phase."""
        code, url = self.process.poll(), self.info.get("url")
        if code is not None:
            self.status["phase"] = FINISHED if code == 0 else f"exit code {code}"
        elif url is not None:
            with (
                contextlib.suppress(urllib.error.URLError, OSError, ValueError),
                urllib.request.urlopen(f"{url}/status.json", timeout=STATUS_TIMEOUT_S) as answer,
            ):
                self.status = json.load(answer)
        return self.status

    def last_words(self) -> str:
        """The end of its log: the two lines a person needs when it failed."""
        self.log.flush()
        lines = (self.folder / "node.log").read_text(errors="replace").strip().splitlines()
        return "\n".join(lines[-4:])


@dataclass(slots=True)
class LocalSwarm:
    """All nodes of one run spec on loopback. Use as a context manager: leaving it ends every process.

    Each node has a session of its own: Ctrl-C in a terminal reaches this process only, which asks them to stop, once.
    `temporary`: their folder for temporary files, with a short name; it is the caller's to remove.
    """

    spec_file: Path
    data_dir: Path
    seats: Sequence[Seat]
    threads: int = 1
    extra_flags: tuple[str, ...] = ()
    temporary: Path | None = None
    nodes: list[LocalNode] = field(default_factory=list)

    def __enter__(self) -> LocalSwarm:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def start(self) -> None:
        """The first node alone, the others with its address. Raises NolocoError when one ends before it is up."""
        first, *rest = self.seats
        self.nodes.append(self._spawn(first, ()))
        addresses = self._wait_up(self.nodes[0])["addresses"]
        self.nodes += [self._spawn(seat, addresses) for seat in rest]
        for node in self.nodes[1:]:
            self._wait_up(node)

    def folder_of(self, seat: Seat) -> Path:
        return self.data_dir / f"node-{seat}"

    def command(self, seat: Seat, initial_peers: Sequence[str]) -> list[str]:
        flags = {
            "--spec": str(self.spec_file),
            "--data-dir": str(self.folder_of(seat)),
            "--seat": str(seat),
            "--listen": "/ip4/127.0.0.1/tcp/0",
            "--metrics-port": "0",
            "--device": "cpu",
            "--threads": str(self.threads),
            "--log-format": "json",
            "--reachability": "public",
        }
        peers = [part for address in initial_peers for part in ("--initial-peers", address)]
        named = [part for pair in flags.items() for part in pair]
        own = ["--allow-private", "--no-relay", *self.extra_flags]
        return [sys.executable, "-m", "noloco_node", "run", *named, *own, *peers]

    def _spawn(self, seat: Seat, initial_peers: Sequence[str]) -> LocalNode:
        folder = self.folder_of(seat)
        folder.mkdir(parents=True, exist_ok=True)
        log = (folder / "node.log").open("ab")
        process = subprocess.Popen(
            self.command(seat, initial_peers),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=self._environment(),
            start_new_session=True,
            preexec_fn=end_with_parent,
        )
        return LocalNode(seat, folder, process, log)

    def _environment(self) -> dict[str, str]:
        plain = {k: v for k, v in os.environ.items() if not k.startswith("NOLOCO_")}
        own = {"OMP_NUM_THREADS": str(self.threads), "HF_HUB_OFFLINE": "1"}
        return {**plain, **own, **({"TMPDIR": str(self.temporary)} if self.temporary else {})}

    def _wait_up(self, node: LocalNode) -> dict[str, Any]:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            info = node.info
            if info.get("addresses"):
                return info
            if node.process.poll() is not None:
                raise _ended_early(node)
            time.sleep(0.1)
        raise SwarmUnreachable(f"node {node.seat} was not up within {START_TIMEOUT_S:.0f} s", f"see {node.folder}")

    # --- while they run ---------------------------------------------------------------------------

    @property
    def running(self) -> list[LocalNode]:
        return [node for node in self.nodes if node.process.poll() is None]

    def poll(self) -> list[dict[str, Any]]:
        return [node.poll() for node in self.nodes]

    def failed(self) -> LocalNode | None:
        return next((node for node in self.nodes if node.process.poll() not in (None, 0)), None)

    def stop(self) -> None:
        """SIGTERM to all; SIGKILL to whom does not end, and to all at a second Ctrl-C. The logs are closed."""
        for node in self.running:
            node.process.terminate()
        try:
            self._wait_ended(time.monotonic() + STOP_TIMEOUT_S)
        finally:
            for node in self.running:
                node.process.kill()
            for node in self.nodes:
                node.process.wait()
                node.log.close()

    def _wait_ended(self, deadline_s: float) -> None:
        for node in self.nodes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                node.process.wait(max(0.1, deadline_s - time.monotonic()))


def _ended_early(node: LocalNode) -> NolocoError:
    return NolocoError(
        f"node {node.seat} ended with exit code {node.process.returncode} before it was up: {node.last_words()}",
        f"its log is {node.folder / 'node.log'}",
    )


def wait_for_end(
    swarm: LocalSwarm,
    each: Callable[[list[dict[str, Any]]], object],
    interval_s: float = 0.5,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Call `each(statuses)` until all nodes ended. Raises NolocoError when one fails or none moves any more."""
    seen, moved_s = _progress(swarm), clock()
    while swarm.running:
        each(swarm.poll())
        broken = swarm.failed()
        if broken is not None:
            raise NolocoError(
                f"node {broken.seat} ended with exit code {broken.process.returncode}: {broken.last_words()}",
                f"its log is {broken.folder / 'node.log'}",
            )
        if (now := _progress(swarm)) != seen:
            seen, moved_s = now, clock()
        elif clock() >= moved_s + STALL_S:
            stalled = _stalled(swarm)
            swarm.stop()
            raise stalled
        time.sleep(interval_s)
    each(swarm.poll())


def _progress(swarm: LocalSwarm) -> list[tuple[Any, ...]]:
    """What changes while a swarm is alive."""
    shown = ("phase", "outer_step", "inner_step")
    return [(node.process.poll(), *(node.status.get(name) for name in shown)) for node in swarm.nodes]


def _stalled(swarm: LocalSwarm) -> NolocoError:
    stood = "; ".join(
        f"node {node.seat} in phase {node.status.get('phase', 'unknown')} at step {node.status.get('outer_step', '?')}."
        f"{node.status.get('inner_step', '?')}, waiting for {node.status.get('waits_for') or 'nothing it knows of'}"
        for node in swarm.running
    )
    return NolocoError(f"nothing moved for {STALL_S:.0f} s: {stood}", f"the logs are {swarm.data_dir}/node-*/node.log")
