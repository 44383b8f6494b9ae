"""Two stand-in nodes at the ends of a link: one stage, two replicas, until so many outer steps are over.

Owns the run spec of each mode, the two processes and their folder. The exchange is the product's own.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from job_record import Cycle, PairStep, cycles_of, pair_steps, read_lines
from link import PLACES, ROOT, Link, ended
from model_sizes import llama_of

from noloco_node.config.presets import preset
from noloco_node.config.run_spec import RunSpec
from noloco_node.config.spec_file import dump
from noloco_node.discovery.identity import load_or_create_identity

START_MAX_S = 180.0
TIMING = {"grace_s": 60.0, "exchange_max_s": 600.0, "lease_s": 60.0, "renew_s": 20.0, "settle_s": 1.0}


@dataclass(frozen=True, slots=True)
class Mode:
    """How x travels. `fragments` is 1 but in `stream`."""

    name: str
    fragments: int = 1
    codec: str = "float32"

    @property
    def words(self) -> str:
        parts = [self.name, str(self.fragments) if self.fragments > 1 else "", self.codec]
        return " ".join(part for part in parts if part)


@dataclass(frozen=True, slots=True)
class Pace:
    """An outer step: `inner_steps` of `hold_s` each; where the mode goes by the clock, the interval is their sum."""

    inner_steps: int
    hold_s: float

    @property
    def phase_s(self) -> float:
        return self.inner_steps * self.hold_s


def spec_of(parameters: int, mode: Mode, pace: Pace) -> RunSpec:
    by_time = mode.name not in ("joint", "prefetch")
    clock: dict[str, Any] = {"clock": "time", "start_unix_s": round(time.time(), 1)} if by_time else {"clock": "steps"}
    return preset(
        "tiny",
        swarm={"name": "bench", "num_stages": 1, "num_replicas": 2},
        model=llama_of(parameters),
        batch={"sequence_length": 8, "micro_batch_size": 1, "micro_batches": 1},
        inner={"total_steps": 1_000_000},
        outer={
            **clock,
            "mode": mode.name,
            "fragments": mode.fragments,
            "codec": mode.codec,
            "inner_steps": pace.inner_steps,
            "outer_interval_s": pace.phase_s,
            "total_outer_steps": 0,
            "start_seats": 2,
        },
        timing=TIMING,
    )


@dataclass(frozen=True, slots=True)
class Run:
    """`paired`: share of the outer steps measured that closed with the partner, on both nodes."""

    steps: list[PairStep]
    paired: float


def run_pair(link: Link, parameters: int, mode: Mode, pace: Pace, outer_steps: int, limit_s: float) -> Run:
    """The outer steps after the first. Raises SystemExit when a node ends, or `limit_s` is over."""
    with tempfile.TemporaryDirectory(prefix="nb", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / "swarm.toml").write_text(dump(spec_of(parameters, mode, pace)))
        with _nodes(link, folder, pace) as processes:
            _wait(lambda: len(_steps(folder)) >= outer_steps, processes, folder, START_MAX_S + limit_s, mode.words)
        steps = _steps(folder)[:outer_steps]
        return Run(steps, paired_share(_outcomes(folder), [step.cycles[0].outer_step for step in steps]))


def paired_share(outcomes: list[dict[int, str]], steps: list[int]) -> float:
    """`outcomes` of each node by outer step."""
    both = [all(found.get(step) == "paired" for found in outcomes) for step in steps]
    return sum(both) / len(both) if both else 0.0


@contextlib.contextmanager
def _nodes(link: Link, folder: Path, pace: Pace) -> Iterator[list[subprocess.Popen[bytes]]]:
    with ended([]) as processes:
        peers = [f"{link.network.flags(place)[1]}/p2p/{_made_identity(folder / place)}" for place in PLACES]
        for replica, place in enumerate(PLACES):
            home = folder / place
            flags = ["--spec", str(folder / "swarm.toml"), "--data-dir", str(home), "--seat", f"0.{replica}"]
            flags += ["--hold-s", str(pace.hold_s), "--record", str(home / "record"), *link.network.flags(place)]
            flags += [part for peer in peers for part in ("--initial-peers", peer)]
            command = [sys.executable, str(ROOT / "benchmarks" / "stand_in.py"), *flags]
            processes.append(link.start(place, command, home / "log"))
        yield processes


def _made_identity(home: Path) -> str:
    """Made beforehand, both nodes can be told of both, and start at once."""
    home.mkdir()
    return str(load_or_create_identity(home / "identity.key").peer_id)


def _steps(folder: Path) -> list[PairStep]:
    return pair_steps([_cycles(folder / place) for place in PLACES])


def _cycles(home: Path) -> list[Cycle]:
    return cycles_of(read_lines(home / "record"))


def _outcomes(folder: Path) -> list[dict[int, str]]:
    """Written to disk with each checkpoint at the latest when the node ends."""
    return [_outcomes_of(folder / place) for place in PLACES]


def _outcomes_of(home: Path) -> dict[int, str]:
    lines = [line for path in home.rglob("history.jsonl*") for line in read_lines(path)]
    return {line["outer_step"]: line["outcome"] for line in lines if line["kind"] == "outer"}


def _wait(happened: Any, processes: list[subprocess.Popen[bytes]], folder: Path, limit_s: float, what: str) -> None:
    deadline_s = time.monotonic() + limit_s
    while not happened():
        if time.monotonic() > deadline_s or any(process.poll() is not None for process in processes):
            words = "\n".join(path.read_text(errors="replace")[-2000:] for path in sorted(folder.glob("*/log")))
            raise SystemExit(f"not within {limit_s:.0f} s, or a node ended: {what}\n{words}")
        time.sleep(0.2)
