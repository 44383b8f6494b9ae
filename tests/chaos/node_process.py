"""One real node under chaos: its lives, what it said of itself, and every process it ever had.

Owns start and end of the process and the thread that reads its status pages at the node's own place. Must not know
plans or verdicts.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from network_lab import NetworkLab

from noloco_node.cli.local_swarm import RUN_FILE, end_with_parent

POLL_S = 0.5
ANSWER_S = 2.0
DAEMON = "p2pd"


@dataclass(slots=True)
class Life:
    """One process. `killed`: by us, without a chance to clean up; `asked`: to end. `sockets`: its folder for temporary
    files."""

    process: subprocess.Popen[bytes]
    sockets: Path
    killed: bool = False
    asked: bool = False
    children: set[int] = field(default_factory=set)

    @property
    def pids(self) -> set[int]:
        return {self.process.pid, *self.children}


@dataclass(slots=True)
class NodeProcess:
    """`heard` is called with (node, status) from a thread of its own, whenever the node answers."""

    name: str
    folder: Path
    sockets: Path
    spec_file: Path
    network: NetworkLab
    heard: Callable[[NodeProcess, dict[str, Any]], object]
    status: dict[str, Any] = field(default_factory=dict)
    lives: list[Life] = field(default_factory=list)
    _watch: threading.Thread | None = None
    _is_watched: bool = True

    @property
    def life(self) -> Life:
        return self.lives[-1]

    @property
    def is_running(self) -> bool:
        return bool(self.lives) and self.life.process.poll() is None

    @property
    def addresses(self) -> list[str]:
        return list(self._info().get("addresses", ()))

    @property
    def daemons(self) -> set[int]:
        """The p2pd of the running life."""
        return {pid for pid in children_of(self.life.process.pid) if name_of(pid) == DAEMON}

    def start(self, initial_peers: Sequence[str], seat: str = "auto") -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        sockets = self.sockets / f"{self.name}{chr(ord('a') + len(self.lives) % 26)}"
        sockets.mkdir(exist_ok=True)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("NOLOCO_")}
        own = {"TMPDIR": str(sockets), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        with (self.folder / "node.log").open("ab") as log:
            process = subprocess.Popen(
                self._command(initial_peers, seat),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=kept | own,
                preexec_fn=end_with_parent,
            )
        self.lives.append(Life(process, sockets))
        if self._watch is None:
            self._watch = threading.Thread(target=self._read_status, name=f"watch {self.name}", daemon=True)
            self._watch.start()

    def signal(self, number: signal.Signals) -> None:
        if self.is_running:
            self.life.process.send_signal(number)

    def ask_to_end(self) -> None:
        self.note_children()
        self.life.asked = True
        self.signal(signal.SIGTERM)

    def kill(self) -> None:
        self.note_children()
        self.life.killed = True
        self.signal(signal.SIGKILL)
        self.life.process.wait()

    def kill_daemon(self) -> None:
        self.note_children()
        for pid in self.daemons:
            os.kill(pid, signal.SIGKILL)

    def note_children(self) -> None:
        if self.is_running:
            self.life.children |= children_of(self.life.process.pid)

    def wait(self, timeout_s: float) -> bool:
        """Whether it ended within the time."""
        try:
            self.life.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def close(self) -> None:
        """Nothing of it is watched any more; what still runs is ended."""
        self._is_watched = False
        if self.is_running:
            self.signal(signal.SIGCONT)
            self.kill()
        if self._watch is not None:
            self._watch.join(ANSWER_S + POLL_S + 1.0)

    def last_words(self) -> str:
        return "\n".join((self.folder / "node.log").read_text(errors="replace").strip().splitlines()[-4:])

    # --- inside -----------------------------------------------------------------------------------

    def _command(self, initial_peers: Sequence[str], seat: str) -> list[str]:
        flags = {
            "--spec": str(self.spec_file),
            "--data-dir": str(self.folder),
            "--seat": seat,
            "--metrics-port": "0",
            "--device": "cpu",
            "--threads": "1",
            "--log-format": "json",
            "--reachability": "public",
        }
        named = [part for pair in flags.items() for part in pair]
        peers = [part for address in initial_peers for part in ("--initial-peers", address)]
        place = [*self.network.flags(self.name), "--no-relay"]
        return [*self.network.prefix(self.name), sys.executable, "-m", "noloco_node", "run", *named, *place, *peers]

    def _info(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self.folder / RUN_FILE).read_text())
        except (OSError, ValueError):
            return {}
        return found if self.lives and found.get("pid") == self.life.process.pid else {}

    def _read_status(self) -> None:
        self.network.enter(self.name)
        while self._is_watched:
            url = self._info().get("url")
            if url is not None and self.is_running:
                with contextlib.suppress(urllib.error.URLError, OSError, ValueError):
                    with urllib.request.urlopen(f"{url}/status.json", timeout=ANSWER_S) as answer:
                        self.status = json.load(answer)
                    self.heard(self, self.status)
            time.sleep(POLL_S)


def children_of(pid: int) -> set[int]:
    """Direct children (Linux)."""
    found: set[int] = set()
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found |= {int(word) for word in path.read_text().split()}
    return found


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def is_alive(pid: int) -> bool:
    """Neither gone nor a zombie that waits for its reaper."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False
