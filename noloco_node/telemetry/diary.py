"""Log lines of what a volunteer wants to read: joined, outer steps, stops, faults. One line an outer step, not more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from noloco_node.core import effects as do
from noloco_node.core import events as ev
from noloco_node.core.farewell import FINISHED
from noloco_node.telemetry.logs import logger

WAITING_CHECK_S = 3.0
NOT_FINITE = "the gradient is not finite"
RUN_OVER_ADVICE = "this run is over: export its model, or begin another one (noloco-node swarm new)"

log = logger("node")


class Diary:
    """`Observer` port over the log."""

    def event(self, event: object) -> None:
        match event:
            case ev.StateLoaded():
                log.info(
                    "state_loaded",
                    source=event.source,
                    outer_step=event.outer_step,
                    data_next=event.data_next,
                    drawn_again=event.drawn_again,
                )
            case ev.StateUnavailable():
                log.warning("state_unavailable", reason=event.reason)
            case ev.StopRequested():
                log.info("stop_requested", reason=event.reason)
            case ev.CheckpointSaved() if event.reason:
                log.error("checkpoint_failed", outer_step=event.outer_step, reason=event.reason)
            case ev.HopBroken():
                log.debug("hop_broken", seat=str(event.seat), reason=event.reason)
            case ev.TensorRefused() | ev.TensorDamaged():
                log.warning("partner_tensor_refused", outer_step=event.outer_step, reason=event.reason)
            case ev.InnerStepDone() if not event.applied:
                lost = "every micro-batch of it was lost"
                log.warning("inner_step_skipped", reason=lost if event.gradient_norm == 0.0 else NOT_FINITE)

    def effect(self, effect: object) -> None:
        match effect:
            case do.CloseExchange():
                log.info(
                    "outer_step_closed",
                    outer_step=effect.outer_step,
                    outcome=str(effect.outcome),
                    reason=effect.reason,
                    partner=str(effect.partner or ""),
                )
            case do.PublishRecord() if effect.claim is None:
                log.info("seat_claimed", seat=str(effect.seat))
            case do.FetchState():
                log.info("fetching_state", seat=str(effect.seat), donors=len(effect.donors))
            case do.Leave():
                log.info("leaving", reason=effect.reason, code=effect.code)
                if effect.reason == FINISHED:
                    log.info("run_over", advice=RUN_OVER_ADVICE)

    def traffic(self, service: str, direction: str, size_bytes: int) -> None:
        return None


class WaitingDiary:
    """Says in the log what the node stands still for, once per reason, as soon as it lasts."""

    def __init__(self, waits_for: Callable[[], str]) -> None:
        self._waits_for = waits_for
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._watch(), name="waiting diary")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _watch(self) -> None:
        said = before = ""
        while True:
            await asyncio.sleep(WAITING_CHECK_S)
            reason = self._waits_for()
            if reason == before and reason != said:
                log.info("waiting", reason=reason) if reason else log.info("waiting_over")
                said = reason
            before = reason
