"""Rows of exchange_bench and utilisation_bench: how they follow from what was measured. No processes, no clocks."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from job_record import PairStep, in_rounds, median_goodput, median_parts
from rows import Row

AUTHORS = "authors"

# The paper's Table 2: 1.3e9 parameters and an embedding of 128k x 2048 at each end, 100 inner steps of 1.64 s.
PAPER_PARAMETERS = 1.3e9 + 0.5e9
PAPER_PHASE_S = 100 * 1.64


def paper_phase_s(parameters: int) -> float:
    """Seconds of compute per outer step that keep the paper's compute : bytes : bandwidth for a model of this size on
    the paper's own links (100 Mb/s, 1 Gb/s): bytes fall with the parameters, so compute must."""
    return PAPER_PHASE_S * parameters / PAPER_PARAMETERS


def exchange_row(
    setting: dict[str, int], contender: str, mode: str, blocking_s: Sequence[float], sent_bytes: Sequence[float]
) -> Row:
    """`setting`: link_mbps and params. One value of each sequence per outer step."""
    return {
        **setting,
        "contender": contender,
        "mode": mode,
        "blocking_s": round(statistics.median(blocking_s), 4),
        "bytes_sent": round(statistics.median(sent_bytes)),
        "runs": [round(value, 3) for value in blocking_s],
    }


def own_row(
    setting: dict[str, int], mode: str, fragments: int, steps: Sequence[PairStep], paired: float, link_rate: float
) -> Row:
    """A mode of ours. What fragments take is added up until all weights were exchanged once: the same bytes for all."""
    rounds = in_rounds(steps, fragments)
    blocked = [sum(step.blocked_s for step in one) for one in rounds]
    sent = [sum(step.sent_bytes for step in one) for one in rounds]
    goodput = median_goodput(steps)
    return exchange_row(setting, "noloco-node", mode, blocked, sent) | {
        "goodput_share": None if goodput is None else round(goodput / link_rate, 3),
        "paired_share": round(paired, 3),
        "parts_s": {name: round(value, 3) for name, value in median_parts(steps).items()},
    }


def with_ratios(rows: Sequence[Row]) -> list[Row]:
    """`ratio_to_authors`: of blocking seconds, to the authors' protocol on the same link and model."""
    base = {(row["link_mbps"], row["params"]): row["blocking_s"] for row in rows if row["contender"] == AUTHORS}
    return [row | {"ratio_to_authors": _ratio(row, base)} for row in rows]


def _ratio(row: Row, base: dict[tuple[int, int], float]) -> float | None:
    authors_s = base.get((row["link_mbps"], row["params"]))
    return round(row["blocking_s"] / authors_s, 4) if authors_s else None


def busy_share(compute_s: float, blocking_s: Sequence[float]) -> list[float]:
    """Of each outer step, for who blocks `blocking_s` after every `compute_s`."""
    return [compute_s / (compute_s + blocked) for blocked in blocking_s]


def utilisation_row(setting: str, contender: str, mode: str, shares: Sequence[float], **more: Any) -> Row:
    return {
        "ratio_setting": setting,
        "contender": contender,
        "mode": mode,
        "busy_share": round(statistics.median(shares), 4),
        "runs": [round(share, 3) for share in shares],
        **more,
    }


def own_busy_shares(steps: Sequence[PairStep]) -> list[float]:
    return [step.busy_share for step in steps]


def saved_share(steps: Sequence[PairStep]) -> float:
    """Of all time of these steps and nodes: what the copies for checkpoints took."""
    cycles = [cycle for step in steps for cycle in step.cycles]
    return sum(cycle.saved_s for cycle in cycles) / sum(cycle.wall_s for cycle in cycles)
