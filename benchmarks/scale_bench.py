"""What an idle node costs in swarms of several sizes: CPU, memory, look-ups, and how soon it has its seat.

    python benchmarks/scale_bench.py [--quick] [--nodes N...] [--window-s S] [--json FILE]

Each swarm has two stages, all seats held, on loopback. A node is idle when it has its seat and its device rests: the
nodes are those of `stand_in.py`, whose device holds stage 0's first micro-batch for ever, so nothing ever comes to
stage 1. Leases, DHT, libp2p, Hellos and status pages go on as ever, with the times of a run spec's defaults but for
`settle_s` (1 s, as in the presets). One row for each size, medians over its nodes:

- `idle_cpu_share`: CPU time of the node and its p2pd over a window, of one core; `p2pd_cpu_share` of it is p2pd's.
- `rss_above_baseline_mib`: resident memory of the node and its p2pd less that of a process that imports torch and
  transformers' model and holds the same weights; `p2pd_rss_mib` of it is p2pd's.
- `ready_s`: from the end of the imports to the weights being in place, of the last nodes, which start one at a time
  when all others are up.
- `look_ups_per_min`, `renewals_per_min`: seats looked up in the DHT and own records stored.

`help_s` is the time of `noloco-node --help`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from job_record import read_lines
from link import stops_as_exits
from metrics_page import fetch_page
from proc import children_of, cpu_s, resident_mib
from rows import Row, tell

from noloco_node.cli.local_swarm import LocalNode, LocalSwarm
from noloco_node.config.presets import preset
from noloco_node.config.run_spec import RunSpec
from noloco_node.config.spec_file import dump
from noloco_node.core.types import Seat

NODES, WINDOW_S = (8, 16, 32), 40.0
QUICK_NODES, QUICK_WINDOW_S = (4, 8), 8.0
STAGES = 2
ALONE = 3  # nodes at the end that start one at a time
AT_ONCE = 2
READY_MAX_S, CALM_S = 120.0, 5.0
HOLD_S = 1e6
HELP_RUNS = 5
TIMING = {"lease_s": 60.0, "renew_s": 20.0, "settle_s": 1.0}
LOOK_UPS = "noloco_seat_look_ups_total"
RENEWALS = tuple(f'noloco_records_total{{result="{result}"}}' for result in ("confirmed", "unconfirmed"))
BASELINE = """
import json, sys
import torch
from transformers import AutoConfig, AutoModelForCausalLM
model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**json.loads(sys.argv[1])))
print("holds", sum(parameter.numel() for parameter in model.parameters()), flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True, slots=True)
class Reading:
    """Of one node at one moment. `series`: what its /metrics shows."""

    cpu_s: float
    p2pd_cpu_s: float
    rss_mib: float
    p2pd_rss_mib: float
    series: dict[str, float]


class IdleSwarm(LocalSwarm):
    """Nodes whose device rests."""

    def command(self, seat: Seat, initial_peers: Sequence[str]) -> list[str]:
        folder = self.folder_of(seat)
        flags = {
            "--spec": str(self.spec_file),
            "--data-dir": str(folder),
            "--seat": str(seat),
            "--listen": "/ip4/127.0.0.1/tcp/0",
            "--hold-s": str(HOLD_S),
            "--stop-grace-s": "2",
            "--record": str(folder / "record"),
        }
        named = [part for pair in flags.items() for part in pair]
        peers = [part for address in initial_peers for part in ("--initial-peers", address)]
        return [sys.executable, str(Path(__file__).with_name("stand_in.py")), *named, *peers]

    def start(self) -> None:
        """The first node alone, then several at once, the last ones one at a time."""
        first, *rest = self.seats
        self._start_together([first], ())
        addresses = self.nodes[0].info["addresses"]
        crowd = max(0, len(rest) - ALONE)
        for place in range(0, crowd, AT_ONCE):
            self._start_together(rest[place : min(crowd, place + AT_ONCE)], addresses)
        for seat in rest[crowd:]:
            self._start_together([seat], addresses)

    def _start_together(self, seats: Sequence[Seat], addresses: Sequence[str]) -> None:
        for seat in seats:
            self.nodes.append(self._spawn(seat, addresses))
        for node in self.nodes[-len(seats) :]:
            self._wait_up(node)
            self._wait_ready(node)

    def _wait_ready(self, node: LocalNode) -> None:
        deadline_s = time.monotonic() + READY_MAX_S
        while "ready" not in moments(node):
            if time.monotonic() > deadline_s or node.process.poll() is not None:
                raise SystemExit(f"node {node.seat} has no seat: {node.last_words()}")
            time.sleep(0.1)


