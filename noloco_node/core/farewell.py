"""How a node comes to its end: what must be over before it says goodbye, and how long it waits for that.

Owns the reason and the clock of the end. A stop ends within DRAIN_S; a run that is over goes on computing for others
until the stage before is gone. Must not know: seats won or lost, how the record is published.
"""

from __future__ import annotations

from dataclasses import dataclass

from noloco_node.core import limits
from noloco_node.core.effects import Effect
from noloco_node.core.exchange_table import ExchangeState
from noloco_node.core.lookout import Lookout
from noloco_node.core.work import Work

PUBLISH_WAIT_S = 3.0  # how long the last record may take
FINISHED = "finished"  # the run is over; any other reason to end is a stop


@dataclass(slots=True)
class Farewell:
    """`reason`: FINISHED, or that of a stop; empty while the node goes on."""

    reason: str = ""
    _since_s: float = 0.0
    _said_s: float | None = None

    @property
    def is_under_way(self) -> bool:
        return bool(self.reason)

    @property
    def is_stop(self) -> bool:
        return self.reason not in ("", FINISHED)

    @property
    def is_said(self) -> bool:
        """The last record is on its way."""
        return self._said_s is not None

    def begin(self, reason: str, now: float) -> None:
        self.reason, self._since_s = reason, now

    def said(self, now: float) -> None:
        self._said_s = now

    def is_overdue(self, now: float) -> bool:
        """The last record took too long: the node leaves without."""
        return self._said_s is not None and now >= self._said_s + PUBLISH_WAIT_S

    def wind_up(self, work: Work, lookout: Lookout, lease_s: float, now: float) -> tuple[list[Effect], bool]:
        """Effects, and whether all is over here."""
        return self._drain(work, now) if self.is_stop else self._serve_on(work, lookout, lease_s, now)

    def _drain(self, work: Work, now: float) -> tuple[list[Effect], bool]:
        """A stop: the exchange ends (one in doubt hears the verdict if it can), what is begun ends, all is saved."""
        out: list[Effect] = []
        overdue = now >= self._since_s + limits.DRAIN_S
        if overdue or work.desk.state is not ExchangeState.DOUBT:
            out += work.plan.note(work.desk.stop(now))  # what closes now is to be saved first
        if overdue and work.flow.in_flight:
            out += work.flow.abandon()
        return out, work.plan.is_saved_for_stop and work.plan.is_idle and not work.flow.in_flight

    def _serve_on(self, work: Work, lookout: Lookout, lease_s: float, now: float) -> tuple[list[Effect], bool]:
        """The run is over: later stages compute for others until the stage before is gone, at most a lease long."""
        waited_s = now - self._since_s
        upstream = work.flow.seat.stage - 1
        looked = lookout.look(lookout.replicas_of(upstream), now)
        if waited_s >= lease_s:
            ended = work.plan.note(work.desk.stop(now))
            return ended, work.plan.is_idle or waited_s >= 2 * lease_s
        if not work.plan.is_idle or work.desk.is_open or work.flow.in_flight or waited_s < limits.LINGER_S:
            return looked, False
        return looked, lookout.is_vacant(upstream)
