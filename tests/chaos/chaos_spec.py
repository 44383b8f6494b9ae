"""The run spec of the chaos swarms: small enough that eight nodes train on two cores, on the time clock."""

from __future__ import annotations

import time
from typing import Any

from noloco_node.config.presets import preset
from noloco_node.config.run_spec import RunSpec

OUTER_INTERVAL_S = 8.0
INNER_STEPS = 20
TIMING = {
    "grace_s": 2.5,
    "exchange_max_s": 6.0,
    "lease_s": 14.0,
    "renew_s": 3.5,
    "settle_s": 1.0,
    "late_s": 8.0,
    "idle_close_s": 2.0,
}


def chaos_spec(
    stages: int,
    replicas: int,
    *,
    seed: int = 1,
    hidden: int = 64,
    batch: dict[str, Any] | None = None,
    outer: dict[str, Any] | None = None,
    timing: dict[str, Any] | None = None,
) -> RunSpec:
    """The learning rate is constant: a run that lost time is not at another place of a schedule."""
    return preset(
        "tiny",
        swarm={"name": "chaos", "num_stages": stages, "num_replicas": replicas, "seed": seed},
        model={"hidden_size": hidden, "intermediate_size": 2 * hidden, "num_hidden_layers": 2 * stages},
        batch={"sequence_length": 64, "micro_batch_size": 8, "micro_batches": 2, **(batch or {})},
        inner={"learning_rate": 2e-3, "warmup_steps": 0, "total_steps": 1_000_000, "final_lr_ratio": 1.0},
        outer={
            "clock": "time",
            "outer_interval_s": OUTER_INTERVAL_S,
            "start_unix_s": round(time.time(), 1),
            "inner_steps": INNER_STEPS,
            "total_outer_steps": 0,
            "start_seats": stages * replicas,
            **(outer or {}),
        },
        timing={**TIMING, **(timing or {})},
    )
