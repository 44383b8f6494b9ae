"""A swarm of real nodes that a plan is carried out on.

Owns the nodes, the network they run in, what was done to them and when, and the watch over hangs. Use as a context
manager: leaving it ends every process and removes the network. Must not know what the figures are good for.
"""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from fault_schedule import Action, Deed
from hang_watch import AT_WORK, HangWatch
from network_lab import NetworkLab, open_network
from node_process import NodeProcess, is_alive

from noloco_node.config.run_spec import RunSpec
from noloco_node.config.spec_file import dump
from noloco_node.core import limits
from noloco_node.core.types import Seat

START_MAX_S = 240.0
SETTLE_MAX_S = 60.0  # a node that was started last may need a while on a busy machine
PEERS_NAMED = 3  # addresses that a node that starts is given
LOOK_S = 0.2
POLL_SLACK_S = 5.0  # a busy machine answers late
SOCKET_FOLDERS = ("noloco-", "nl-", "t-", "hivemind-")
GONE_MAX_S = 10.0  # children of a process that was killed


@dataclass(frozen=True, slots=True)
class Happened:
    """One deed as it was carried out. `seat` and `outer_step` are what the node showed last."""

    at_s: float
    unix_s: float
    action: str
    node: str
    seat: str
    outer_step: int


@dataclass(slots=True)
class ChaosSwarm:
    """Nodes are named n0, n1 ... in the order of their seats; newcomers as the plan names them."""

    spec: RunSpec
    folder: Path
    network: NetworkLab = field(default_factory=open_network)
    nodes: dict[str, NodeProcess] = field(default_factory=dict)
    events: list[Happened] = field(default_factory=list)
    deaths: list[str] = field(default_factory=list)  # ended by themselves, or not within their time
    watch: HangWatch = field(init=False)
    begun_s: float = 0.0  # when all nodes train
    _sockets: tempfile.TemporaryDirectory[str] = field(
        default_factory=lambda: tempfile.TemporaryDirectory(prefix="c", dir="/tmp", ignore_cleanup_errors=True)
    )
    _deeds: dict[Action, Callable[[NodeProcess], None]] = field(init=False)

    def __post_init__(self) -> None:
        outer, timing = self.spec.outer, self.spec.timing
        self.watch = HangWatch(2 * outer.outer_interval_s + timing.exchange_max_s + POLL_SLACK_S)
        self._deeds = {
            Action.KILL: self._kill,
            Action.RESTART: self._restart,
            Action.STOP: self._stop,
            Action.CONTINUE: self._continue,
            Action.CUT: lambda node: self.network.cut(node.name),
            Action.HEAL: lambda node: self.network.heal(node.name),
            Action.KILL_DAEMON: lambda node: node.kill_daemon(),
            Action.LEAVE: self._leave,
            Action.JOIN: self._restart,
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for node in self.nodes.values():
            node.close()
        for pid in self.left_over():
            _end(pid)
        self.network.close()
        self._sockets.cleanup()

    # --- begin and end ----------------------------------------------------------------------------

    @property
    def seats(self) -> list[Seat]:
        swarm = self.spec.swarm
        return [Seat(stage, replica) for stage in range(swarm.num_stages) for replica in range(swarm.num_replicas)]

    @property
    def spec_file(self) -> Path:
        return self.folder / "swarm.toml"

    @property
    def names(self) -> list[str]:
        return [f"n{number}" for number in range(len(self.seats))]

    def start(self) -> None:
        """All seats, the first node alone; returns when every one trains."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.spec_file.write_text(dump(self.spec))
        for name, seat in zip(self.names, self.seats, strict=True):
            node = self.add(name)
            node.start(self._known_addresses(), str(seat))
            if name == self.names[0]:
                self._wait(lambda: bool(self.nodes[self.names[0]].addresses), "the first node is up")
        self._wait(lambda: self._all_at_work(self.names), "every node trains")
        self.begun_s = time.monotonic()

    def add(self, name: str) -> NodeProcess:
        self.network.add(name)
        sockets = Path(self._sockets.name)
        node = NodeProcess(name, self.folder / f"node-{name}", sockets, self.spec_file, self.network, self._heard)
        self.nodes[name] = node
        return node

    def run(self, deeds: Sequence[Deed], seconds: float, each: Callable[[], bool] = lambda: True) -> None:
        """Carry out the plan, watch for `seconds`; end early when `each` says False."""
        rest = list(deeds)
        while (now_s := self.now_s) < seconds and each():
            while rest and rest[0].at_s <= now_s:
                self.do(rest.pop(0))
            self.look()
            time.sleep(LOOK_S)

    def stop(self) -> None:
        """SIGTERM to all; a node that does not end in its time counts as dead."""
        running = [node for node in self.nodes.values() if node.is_running]
        for node in running:
            self.watch.stopped(node.name)
            node.ask_to_end()
        for node in running:
            self._note_end(node)

    # --- while they run ---------------------------------------------------------------------------

    @property
    def now_s(self) -> float:
        return time.monotonic() - self.begun_s

    def do(self, deed: Deed) -> None:
        node = self.nodes.get(deed.node) or self.add(deed.node)
        if node.lives and deed.action not in (Action.RESTART, Action.JOIN) and not node.is_running:
            return  # its death is noted already
        status = node.status
        seat, step = str(status.get("seat") or ""), int(status.get("outer_step") or 0)
        self.events.append(Happened(round(self.now_s, 2), round(time.time(), 2), deed.action, deed.node, seat, step))
        self._deeds[deed.action](node)

    def look(self) -> None:
        """Note children, deaths and hangs."""
        for node in self.nodes.values():
            node.note_children()
            if node.lives and not node.is_running and not (node.life.killed or node.life.asked):
                self._note_death(node)
        self.watch.look({name: node.status for name, node in self.nodes.items()}, time.monotonic())

    def _all_at_work(self, names: Sequence[str]) -> bool:
        return all(self.nodes[name].status.get("phase") in AT_WORK for name in names)

    def _heard(self, node: NodeProcess, status: dict[str, Any]) -> None:
        self.watch.heard(node.name, status, time.monotonic())

    def _known_addresses(self) -> list[str]:
        known = [address for node in self.nodes.values() if node.is_running for address in node.addresses[:1]]
        return known[:PEERS_NAMED]

    def _kill(self, node: NodeProcess) -> None:
        self.watch.stopped(node.name)
        node.kill()

    def _restart(self, node: NodeProcess) -> None:
        node.status = {}
        node.start(self._known_addresses())
        self.watch.goes_on(node.name, time.monotonic())

    def _stop(self, node: NodeProcess) -> None:
        node.signal(signal.SIGSTOP)
        self.watch.stopped(node.name)

    def _continue(self, node: NodeProcess) -> None:
        node.signal(signal.SIGCONT)
        self.watch.goes_on(node.name, time.monotonic())

    def _leave(self, node: NodeProcess) -> None:
        self.watch.stopped(node.name)
        node.ask_to_end()
        self._note_end(node)

    def _note_end(self, node: NodeProcess) -> None:
        if not node.wait(limits.STOP_GRACE_S + 2.0):
            self.deaths.append(f"{node.name} did not end within {limits.STOP_GRACE_S} s of SIGTERM")
            node.kill()
        elif node.life.process.returncode != 0:
            self._note_death(node)

    def _note_death(self, node: NodeProcess) -> None:
        code = node.life.process.returncode
        words = f"{node.name}, life {len(node.lives)}, ended with {code}: {node.last_words()}"
        if words not in self.deaths:
            self.deaths.append(words)

    def _wait(self, is_true: Callable[[], bool], what: str) -> None:
        deadline_s = time.monotonic() + START_MAX_S
        while not is_true():
            self.look()
            if self.deaths or time.monotonic() > deadline_s:
                shown = {name: node.status for name, node in self.nodes.items()}
                raise RuntimeError(f"not within {START_MAX_S:.0f} s: {what}\n{self.deaths}\n{shown}")
            time.sleep(LOOK_S)

    # --- what is left -----------------------------------------------------------------------------

    def settle(self) -> list[str]:
        """Go on without faults until every seat is held, or SETTLE_MAX_S; the seats that are vacant even then."""
        deadline_s = time.monotonic() + SETTLE_MAX_S
        while self.vacant_seats() and time.monotonic() < deadline_s:
            self.look()
            time.sleep(LOOK_S)
        return self.vacant_seats()

    def vacant_seats(self) -> list[str]:
        """Seats of the table that no running node says it works at."""
        held = {n.status.get("seat") for n in self.nodes.values() if n.is_running and n.status.get("phase") in AT_WORK}
        return [str(seat) for seat in self.seats if str(seat) not in held]

    def orphans(self) -> list[str]:
        """After the end: processes that still run, and sockets of nodes that could have removed theirs."""
        deadline_s = time.monotonic() + GONE_MAX_S
        while self.left_over() and time.monotonic() < deadline_s:
            time.sleep(LOOK_S)
        processes = [f"process {pid}" for pid in self.left_over()]
        lives = [life for node in self.nodes.values() for life in node.lives if not life.killed]
        sockets = [f"socket {path}" for life in lives for path in life.sockets.rglob("*") if path.is_socket()]
        folders = [f"folder {path}" for life in lives for p in SOCKET_FOLDERS for path in life.sockets.glob(f"{p}*")]
        return processes + sockets + folders

    def left_over(self) -> list[int]:
        pids = {pid for node in self.nodes.values() for life in node.lives for pid in life.pids}
        return [pid for pid in sorted(pids) if is_alive(pid) and self._is_ours(pid)]

    def _is_ours(self, pid: int) -> bool:
        """A number may be another process's by now."""
        try:
            return self._sockets.name.encode() in Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            return False

    def told(self) -> list[dict[str, Any]]:
        return [asdict(event) for event in self.events]


def _end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
