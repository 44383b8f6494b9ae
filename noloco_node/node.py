"""The composition root: plugs discovery, transport, training and telemetry into the driver and runs one node.

Owns start and stop order and the file that tells where a running node is found. Decides nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from noloco_node import __version__
from noloco_node.config.company import company_of
from noloco_node.config.node_config import NodeConfig
from noloco_node.config.run_spec import RunSpec
from noloco_node.core import events as ev
from noloco_node.core.claiming import Claiming
from noloco_node.core.effects import Leave
from noloco_node.core.machine import Machine
from noloco_node.core.types import PeerId, Phase, Seat
from noloco_node.discovery.dht import SwarmDiscovery
from noloco_node.discovery.hivemind_library import keep_time
from noloco_node.discovery.identity import load_or_create_identity
from noloco_node.discovery.settings import DiscoverySettings
from noloco_node.driver.clock import SteadyClock, running_s
from noloco_node.driver.clock_watch import ClockWatch
from noloco_node.driver.data_dir_lock import data_dir_locked
from noloco_node.driver.driver import Driver, Surroundings
from noloco_node.driver.greeting import Greeting
from noloco_node.driver.hop_rules import HopForm
from noloco_node.driver.open_files import raise_open_files_limit
from noloco_node.driver.peer_clocks import PeerClocks
from noloco_node.driver.socket_folder import socket_folder
from noloco_node.driver.stall_watch import StallWatch
from noloco_node.driver.stop_signals import StopSignals
from noloco_node.errors import DiskFailed, ExitCode, NolocoError
from noloco_node.ports import Trainer
from noloco_node.telemetry.diary import Diary, WaitingDiary
from noloco_node.telemetry.history import HistoryLog
from noloco_node.telemetry.http import StatusServer
from noloco_node.telemetry.logs import logger
from noloco_node.telemetry.metrics import NodeMetrics
from noloco_node.telemetry.vitals import Observers, Vitals
from noloco_node.training import checkpoint, footprint
from noloco_node.training.device import check_compiler, resolve_device
from noloco_node.training.lane import TrainingLane
from noloco_node.training.seat_folders import SeatFolders
from noloco_node.transport.identity import RunIdentity
from noloco_node.transport.network import GrpcNetwork, Handlers

RUN_FILE = "node.json"
INCARNATION_BITS = 63
CLOCK_ERROR_SHARE = 0.25  # of skew_max_s: a clock measured less exactly is not measured
NO_PROGRESS_S = 300.0  # without an inner step for so long a training node is not ready

log = logger("node")


@dataclass(slots=True)
class Node:
    """One node of one run: `await run()` until it leaves."""

    config: NodeConfig
    spec: RunSpec

    async def run(self) -> int:
        """Returns the process's exit code. Raises NolocoError."""
        stop = StopSignals(self.config.stop_grace_s)
        with stop.caught():
            try:
                async with contextlib.AsyncExitStack() as closing:
                    return await self._run(closing, stop)
            except asyncio.CancelledError:
                if not stop.asked:
                    raise
                log.info("stopped_while_starting", reason=stop.asked)
                return int(ExitCode.OK)

    async def _run(self, closing: contextlib.AsyncExitStack, stop: StopSignals) -> int:
        raise_open_files_limit()
        self._make_folders()
        closing.enter_context(data_dir_locked(self.config.data_dir))  # before anything of it is read
        await asyncio.to_thread(self._folders.tidy, self.config.wanted_seat)
        sockets = closing.enter_context(socket_folder(self.config.data_dir))
        stages = await asyncio.to_thread(self._fitting_stages)
        metrics = NodeMetrics(time.monotonic)
        company = company_of(self.config, self.spec)
        company.load()
        peers = self._initial_peers()
        steady = SteadyClock()
        settings = self._discovery_settings(peers)
        keep_time(steady.now_s)  # the DHT's as well
        discovery = SwarmDiscovery(settings, now_ms=steady.now_ms, on_daemon=_daemon_watch(metrics))
        await discovery.start()
        closing.push_async_callback(discovery.close)
        vitals = Vitals(time.monotonic)
        history = HistoryLog(self.run_dir / "history.jsonl", time.time)
        closing.callback(history.close)
        observer = Observers((metrics, vitals, history, Diary()))
        driver = self._driver(discovery, observer, vitals, steady, stages)
        clocks = PeerClocks(steady.now_s, running_s, settings.skew_max_s * CLOCK_ERROR_SHARE)
        discovery.on_signed = driver.doorkeeper.carry
        driver.doorkeeper.barred = company.exclusion
        discovery.bar(company.exclusion)
        driver.doorkeeper.on_strike = lambda peer, reason: _struck(metrics, peer, reason)
        pages = _Pages(driver, vitals, metrics, discovery)
        server = StatusServer(pages.render, pages.status, pages.ready)
        port = await server.start(self.config.metrics_address, self.config.metrics_port)
        closing.push_async_callback(server.close)
        identity = RunIdentity(self.spec.run_id, version=__version__)
        driver.doorkeeper.on_refused = metrics.count_refused_call
        network = GrpcNetwork(
            discovery.streams,
            driver.doorkeeper,
            identity,
            sockets,
            traffic=observer.traffic,
            activation_bytes_max=self.spec.hop_bytes,
            uploads_max=self.config.state_uploads_max,
            on_upload=metrics.count_state_upload,
            clocks=clocks,
        )
        await network.start(Handlers(driver, driver, driver))
        closing.push_async_callback(network.close)
        driver.plug(network)
        stalls = StallWatch(lambda: None if driver.trainer is None else driver.trainer.job, _stalled(driver, stop))
        watch = _clock_watch(clocks, steady, driver, metrics, len(_peer_ids(peers)))
        for helper in (stalls, watch, _greeting(network, driver, peers), WaitingDiary(pages.waits_for)):
            helper.start()
            closing.push_async_callback(helper.close)
        company.watch(driver.forget_barred, driver.fail)
        closing.push_async_callback(company.close)
        with self._run_file(discovery, port):
            stop.driver = driver
            left = await driver.run(self._started(peers))
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
            raise _disk_failed(self.config.data_dir, error) from error

    def _initial_peers(self) -> tuple[str, ...]:
        """Without our own address: one list of peers may serve all nodes of a run."""
        assert self.config.identity_file is not None
        own = load_or_create_identity(self.config.identity_file).peer_id
        named = self.config.initial_peers
        others = tuple(address for address in named if not address.endswith(f"/p2p/{own}"))
        if named and not others:
            log.warning("starting_alone", reason="the initial peers name only this node itself")
        return others

    def _discovery_settings(self, initial_peers: tuple[str, ...]) -> DiscoverySettings:
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
            initial_peers=initial_peers,
            start_timeout_s=config.p2p_start_timeout_s,
            reach=config.reach_settings(),
        )

    def _fitting_stages(self) -> frozenset[int] | None:
        """Raises DeviceFailed when there is no device, no room on it, or it cannot do what was asked for."""
        config, device = self.config, resolve_device(self.config.device)
        if config.compile:
            check_compiler(device)
        limit_bytes = int(config.memory_max_gib * footprint.GIB)
        return footprint.fitting_stages(self.spec.training_settings(), device, limit_bytes, config.wanted_seat)

    def _driver(
        self,
        discovery: SwarmDiscovery,
        observer: Observers,
        vitals: Vitals,
        steady: SteadyClock,
        stages: frozenset[int] | None,
    ) -> Driver:
        settings = self.spec.core_settings()
        start_s = running_s() + self.spec.outer.start_unix_s - steady.now_s()
        incarnation = secrets.randbits(INCARNATION_BITS)
        machine = Machine(settings, discovery.peer_id, incarnation, self.config.wanted_seat, start_s, stages)
        folders = self._folders
        around = Surroundings(
            discovery=discovery,
            observer=observer,
            make_trainer=self._trainer,
            checkpoints=folders.newest,
            state_dir=self.run_dir,
            hop_form=HopForm(self.spec.pipeline.wire_dtype, self.spec.hop_shape),
            progress=lambda: (vitals.tokens_per_s, vitals.loss),
            version=__version__,
            wall_ms=steady.now_ms,
            seats_on_disk=folders.seats,
            excerpt=checkpoint.excerpt,
            fetched_parts=self.config.fetched_parts,
        )
        return Driver(machine, around)

    @property
    def _folders(self) -> SeatFolders:
        return SeatFolders(self.run_dir / "checkpoints")

    def _trainer(self, seat: Seat) -> Trainer:
        return TrainingLane(self.spec.training_settings(), self.config.trainer_place(seat, self._folders.of(seat)))

    def _started(self, initial_peers: tuple[str, ...]) -> ev.Started:
        """The seat of the newest local checkpoint is asked for again."""
        wanted, steps = self.config.wanted_seat, self._folders.steps()
        ours = [seat for seat in steps if wanted in (None, seat)]
        seat = max(ours, key=lambda seat: (steps[seat], seat), default=None)
        kept = tuple((other, step) for other, step in steps.items() if other != seat)
        step = None if seat is None else steps[seat]
        return ev.Started(step, seat, bool(initial_peers), self.config.reinit_stage, kept)

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
        try:
            aside.write_text(json.dumps(content, indent=2) + "\n")
            aside.replace(path)
        except OSError as error:
            raise _disk_failed(path, error) from error
        log.info("node_up", peer=content["peer"], addresses=content["addresses"], url=content["url"])
        try:
            yield
        finally:
            path.unlink(missing_ok=True)

    def _code(self, left: Leave) -> int:
        if left.code:
            raise _as_error(left)
        return int(ExitCode.OK)


