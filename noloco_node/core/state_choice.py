"""Where the weights of a seat come from: the own disk, a donor, the seed (DESIGN section 4).

Owns what is known of the checkpoints on this node's disk, and which donors are asked in which order. Must not know how
a file is loaded, fetched or saved, nor when to ask.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median_high

from noloco_node.core import effects as do
from noloco_node.core import events as ev
from noloco_node.core import limits
from noloco_node.core import seed as draws
from noloco_node.core.effects import Effect
from noloco_node.core.seats import Roster
from noloco_node.core.types import Clock, Outcome, PeerId, Seat, SeatRecord, SeatState, Settings

_RANK = {SeatState.ACTIVE: 0, SeatState.JOINING: 1, SeatState.LEAVING: 2}


class StateChoice:
    """`kept`: newest complete local checkpoint by seat. `distrusts_own`: not to be used while a donor is known."""

    def __init__(self, settings: Settings, peer: PeerId, roster: Roster) -> None:
        self._settings = settings
        self._peer = peer
        self._roster = roster
        self.kept: dict[Seat, int] = {}
        self.distrusts_own = False
        self.reinit_stage = False
        self.waits_for = ""
        self._loading: Seat | None = None  # the local checkpoint that is being loaded
        self._round = 0

    # --- what is on the disk ----------------------------------------------------------------------

    def started(self, event: ev.Started) -> None:
        self.kept = dict(event.kept)
        if event.checkpoint_seat is not None and event.checkpoint_step is not None:
            self.kept[event.checkpoint_seat] = event.checkpoint_step
        self.reinit_stage = event.reinit_stage

    def saved(self, seat: Seat, outer_step: int) -> None:
        self.kept[seat] = outer_step

    def loaded(self) -> None:
        """Whether these weights are any good shows when an outer step closes: till then others come first."""
        self._loading, self.distrusts_own, self.waits_for = None, False, ""
        self._round += 1

    def closed(self, outcome: Outcome) -> None:
        if outcome is Outcome.PAIRED:
            self._round = 0

    def failed(self, reason: str) -> None:
        """What was chosen last cannot be had. A local checkpoint that failed is not tried again."""
        if self._loading is not None:
            self.kept.pop(self._loading, None)
        self._loading, self.waits_for = None, reason
        self._round += 1

    # --- the choice -------------------------------------------------------------------------------

    def choose(self, seat: Seat, now: float) -> Effect | None:
        """Own checkpoint if it is not stale, else a donor's, else a stale one, else the seed; None: wait for one."""
        donors = self._roster.donors(seat.stage, now, apart_from=self._peer)
        newest = _usual(donors)
        own = self._own_of(seat)
        is_fresh = own is not None and self.kept[own] + self._settings.stale_steps_max >= newest
        if own is not None and is_fresh and not (self.distrusts_own and donors):
            return self._load(seat, own)
        if donors:
            self.waits_for = self.waits_for or f"state of stage {seat.stage}"
            return do.FetchState(seat, self._in_order(donors, newest))
        if self._has_trained(seat.stage, now) and not self.reinit_stage:
            self.waits_for = f"stage {seat.stage} has trained and no holder of its checkpoint is known yet"
            return None
        return do.InitialiseState(seat)

    def _own_of(self, seat: Seat) -> Seat | None:
        """The local checkpoint to begin with: the seat's own, unless another one of its stage is much newer."""
        of_stage = {kept: step for kept, step in self.kept.items() if kept.stage == seat.stage}
        newest = max(of_stage, key=lambda kept: (of_stage[kept], kept == seat), default=None)
        if newest is None or of_stage.get(seat, -1) + self._settings.stale_steps_max >= of_stage[newest]:
            return seat if seat in of_stage else newest
        return newest

    def _load(self, seat: Seat, own: Seat) -> Effect:
        self._loading = own
        return do.LoadCheckpoint(seat, None if own == seat else own)

    def _in_order(self, donors: Sequence[SeatRecord], newest: int) -> tuple[PeerId, ...]:
        """Fresh ones first, replicas at work before others; else by a draw of our own, so that joiners spread."""

        def place(record: SeatRecord) -> tuple[bool, int, int]:
            drawn = draws.key64(self._settings.seed, "donor", self._peer, record.peer, self._round)
            return record.checkpoint_step + 1 < newest, _RANK[record.state], drawn

        good = [record for record in donors if record.checkpoint_step + self._settings.stale_steps_max >= newest]
        return tuple(record.peer for record in sorted(good, key=place)[: limits.DONORS_ASKED_MAX])

    def _has_trained(self, stage: int, now: float) -> bool:
        """Some record shows that the run is past its first outer step: then the seed's weights are history."""
        others = [record for record in self._roster.records(now) if record.peer != self._peer]
        seen = max([self._roster.checkpoint_seen(stage), *(record.checkpoint_step for record in others)])
        if self._settings.clock is not Clock.TIME:  # there an outer step is only counted when it was trained
            seen = max([seen, self._roster.outer_step_seen(stage), *(record.outer_step for record in others)])
        return seen >= 1


def _usual(donors: Sequence[SeatRecord]) -> int:
    """How far the stage is: the median of those at work, so that no single word decides; else of all donors."""
    steps = {record.peer: record.checkpoint_step for record in donors if record.state is SeatState.ACTIVE}
    found = list(steps.values()) or [record.checkpoint_step for record in donors]
    return median_high(found) if found else 0
