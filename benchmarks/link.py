"""Two places joined by one shaped link, and the raw link's own speed.

Namespaces are those of the chaos tests; here both are slowed alike, by a token bucket where each sends.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "chaos")]

from network_lab import NODE_LINK, Loopback, NetworkLab, open_network  # noqa: E402

from noloco_node.cli.local_swarm import end_with_parent  # noqa: E402
from noloco_node.cli.signal_handlers import answered  # noqa: E402

PLACES = ("a", "b")
END_S = 30.0


@dataclass(frozen=True, slots=True)
class Link:
    """`mbps`: megabits per second in each direction. `device`: its name at both places."""

    network: NetworkLab
    mbps: int
    device: str = NODE_LINK

    @property
    def bytes_per_s(self) -> float:
        return self.mbps * 1e6 / 8

    def address_of(self, place: str) -> str:
        return self.network.flags(place)[1].split("/")[2]

    def start(self, place: str, command: Sequence[str], log: Path, **environment: str) -> subprocess.Popen[bytes]:
        """A process at that place; it ends with this one. Its folder for temporary files is the log's."""
        own = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TMPDIR": str(log.parent), "PYTHONPATH": str(ROOT)}
        kept = {name: value for name, value in os.environ.items() if not name.startswith("NOLOCO_")}
        with log.open("ab") as output:
            return subprocess.Popen(
                [*self.network.prefix(place), *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=kept | own | environment,
                start_new_session=True,  # Ctrl-C reaches this process only
                preexec_fn=end_with_parent,
            )


@contextlib.contextmanager
def shaped_link(mbps: int) -> Iterator[Link]:
    """Raises SystemExit where the kernel or the user's rights allow no namespaces."""
    network = open_network()
    try:
        if isinstance(network, Loopback):
            raise SystemExit(f"network namespaces are needed: {network.words}")
        for place in PLACES:
            network.add(place)
            network.slow(place, int(mbps * 1e6 / 8))
        yield Link(network, mbps)
    finally:
        network.close()


@contextlib.contextmanager
def stops_as_exits() -> Iterator[None]:
    """SIGTERM unwinds like Ctrl-C, so that processes, namespaces and folders go."""

    def end(number: int) -> NoReturn:
        raise SystemExit(128 + number)

    with answered(end, (signal.SIGTERM, signal.SIGHUP)):
        yield


@contextlib.contextmanager
def ended(processes: list[subprocess.Popen[bytes]]) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Whatever happens, those in the list when it is left have ended."""
    try:
        yield processes
    finally:
        end_all(processes)


def end_all(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """SIGTERM, and SIGKILL to the whole session of one that does not end in its time."""
    for process in processes:
        process.terminate()
    deadline_s = time.monotonic() + END_S
    try:
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, deadline_s - time.monotonic()))
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def raw_link_rates(link: Link, folder: Path, seconds: float) -> dict[str, float]:
    """Payload bytes per second of TCP (iperf3): `one way`, and `both ways` the slower of two at once. Empty without
    iperf3."""
    if shutil.which("iperf3") is None:
        return {}
    one = _iperf(link, folder, ["-t", f"{seconds:.0f}"])
    both = _iperf(link, folder, ["-t", f"{seconds:.0f}", "--bidir"])
    slower = min(both["sum_received"]["bits_per_second"], both["sum_received_bidir_reverse"]["bits_per_second"])
    return {"one way": one["sum_received"]["bits_per_second"] / 8, "both ways": slower / 8}


def _iperf(link: Link, folder: Path, flags: Sequence[str]) -> dict[str, Any]:
    server, client = PLACES
    with ended([link.start(server, ["iperf3", "-s", "-1"], folder / "iperf3.log")]):
        time.sleep(0.5)  # until it listens
        command = [*link.network.prefix(client), "iperf3", "-J", "-c", link.address_of(server), *flags]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        found: dict[str, Any] = json.loads(answer.stdout or "{}")
        if "sum_received" not in found.get("end", {}):
            raise SystemExit(f"iperf3: {found.get('error') or answer.stderr}")
        return dict(found["end"])