def _stalled(driver: Driver, stop: StopSignals) -> Callable[[NolocoError], None]:
    """The thread that hangs cannot be ended: the process is, after what can be said was said."""

    def end(error: NolocoError) -> None:
        stop.end_at_last(error.code)
        driver.fail(error)

    return end


def _greeting(network: GrpcNetwork, driver: Driver, addresses: tuple[str, ...]) -> Greeting:
    """A peer of another run or version ends the node while it has no seat; later it is only logged."""

    def misfit(error: NolocoError) -> None:
        if driver.machine.phase is Phase.JOINING:
            driver.fail(error)

    return Greeting(network, _peer_ids(addresses), misfit)


def _peer_ids(addresses: tuple[str, ...]) -> set[PeerId]:
    return {PeerId(address.rsplit("/p2p/", 1)[-1]) for address in addresses}


def _clock_watch(
    clocks: PeerClocks, steady: SteadyClock, driver: Driver, metrics: NodeMetrics, known_peers: int
) -> ClockWatch:
    """A clock that is too far off ends the node only before its first seat."""
    return ClockWatch(
        clocks,
        steady,
        driver.machine.settings.skew_max_s,
        is_starting=lambda: driver.trainer is None,
        on_off=driver.fail,
        show=metrics.set_clock_offset,
        known_peers=known_peers,
        on_follow=lambda jump_s: driver.feed(ev.ClockFollowed(jump_s)),
    )


