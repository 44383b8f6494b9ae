"""Sees a device that hangs: one job that does not end. A node that is alive and does nothing is worse than a dead one.

Owns how often one job was seen under way. A suspended process sees nothing meanwhile, so its sleep is no stall. Must
not know what the jobs are for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from noloco_node.core import limits
from noloco_node.errors import TrainingStalled

log = logging.getLogger(__name__)


class StallWatch:
    """`job` names the device's job under way by a number, None when it is free; `on_stall` is told once."""

    def __init__(self, job: Callable[[], int | None], on_stall: Callable[[TrainingStalled], None]) -> None:
        self._job = job
        self._on_stall = on_stall
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._watch(), name="stall watch")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _watch(self) -> None:
        seen, times = self._job(), 0
        while times * limits.STALL_CHECK_S < limits.DEVICE_STALL_S:
            await asyncio.sleep(limits.STALL_CHECK_S)
            job = self._job()
            times = times + 1 if job is not None and job == seen else 0
            seen = job
        log.error("the device has been at one job for %.0f s: the node ends", limits.DEVICE_STALL_S)
        self._on_stall(
            TrainingStalled(
                f"the device has been at one job for {limits.DEVICE_STALL_S:.0f} s",
                "look at the device and its driver, then start the node again: it goes on from its last checkpoint",
            )
        )
