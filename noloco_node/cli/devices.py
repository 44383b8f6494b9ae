"""Several devices of one machine: a node, a seat and a process for each, and one process that watches over them.

Each has its data directory below the one given (`cuda-0`, `cuda-1` ...), its own key and its own ports: those given
plus its number. The first joins as told; the others join by it as well. A node that ends by a fault of the moment is
started again; any other end is final. The watcher trains nothing and imports no torch.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from noloco_node.cli.local_swarm import end_with_parent, run_info
from noloco_node.cli.preflight import check_data_dir
from noloco_node.cli.signal_handlers import answered
from noloco_node.config.node_config import ALL_DEVICES, ENV_PREFIX, NodeConfig
from noloco_node.config.node_sources import as_variables
from noloco_node.driver.data_dir_lock import DataDirInUse, data_dir_locked
from noloco_node.errors import BadConfig, DeviceFailed, DiskFailed, ExitCode
from noloco_node.telemetry.logs import logger

POLL_S = 0.2
RESTART_S, RESTART_MAX_S = 5.0, 300.0
STEADY_S = 600.0  # who ran so long begins with the short pause again
STOP_SLACK_S = 10.0  # beyond the grace time of the nodes
COUNT_TIMEOUT_S = 120.0
STARTS_LED_MAX = 2  # failed starts of the first device until the next one leads
PORT_MAX = 65535
PASSING = (ExitCode.INTERNAL, ExitCode.P2PD_FAILED, ExitCode.TRAINING_STALLED)  # and any death by a signal
PORT = re.compile(r"(?<=/tcp/|/udp/)\d+")
COUNT_GPUS = "import torch; print(torch.cuda.device_count() if torch.cuda.is_available() else 0)"

log = logger("devices")


def device_configs(config: NodeConfig) -> list[NodeConfig]:
    """A configuration for each device named. Raises DeviceFailed when "all" finds none."""
    names = _gpus() if config.devices == (ALL_DEVICES,) else config.devices
    seen: Counter[str] = Counter()
    made = []
    for number, name in enumerate(names):
        folder = config.data_dir / f"{name.replace(':', '-')}{f'-{seen[name]}' if seen[name] else ''}"
        seen[name] += 1
        changes: dict[str, Any] = {
            "device": name,
            "devices": (),
            "data_dir": folder,
            "identity_file": folder / "identity.key",
            "listen": _shifted(config.listen, number),
            "announce": _shifted(config.announce, number),
            "metrics_port": _port(config.metrics_port, number),
        }
        made.append(config.model_copy(update=changes))
    return made


def run_on_devices(config: NodeConfig) -> int:
    """Until every node has ended; returns the first exit code that is not 0. Raises NolocoError."""
    check_data_dir(config)
    stops: list[int] = []
    with data_dir_locked(config.data_dir), answered(stops.append):
        group = DeviceGroup([DeviceNode(each) for each in device_configs(config)], config.stop_grace_s)
        try:
            while group.tend(time.monotonic(), len(stops)):
                time.sleep(POLL_S)
        finally:
            group.end()
        return group.code


@dataclass(slots=True)
class DeviceNode:
    """The node of one device: its process now, or when the next one may be started (None: it has ended for good)."""

    config: NodeConfig
    process: subprocess.Popen[bytes] | None = None
    begun_s: float = 0.0
    due_s: float | None = 0.0
    pause_s: float = RESTART_S
    code: int | None = None
    failures: int = 0  # in a row

    @property
    def is_over(self) -> bool:
        return self.process is None and self.due_s is None

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def addresses(self) -> list[str]:
        """Where siblings reach it, on this machine first; none before it is up."""
        found = {} if self.process is None else run_info(self.config.data_dir, self.process.pid)
        if not found:
            return []
        near = [address.replace("/0.0.0.0/", "/127.0.0.1/") for address in self.config.listen]
        here = [f"{address}/p2p/{found['peer']}" for address in near if "/127.0.0.1/tcp/" in address]
        return [*(address for address in here if "/tcp/0/" not in address), *found["addresses"]]

    def start(self, now: float, peers: Sequence[str]) -> None:
        """What the machine has no room for at this moment counts as a crash."""
        try:
            self.process = self._spawn(peers)
        except OSError as error:
            self._fail(now, int(ExitCode.INTERNAL), str(error))
            return
        self.begun_s, self.due_s = now, None
        log.info("device_started", device=self.config.device, data_dir=str(self.config.data_dir), pid=self.process.pid)

    def _spawn(self, peers: Sequence[str]) -> subprocess.Popen[bytes]:
        joined = self.config.model_copy(update={"initial_peers": (*self.config.initial_peers, *peers)})
        plain = {name: value for name, value in os.environ.items() if not name.upper().startswith(ENV_PREFIX)}
        self.config.data_dir.mkdir(parents=True, exist_ok=True)
        return subprocess.Popen(
            [sys.executable, "-m", "noloco_node", "run"],
            stdin=subprocess.DEVNULL,
            env=plain | as_variables(joined),
            start_new_session=True,
            preexec_fn=end_with_parent,
        )

    @property
    def is_held(self) -> bool:
        """A node of a watcher that was killed is still ending in its folder."""
        try:
            with data_dir_locked(self.config.data_dir):
                return False
        except DataDirInUse:
            return True
        except DiskFailed:
            return False  # there is none yet; or the node will say what is wrong with it

    def send(self, number: signal.Signals) -> None:
        if self.process is not None and self.is_running:
            self.process.send_signal(number)

    def kill(self) -> None:
        if self.process is not None and self.is_running:
            self.process.kill()
            self.process.wait()

    def reap(self, now: float, *, stopping: bool) -> None:
        """Take note of its end, and of when it is to be started again."""
        if self.process is None or self.process.poll() is None:
            return
        code, self.process = self.process.returncode, None
        if stopping and code == -signal.SIGTERM:
            code = int(ExitCode.OK)  # ours, before it had a handler: there was nothing to save
        if not stopping and (code < 0 or code in PASSING):
            self._fail(now, _shell_code(code), "")
            return
        self.code = _shell_code(code)
        log.info("device_ended", device=self.config.device, code=self.code)

    def _fail(self, now: float, code: int, reason: str) -> None:
        """It is started again after a pause, which grows while it does not run steadily."""
        steady = self.begun_s > 0 and now - self.begun_s > STEADY_S
        self.pause_s = RESTART_S if steady else self.pause_s
        self.failures = 1 if steady else self.failures + 1
        self.code, self.due_s = code, now + self.pause_s
        log.error("device_failed", device=self.config.device, code=code, reason=reason, again_in_s=self.pause_s)
        self.pause_s = min(2 * self.pause_s, RESTART_MAX_S)


class DeviceGroup:
    """All nodes of a machine. The first one that lives leads: the others start once it is up."""

    def __init__(self, nodes: Sequence[DeviceNode], grace_s: float) -> None:
        self.nodes = nodes
        self._grace_s = grace_s
        self._stops = 0
        self._kill_s = float("inf")
        self._begun_s: float | None = None

    @property
    def code(self) -> int:
        return next((node.code for node in self.nodes if node.code), int(ExitCode.OK))

    def tend(self, now: float, stops: int) -> bool:
        """Start and reap nodes, pass on `stops` signals so far. False when all have ended."""
        self._begun_s = now if self._begun_s is None else self._begun_s
        self._pass_on(stops, now)
        for node in self.nodes:
            node.reap(now, stopping=self._stops > 0)
        if self._stops:
            for node in self.nodes:
                node.due_s = None
        else:
            self._start_due(now)
        if now > self._kill_s:
            self.kill()
        return not all(node.is_over for node in self.nodes)

    def _start_due(self, now: float) -> None:
        known = [address for node in self.nodes for address in node.addresses]
        is_early = self._begun_s is not None and now < self._begun_s + self._grace_s + STOP_SLACK_S
        leads = True
        for node in self.nodes:
            is_due = node.due_s is not None and now >= node.due_s
            if is_due and (leads or known) and not (is_early and node.is_held):
                node.start(now, known)
            leads = leads and (node.is_over or node.failures >= STARTS_LED_MAX)

    def _pass_on(self, stops: int, now: float) -> None:
        for _ in range(stops - self._stops):
            for node in self.nodes:
                node.send(signal.SIGTERM)
        if stops and not self._stops:
            self._kill_s = now + self._grace_s + STOP_SLACK_S
        self._stops = stops

    def end(self) -> None:
        """Whatever happened to the watcher: what still runs may save first. A second signal would cut that short."""
        until_s = time.monotonic() + self._grace_s + STOP_SLACK_S
        self._pass_on(max(self._stops, 1), time.monotonic())
        while time.monotonic() <= until_s and any(node.is_running for node in self.nodes):
            time.sleep(POLL_S)
        self.kill()

    def kill(self) -> None:
        for node in self.nodes:
            node.kill()


def _shell_code(code: int) -> int:
    """As a shell tells it: a death by signal is 128 plus its number."""
    return 128 - code if code < 0 else code


def _shifted(addresses: Sequence[str], number: int) -> tuple[str, ...]:
    """Ports plus `number`; a relay's stay, they are not ours."""

    def moved(port: re.Match[str]) -> str:
        return str(_port(int(port[0]), number))

    return tuple(text if "/p2p-circuit" in text else PORT.sub(moved, text) for text in addresses)


def _port(port: int, number: int) -> int:
    """A free one (0) stays free. Raises BadConfig beyond the last one."""
    if port and port + number > PORT_MAX:
        raise BadConfig(
            f"port {port} plus {number} is above {PORT_MAX}", "choose lower ports: each device takes the next"
        )
    return port and port + number


def _gpus() -> list[str]:
    """In a process of its own: torch would stay in this one's memory."""
    asked = [sys.executable, "-c", COUNT_GPUS]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, timeout=COUNT_TIMEOUT_S, check=True)
        count = int(done.stdout)
    except (subprocess.SubprocessError, ValueError) as error:
        raise DeviceFailed(
            f"torch does not say how many GPUs there are: {error}", "name them: --devices cuda:0,cuda:1"
        ) from error
    if not count:
        raise DeviceFailed("--devices all: torch sees no GPU", "use --device cpu, or look at the driver")
    return [f"cuda:{number}" for number in range(count)]
