"""The composition root: plugs discovery, transport, training and telemetry into the driver and runs one node.

Owns start and stop order, signals and the file that tells where a running node is found. Decides nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from noloco_node import __version__
from noloco_node.config.node_config import NodeConfig
from noloco_node.config.run_spec import RunSpec
from noloco_node.core import events as ev
from noloco_node.core import limits
from noloco_node.core.effects import Leave
from noloco_node.core.machine import Machine
from noloco_node.core.types import PeerId, Phase, Seat
from noloco_node.discovery.dht import SwarmDiscovery
from noloco_node.discovery.settings import DiscoverySettings, ReachSettings
from noloco_node.driver.driver import Driver, Surroundings
from noloco_node.errors import DiskFailed, ExitCode, NolocoError, PeerLost
from noloco_node.ports import Trainer
from noloco_node.telemetry.diary import Diary
from noloco_node.telemetry.history import HistoryLog
from noloco_node.telemetry.http import StatusServer
from noloco_node.telemetry.logs import logger
from noloco_node.telemetry.metrics import NodeMetrics
from noloco_node.telemetry.vitals import Observers, Vitals
from noloco_node.training import checkpoint
from noloco_node.training.lane import TrainingLane
from noloco_node.training.settings import TrainerPlace
from noloco_node.transport.identity import RunIdentity
from noloco_node.transport.network import GrpcNetwork, Handlers

RUN_FILE = "node.json"
INCARNATION_BITS = 63
NO_PROGRESS_S = 300.0  # without an inner step for so long a training node is not ready

log = logger("node")


@dataclass(slots=True)
class Node:
    """One node of one run: `await run()` until it leaves."""

    config: NodeConfig
    spec: RunSpec

    async def run(self) -> int:
        """Returns the process's exit code. Raises NolocoError."""
        with _socket_dir() as sockets:
            async with contextlib.AsyncExitStack() as closing:
                return await self._run(sockets, closing)

    async def _run(self, sockets: Path, closing: contextlib.AsyncExitStack) -> int:
        self._make_folders()
        metrics = NodeMetrics(time.monotonic)
        discovery = SwarmDiscovery(self._discovery_settings(), on_daemon=_daemon_watch(metrics))
        await discovery.start()
        closing.push_async_callback(discovery.close)
        vitals = Vitals(time.monotonic)
        history = HistoryLog(self.run_dir / "history.jsonl", time.time)
        closing.callback(history.close)
        observer = Observers((metrics, vitals, history, Diary()))
        driver = self._driver(discovery, observer, vitals)
        driver.doorkeeper.on_strike = lambda peer, reason: _struck(metrics, peer, reason)
        identity = RunIdentity(self.spec.run_id, version=__version__)
        network = GrpcNetwork(discovery.streams, driver.doorkeeper, identity, sockets, traffic=observer.traffic)
        await network.start(Handlers(driver, driver, driver))
        closing.push_async_callback(network.close)
        driver.plug(network)
        await self._greet_initial_peers(network)
        gauges = _Gauges(driver, vitals, metrics, discovery)
        server = StatusServer(gauges.render, gauges.status, _ready(driver))
        port = await server.start(self.config.metrics_address, self.config.metrics_port)
        closing.push_async_callback(server.close)
        with self._run_file(discovery, port), _signals(driver, self.config.stop_grace_s):
            left = await driver.run(self._started())
        return self._code(left)

    # --- parts ------------------------------------------------------------------------------------

    @property
    def run_dir(self) -> Path:
        """What belongs to this run; the identity lies one above."""
        return self.config.data_dir / "runs" / self.spec.run_id

    def _make_folders(self) -> None:
        try:
            self.run_dir.mkdir(parents=True, exist_ok=True)
            probe = self.run_dir / ".writable"
            probe.write_bytes(b"")
            probe.unlink()
        except OSError as error:
            raise DiskFailed(
                f"{self.config.data_dir} cannot be written: {error.strerror}", "choose another --data-dir"
            ) from error

    def _discovery_settings(self) -> DiscoverySettings:
        config, settings = self.config, self.spec.core_settings()
        assert config.identity_file is not None
        return DiscoverySettings(
            run=self.spec.run_id,
            num_stages=settings.num_stages,
            num_replicas=settings.num_replicas,
            identity_path=config.identity_file,
            data_dir=config.data_dir,
            lease_s=settings.lease_s,
            skew_max_s=settings.skew_max_s,
            listen=config.listen,
            announce=config.announce,
            initial_peers=config.initial_peers,
            start_timeout_s=config.p2p_start_timeout_s,
            reach=ReachSettings(
                relay=config.relay,
                auto_relay=config.relay and bool(config.initial_peers),
                auto_nat=config.reachability == "auto",
                force="" if config.reachability == "auto" else config.reachability,
                client_mode=config.reachability == "private",
                allow_private=config.allow_private,
            ),
        )

    def _driver(self, discovery: SwarmDiscovery, observer: Observers, vitals: Vitals) -> Driver:
        settings = self.spec.core_settings()
        start_s = time.monotonic() + self.spec.outer.start_unix_s - time.time()
        incarnation = secrets.randbits(INCARNATION_BITS)
        machine = Machine(settings, discovery.peer_id, incarnation, self.config.wanted_seat, start_s)
        around = Surroundings(
            discovery=discovery,
            observer=observer,
            make_trainer=self._trainer,
            checkpoints=self._newest_checkpoint,
            state_dir=self.run_dir,
            progress=lambda: (vitals.tokens_per_s, vitals.loss),
            version=__version__,
        )
        return Driver(machine, around)

    def _trainer(self, seat: Seat) -> Trainer:
        place = TrainerPlace(seat, self.config.device, self._checkpoint_dir(seat), self.config.threads)
        return TrainingLane(self.spec.training_settings(), place)

    def _checkpoint_dir(self, seat: Seat) -> Path:
        return self.run_dir / "checkpoints" / str(seat)

    def _newest_checkpoint(self, seat: Seat) -> tuple[Path, int] | None:
        path = checkpoint.newest(self._checkpoint_dir(seat))
        return None if path is None else (path, checkpoint.read_meta(path).outer_step)

    def _started(self) -> ev.Started:
        """The seat of the newest local checkpoint is asked for again."""
        wanted = self.config.wanted_seat
        found = [(step, seat) for seat in self._seats_on_disk() for step in [self._step_of(seat)] if step is not None]
        ours = [(step, seat) for step, seat in found if wanted in (None, seat)]
        step, seat = max(ours, default=(None, None))
        return ev.Started(step, seat, has_initial_peers=bool(self.config.initial_peers))

    def _seats_on_disk(self) -> list[Seat]:
        names = [p.name for p in (self.run_dir / "checkpoints").glob("*.*") if re.fullmatch(r"\d+\.\d+", p.name)]
        return [Seat(*map(int, name.split("."))) for name in names]

    def _step_of(self, seat: Seat) -> int | None:
        found = self._newest_checkpoint(seat)
        return None if found is None else found[1]

    async def _greet_initial_peers(self, network: GrpcNetwork) -> None:
        """A peer of another run or protocol version is found out before anything is joined."""
        for address in self.config.initial_peers:
            peer = PeerId(address.rsplit("/p2p/", 1)[-1])
            with contextlib.suppress(PeerLost):
                await network.hello(peer)

    @contextlib.contextmanager
    def _run_file(self, discovery: SwarmDiscovery, port: int) -> Iterator[None]:
        """`node.json` in the data directory while the node runs: pid, peer, addresses, url of its status pages."""
        path = self.config.data_dir / RUN_FILE
        content = {
            "pid": os.getpid(),
            "peer": discovery.peer_id,
            "run": self.spec.run_id,
            "addresses": list(discovery.addresses),
            "url": f"http://{self.config.metrics_address}:{port}",
        }
        aside = path.with_suffix(".tmp")
        aside.write_text(json.dumps(content, indent=2) + "\n")
        aside.replace(path)
        log.info("node_up", peer=content["peer"], addresses=content["addresses"], url=content["url"])
        try:
            yield
        finally:
            path.unlink(missing_ok=True)

    def _code(self, left: Leave) -> int:
        if left.code:
            raise _as_error(left)
        return int(ExitCode.OK)


