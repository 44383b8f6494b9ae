"""Log lines of what a volunteer wants to read: joined, outer steps, stops, faults. One line an outer step, not more."""

from __future__ import annotations

from noloco_node.core import effects as do
from noloco_node.core import events as ev
from noloco_node.telemetry.logs import logger

log = logger("node")


class Diary:
    """`Observer` port over the log."""

    def event(self, event: object) -> None:
        match event:
            case ev.StateLoaded():
                log.info("state_loaded", source=event.source, outer_step=event.outer_step, data_next=event.data_next)
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
                log.warning("inner_step_skipped", reason="the gradient is not finite")

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

    def traffic(self, service: str, direction: str, size_bytes: int) -> None:
        return None
