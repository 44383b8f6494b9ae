"""What a node's /metrics says, for the scripts that watch running nodes."""

from __future__ import annotations

import urllib.request

JOB_SECONDS = "noloco_device_job_seconds_sum{"


def fetch_page(url: str) -> dict[str, float]:
    """Series of the node whose status pages are at `url`. Raises OSError."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
        return series_of(answer.read().decode())


def series_of(page: str) -> dict[str, float]:
    """Value by name and labels."""
    lines = (line.rsplit(" ", 1) for line in page.splitlines() if line and not line.startswith("#"))
    return {series: float(value) for series, value in lines}


def jobs_s(series: dict[str, float]) -> float:
    """Seconds that the device had a job since the node began."""
    return sum(value for name, value in series.items() if name.startswith(JOB_SECONDS))
