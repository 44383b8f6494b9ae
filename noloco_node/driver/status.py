"""What `/status.json` and the Status call show of the machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from noloco_node.core.machine import Machine
from noloco_node.core.types import Outcome


def machine_status(machine: Machine, version: str, protocol: int, addresses: Sequence[str]) -> dict[str, Any]:
    """Plain values only."""
    record: dict[str, Any] = {
        "run": machine.settings.run,
        "peer": machine.peer,
        "seat": None if machine.membership.seat is None else str(machine.membership.seat),
        "phase": str(machine.phase),
        "outer_step": machine.outer_step,
        "inner_step": machine.inner_step,
        "outer_steps": {str(outcome): machine.closed[outcome] for outcome in Outcome},
        "waits_for": machine.waits_for,
        "version": version,
        "protocol": protocol,
        "addresses": list(addresses),
    }
    flow = machine.flow
    if flow is not None:
        record["micro_batches"] = asdict(flow.accounts)
        record["data_next"] = flow.data_position
    return record
