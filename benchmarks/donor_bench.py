"""How much slower a donor trains while a newcomer downloads its state.

    python benchmarks/donor_bench.py [--rounds N] [--window-s S] [--json FILE]

One node of the demo's model trains alone, with one thread; a guest in a process of its own, at the lowest priority (in
truth it is another machine), downloads slow weights and momentum from it over loopback, again and again. Windows with
and without the guest take turns, A B A B; each is measured by the node's own history (inner steps per second). The
ratio is the median over rounds of (steps/s while uploading) / (mean of the two windows around it). Every download of a
link that loopback is not: `upload_mib_per_s` says how fast it was.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

WARM_UP_STEPS = 10
OUTER_STEP_S = 20.0


def spec_text(start_unix_s: float) -> str:
    from noloco_node.config.presets import preset
    from noloco_node.config.spec_file import dump

    swarm = {"num_stages": 1, "num_replicas": 2}
    outer: dict[str, Any] = {"clock": "time", "outer_interval_s": OUTER_STEP_S, "start_unix_s": start_unix_s}
    return dump(preset("demo", swarm=swarm, outer=outer | {"total_outer_steps": 100_000, "start_seats": 1}))


async def download_for_ever(spec_file: Path, address: str, counter: Path) -> None:
    """The guest: bytes received so far are written to `counter`."""
    from noloco_node.cli.swarm_fetch import _guest, _peer_of
    from noloco_node.config.spec_file import load_run_spec
    from noloco_node.core.types import Seat
    from noloco_node.errors import PeerLost
    from noloco_node.ports import StateParts

    received = 0
    async with _guest(load_run_spec(spec_file), (address,)) as guest:
        with tempfile.TemporaryDirectory() as folder:
            while True:
                into = Path(folder) / "state"
                try:
                    await guest.network.fetch_state(_peer_of(address), into, Seat(0, 1), StateParts.SLOW)
                except PeerLost:
                    await asyncio.sleep(0.2)
                    continue
                received += into.stat().st_size
                into.unlink()
                await asyncio.to_thread(counter.write_text, str(received))


def steps_in(history: Path, begun_s: float, ended_s: float) -> int:
    lines = (json.loads(line) for line in history.read_text().splitlines() if line.endswith("}"))
    return sum(line["kind"] == "inner" and begun_s <= line["unix_s"] < ended_s for line in lines)


def window(seconds: float) -> tuple[float, float]:
    begun_s = time.time()
    time.sleep(seconds)
    return begun_s, time.time()


def measure(rounds: int, window_s: float) -> dict[str, Any]:
    from noloco_node.cli.local_swarm import LocalSwarm
    from noloco_node.core.types import Seat

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        spec_file, counter = folder / "swarm.toml", folder / "received"
        spec_file.write_text(spec_text(time.time()))
        with LocalSwarm(spec_file, folder, [Seat(0, 0)]) as swarm:
            swarm.start()
            address = swarm.nodes[0].info["addresses"][0]
            wait_for(lambda: list(folder.rglob("step-*.safetensors")), "a checkpoint")
            history = next(folder.rglob("history.jsonl"))
            wait_for(lambda: steps_in(history, 0, time.time()) >= WARM_UP_STEPS, "training")
            guest = start_guest(spec_file, address, counter)
            try:
                wait_for(counter.exists, "a first download")
                spans, rates = alternate(guest, counter, rounds, window_s)
            finally:
                guest.send_signal(signal.SIGCONT)
                guest.kill()
                guest.wait()
            time.sleep(2 * OUTER_STEP_S)  # the history is written out with each outer step
            speeds = [steps_in(history, *span) / (span[1] - span[0]) for span in spans]
    ratios = [2 * speeds[i] / (speeds[i - 1] + speeds[i + 1]) for i in range(1, len(speeds), 2)]
    return {
        "ratio": round(statistics.median(ratios), 4),
        "ratios": [round(ratio, 4) for ratio in ratios],
        "upload_mib_per_s": round(statistics.median(rates), 1),
        "steps_per_s": round(statistics.median(speeds[::2]), 2),
        "cores": os.cpu_count(),
    }


def start_guest(spec_file: Path, address: str, counter: Path) -> subprocess.Popen[bytes]:
    me = [sys.executable, __file__, "--guest", str(spec_file), address, str(counter)]
    return subprocess.Popen(me, stderr=subprocess.DEVNULL, preexec_fn=lambda: os.nice(19) and None)


def alternate(
    guest: subprocess.Popen[bytes], counter: Path, rounds: int, window_s: float
) -> tuple[list[tuple[float, float]], list[float]]:
    """Windows without, with, without ... the guest at work, and its MiB/s in those with."""
    spans, rates = [], []
    for turn in range(2 * rounds + 1):
        uploads = turn % 2 == 1
        guest.send_signal(signal.SIGCONT if uploads else signal.SIGSTOP)
        time.sleep(1.0)
        before = int(counter.read_text())
        spans.append(window(window_s))
        if uploads:
            rates.append((int(counter.read_text()) - before) / window_s / (1 << 20))
    return spans, rates


def wait_for(happened: Any, what: str, limit_s: float = 180.0) -> None:
    deadline = time.monotonic() + limit_s
    while not happened():
        if time.monotonic() > deadline:
            raise SystemExit(f"not within {limit_s:.0f} s: {what}")
        time.sleep(0.2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--window-s", type=float, default=15.0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--guest", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.guest:
        spec_file, address, counter = options.guest
        asyncio.run(download_for_ever(Path(spec_file), address, Path(counter)))
        return
    row = measure(options.rounds, options.window_s)
    print(json.dumps(row))
    if options.json:
        options.json.write_text(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
