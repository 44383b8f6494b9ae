"""Many simulated runs over all cores, and what they say together.

Owns the processes and the summary that programs read. Must not know files or a terminal.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from noloco_node.sim.simulation import Figures, Run, simulate

Progress = Callable[[int, Figures], None]


def run_all(runs: Sequence[Run], jobs: int, progress: Progress = lambda done, figures: None) -> list[Figures]:
    """Figures in the order of `runs`, which does not depend on `jobs`."""
    found: list[Figures] = []
    with _carried_out(runs, jobs) as results:
        for figures in results:
            found.append(figures)
            progress(len(found), figures)
    return found


@contextmanager
def _carried_out(runs: Sequence[Run], jobs: int) -> Iterator[Iterator[Figures]]:
    if jobs == 1 or len(runs) == 1:
        yield map(simulate, runs)
        return
    with multiprocessing.get_context("spawn").Pool(min(jobs, len(runs))) as pool:
        yield pool.imap(simulate, runs, chunksize=1)


def summary(found: Sequence[Figures], began_s: float) -> dict[str, Any]:
    """`began_s`: of time.monotonic(). What is told per seat and outer step counts the steps that were closed."""
    outer_steps = sum(figures.outer_steps for figures in found)
    closed = max(1, outer_steps)
    return {
        "seeds": len({figures.run.seed for figures in found}),
        "runs": len(found),
        "scenarios": sorted({figures.run.scenario for figures in found}),
        "violations": [entry for figures in found for entry in violations_of(figures)],
        "splits": sum(figures.splits for figures in found),
        "outer_steps": outer_steps,
        "paired": sum(figures.paired for figures in found),
        "messages_per_seat_per_outer_step": round(sum(f.messages for f in found) / closed, 2),
        "bytes_per_seat_per_outer_step": round(sum(f.bytes for f in found) / closed),
        "events_per_seat_per_outer_step": round(sum(f.events for f in found) / closed, 2),
        "events": sum(figures.events for figures in found),
        "digests": {f"{f.run.scenario}/{f.run.seed}": f"{f.digest:08x}" for f in found},
        "cpu_s": round(sum(figures.cpu_s for figures in found), 3),
        "cpu_ms_per_seat_per_outer_step": round(1000 * sum(f.cpu_s for f in found) / closed, 3),
        "wall_s": round(time.monotonic() - began_s, 3),
    }


def violations_of(figures: Figures) -> list[dict[str, Any]]:
    run = figures.run
    return [
        {
            "seed": run.seed,
            "checker": violation.checker,
            "scenario": run.scenario,
            "seats": run.seats,
            "at_s": round(violation.at_s, 3),
            "node": violation.node,
            "words": violation.words,
            "command": run.command,
        }
        for violation in figures.violations
    ]
