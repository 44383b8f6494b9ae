"""Runs a rival at both ends of a link and reads what it measured. Must not import torch: the rivals do."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from link import PLACES, ROOT, Link, ended


@dataclass(frozen=True, slots=True)
class RivalSteps:
    """Of each outer step, the slower rank's seconds and the busier rank's bytes."""

    seconds: list[float]
    sent_bytes: list[float]


Found = dict[str, dict[str, list[float]]]


def slower_of(found: Sequence[dict[str, list[float]]]) -> RivalSteps:
    """`found` of one contender, by rank."""
    columns = {name: list(map(max, zip(*(rank[name] for rank in found), strict=True))) for name in found[0]}
    return RivalSteps(columns["seconds"], columns["sent_bytes"])


def run_rivals(
    link: Link, contenders: Sequence[str], parameters: int, steps: int, limit_s: float, *flags: str
) -> dict[str, RivalSteps]:
    """hivemind alone, those over gloo together. Raises SystemExit with their last words when they fail or `limit_s` is
    over."""
    with tempfile.TemporaryDirectory(prefix="nb", ignore_cleanup_errors=True) as name, ended([]) as processes:
        folder = Path(name)
        for rank, place in enumerate(PLACES):
            own = ["--rank", str(rank), "--host", link.address_of(PLACES[0]), "--own", link.address_of(place)]
            own += ["--parameters", str(parameters), "--steps", str(steps), "--into", str(folder / f"{rank}.json")]
            script = str(ROOT / "benchmarks" / "rivals.py")
            command = [sys.executable, script, *contenders, *own, "--meet", str(folder / "meet"), *flags]
            processes.append(link.start(place, command, folder / f"{rank}.log", GLOO_SOCKET_IFNAME=link.device))
        _wait_for_all(processes, limit_s, " and ".join(contenders), folder)
        found: list[Found] = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(len(PLACES))]
        return {contender: slower_of([rank[contender] for rank in found]) for contender in contenders}


def _wait_for_all(processes: list[subprocess.Popen[bytes]], limit_s: float, contender: str, folder: Path) -> None:
    deadline_s = time.monotonic() + limit_s
    while any(process.poll() != 0 for process in processes):
        if any(process.poll() for process in processes) or time.monotonic() > deadline_s:
            words = "\n".join(path.read_text(errors="replace")[-1500:] for path in sorted(folder.glob("*.log")))
            raise SystemExit(f"{contender} failed or took longer than {limit_s:.0f} s\n{words}")
        time.sleep(0.1)