LEAVE_ADVICE = {
    ExitCode.IDENTITY_IN_USE: "end the other process, or give this node a data directory and key of its own",
    ExitCode.NO_SEAT: "wait for a seat, or ask for another",
}


def _as_error(left: Leave) -> NolocoError:
    code = ExitCode(left.code)
    error = NolocoError(left.reason, LEAVE_ADVICE.get(code, ""))
    error.code = code
    return error


def _disk_failed(path: Path, error: OSError) -> DiskFailed:
    return DiskFailed(f"{path} cannot be written: {error.strerror}", "choose another --data-dir, or make room")


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
class _Pages:
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
        self.metrics.set_bootstrap_state(self._bootstrap_state())
        return self.metrics.render()

    def status(self) -> dict[str, Any]:
        """Without addresses: whoever may see the page need not learn where this machine stands."""
        reach = {"reach": self.discovery.reach, "peers": len(self.discovery.peers), "waits_for": self.waits_for()}
        found = {**self.driver.status(), **self.vitals.shown(), **reach}
        found.pop("addresses", None)
        return found

    def ready(self) -> tuple[bool, str]:
        machine = self.driver.machine
        if machine.phase not in (Phase.TRAINING, Phase.EXCHANGING):
            return False, f"{machine.phase}: {self.waits_for()}".removesuffix(": ")
        if machine.waits_for:
            return False, machine.waits_for
        idle_s = self.driver.around.clock() - self.driver.last_progress_s
        return (idle_s < NO_PROGRESS_S), "" if idle_s < NO_PROGRESS_S else f"no inner step for {idle_s:.0f} s"

    def waits_for(self) -> str:
        """What stands between this node and its work, in words; "" when nothing does."""
        machine = self.driver.machine
        if machine.phase is not Phase.JOINING:
            return machine.waits_for
        if not self.discovery.bootstrapped:
            return "no initial peer answers; trying on"
        if machine.membership.step is Claiming.SPARE:
            seat = machine.wanted
            return "every seat is taken: a spare" if seat is None else f"seat {seat} is taken: a spare"
        return machine.waits_for

    def _bootstrap_state(self) -> str:
        if not self.discovery.bootstrapped:
            return "waiting"
        return "joined" if self.discovery.peers else "alone"