def _as_error(left: Leave) -> NolocoError:
    error = NolocoError(left.reason)
    error.code = ExitCode(left.code)
    return error


def _daemon_watch(metrics: NodeMetrics) -> Callable[[bool, str], None]:
    def changed(up: bool, reason: str) -> None:
        if up:
            log.info("libp2p_daemon_up")
        else:
            metrics.count_p2pd_restart()
            log.warning("libp2p_daemon_down", reason=reason)

    return changed


def _struck(metrics: NodeMetrics, peer: PeerId, reason: str) -> None:
    metrics.count_strike(reason)
    log.warning("peer_struck", peer=peer, reason=reason)


@dataclass(frozen=True, slots=True)
class _Gauges:
    """The status pages; brings those gauges up to date that no event tells."""

    driver: Driver
    vitals: Vitals
    metrics: NodeMetrics
    discovery: SwarmDiscovery

    def render(self) -> bytes:
        self.metrics.set_phase(self.driver.machine.phase)
        self.metrics.set_spread(self.vitals.spread)
        self.metrics.set_learning_rate(self.vitals.learning_rate)
        self.metrics.set_peers(len(self.discovery.peers))
        return self.metrics.render()

    def status(self) -> dict[str, Any]:
        reach = {"reach": self.discovery.reach, "peers": len(self.discovery.peers)}
        return {**self.driver.status(), **self.vitals.shown(), **reach}


def _ready(driver: Driver) -> Callable[[], tuple[bool, str]]:
    def ready() -> tuple[bool, str]:
        machine = driver.machine
        if machine.phase not in (Phase.TRAINING, Phase.EXCHANGING):
            return False, str(machine.phase)
        if machine.waits_for:
            return False, machine.waits_for
        idle_s = driver.around.clock() - driver.last_progress_s
        return (idle_s < NO_PROGRESS_S), "" if idle_s < NO_PROGRESS_S else f"no inner step for {idle_s:.0f} s"

    return ready


@contextlib.contextmanager
def _socket_dir() -> Iterator[Path]:
    """A private folder with a short path: unix socket names are limited to 108 bytes."""
    path = Path(tempfile.mkdtemp(prefix="noloco-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _signals(driver: Driver, grace_s: float) -> Iterator[None]:
    """First SIGTERM or Ctrl-C: a clean stop within `grace_s`. Second: end at once (the daemon dies with us)."""
    loop = asyncio.get_running_loop()
    asked = False

    def on_signal(name: str) -> None:
        nonlocal asked
        if asked:
            os._exit(int(ExitCode.INTERRUPTED))
        asked = True
        driver.stop(name)
        loop.call_later(max(1.0, grace_s - limits.STOP_MARGIN_S), driver.give_up, name)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number.name)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