def spec_of(nodes: int) -> RunSpec:
    return preset(
        "tiny",
        swarm={"name": "bench", "num_stages": STAGES, "num_replicas": nodes // STAGES},
        inner={"total_steps": 1_000_000},
        outer={"inner_steps": 1000, "total_outer_steps": 0},
        timing=TIMING,
    )


def moments(node: LocalNode) -> dict[str, float]:
    return {line["what"]: line["ended_s"] for line in read_lines(node.folder / "record")}


def ready_s(node: LocalNode) -> float:
    found = moments(node)
    return found["ready"] - found["imported"]


def read(node: LocalNode) -> Reading:
    pid = node.process.pid
    daemons = children_of(pid)
    return Reading(
        cpu_s(pid),
        sum(cpu_s(child) for child in daemons),
        resident_mib(pid),
        sum(resident_mib(child) for child in daemons),
        fetch_page(node.info["url"]),
    )


def measure(nodes: int, window_s: float) -> Row:
    spec = spec_of(nodes)
    seats = [Seat(stage, replica) for replica in range(nodes // STAGES) for stage in range(STAGES)]
    with tempfile.TemporaryDirectory(prefix="nb", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / "swarm.toml").write_text(dump(spec))
        with IdleSwarm(folder / "swarm.toml", folder, seats, temporary=folder) as swarm, baseline(spec) as bare_mib:
            swarm.start()
            time.sleep(CALM_S)
            before, begun_s = [read(node) for node in swarm.nodes], time.monotonic()
            time.sleep(window_s)
            after, took_s = [read(node) for node in swarm.nodes], time.monotonic() - begun_s
            alone = [ready_s(node) for node in swarm.nodes[-ALONE:]]
            return row_of(nodes, list(zip(before, after, strict=True)), took_s, alone, bare_mib)


def row_of(
    nodes: int, readings: list[tuple[Reading, Reading]], took_s: float, ready: list[float], bare_mib: float
) -> Row:
    """`readings`: of each node before and after."""
    p2pd = [(after.p2pd_cpu_s - before.p2pd_cpu_s) / took_s for before, after in readings]
    whole = [
        (after.cpu_s - before.cpu_s) / took_s + share for (before, after), share in zip(readings, p2pd, strict=True)
    ]

    def per_min(*series: str) -> float:
        grown = [sum(b.series.get(one, 0.0) - a.series.get(one, 0.0) for one in series) for a, b in readings]
        return round(60 * statistics.mean(grown) / took_s, 1)

    return {
        "nodes": nodes,
        "idle_cpu_share": round(statistics.median(whole), 4),
        "idle_cpu_share_max": round(max(whole), 4),
        "p2pd_cpu_share": round(statistics.median(p2pd), 4),
        "rss_above_baseline_mib": round(
            statistics.median(a.rss_mib + a.p2pd_rss_mib for _, a in readings) - bare_mib, 1
        ),
        "p2pd_rss_mib": round(statistics.median(after.p2pd_rss_mib for _, after in readings), 1),
        "baseline_mib": round(bare_mib, 1),
        "ready_s": round(statistics.median(ready), 2),
        "look_ups_per_min": per_min(LOOK_UPS),
        "renewals_per_min": per_min(*RENEWALS),
        "device": "rests (stand-in)",
    }


@contextlib.contextmanager
def baseline(spec: RunSpec) -> Iterator[float]:
    """Resident MiB of a process that holds the same weights and does nothing; it ends with the block."""
    command = [sys.executable, "-c", BASELINE, json.dumps(stage_model(spec))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        if "holds" not in process.stdout.readline():
            raise SystemExit("the baseline process ended before it held the weights")
        yield resident_mib(process.pid)


def stage_model(spec: RunSpec) -> dict[str, Any]:
    """The model's config with as many layers as a stage has."""
    return {**spec.model, "num_hidden_layers": spec.model["num_hidden_layers"] // STAGES, "dtype": "float32"}


def help_s(runs: int) -> float:
    found = []
    for _ in range(runs):
        begun_s = time.perf_counter()
        subprocess.run([sys.executable, "-m", "noloco_node", "--help"], check=True, capture_output=True)
        found.append(time.perf_counter() - begun_s)
    return statistics.median(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small swarms and a short window, within 90 s")
    parser.add_argument("--nodes", type=int, nargs="+", help="sizes of swarms, even numbers")
    parser.add_argument("--window-s", type=float)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    window_s = options.window_s or (QUICK_WINDOW_S if options.quick else WINDOW_S)
    rows: list[Row] = []
    with stops_as_exits():
        shown_s = round(help_s(HELP_RUNS), 2)
        for nodes in options.nodes or (QUICK_NODES if options.quick else NODES):
            tell(rows, measure(nodes, window_s) | {"help_s": shown_s}, options.json)


if __name__ == "__main__":
    main()
