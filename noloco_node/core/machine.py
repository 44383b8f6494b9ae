"""One node's decisions: `handle(event, now) -> effects`. Everything the node does starts here.

Joins the parts, each of which decides its own matters: `membership` the seat, `lookout` whom to look for, `flow` the
micro-batches, `desk` the exchange, `clock` when a boundary is due, `plan` what the device does next. Owns the phase
and the end of the node. Must not know: sockets, tensors, time, randomness. The same machine runs under the driver and
in the simulator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from noloco_node.core import effects as do
from noloco_node.core import events as ev
from noloco_node.core.claiming import Claiming
from noloco_node.core.data_promise import DataPromise
from noloco_node.core.device_plan import DevicePlan
from noloco_node.core.effects import Effect
from noloco_node.core.exchange_desk import ExchangeDesk
from noloco_node.core.farewell import FINISHED, Farewell
from noloco_node.core.flow import MicroBatchFlow
from noloco_node.core.lookout import LOOK_AGAIN_S, Lookout
from noloco_node.core.membership import Membership, Progress
from noloco_node.core.outer_clock import NOT_BEGUN, OuterClock
from noloco_node.core.standing import Standing
from noloco_node.core.state_choice import StateChoice
from noloco_node.core.succession import first_number, promises_of_others
from noloco_node.core.types import (
    MicroBatchId,
    OfferAnswer,
    Outcome,
    PeerId,
    Phase,
    Seat,
    SeatRecord,
    SeatState,
    Settings,
)
from noloco_node.core.work import Work


@dataclass(slots=True)
class Machine:
    """State machine of one node. `wanted` is the seat asked for (None: the one the swarm needs most).

    `start_s` is the monotonic time of outer step 0 on the time clock. `stages`: those that fit the device (None: all).
    """

    settings: Settings
    peer: PeerId
    incarnation: int
    wanted: Seat | None = None
    start_s: float = 0.0
    stages: frozenset[int] | None = None
    phase: Phase = Phase.JOINING
    closed: dict[Outcome, int] = field(default_factory=lambda: dict.fromkeys(Outcome, 0))
    work: Work | None = None
    membership: Membership = field(init=False)
    lookout: Lookout = field(init=False)
    clock: OuterClock = field(init=False)
    states: StateChoice = field(init=False)
    standing: Standing = field(init=False)
    _has_initial_peers: bool = False
    _checkpoint_step: int = 0
    _farewell: Farewell = field(default_factory=Farewell)
    _sync_asked: bool = False
    _is_phase_begun: bool = False
    _is_announced: bool = False  # our `active` record is signed and stored
    _now: float = 0.0

    def __post_init__(self) -> None:
        self.membership = Membership(
            self.settings, self.peer, self.incarnation, self.wanted, stages=self.stages, at_work=self._progress
        )
        self.lookout = Lookout(self.settings, self.view)
        self.clock = OuterClock(self.settings, self.start_s)
        self.states = StateChoice(self.settings, self.peer, self.membership.roster)
        self.standing = Standing(self.settings.stale_steps_max)

    # --- entry ------------------------------------------------------------------------------------

    def handle(self, event: ev.Event, now: float) -> list[Effect]:
        """Take in what happened, return what to do now, in order."""
        self._now = now
        if self._has_left:
            return []
        if isinstance(event, ev.RecordLearnt):
            return self._learn(event)
        if isinstance(event, ev.StateLoaded):
            self.lookout.heard()
        return self._follow(event, self.membership.handle(event, now))

    def _learn(self, event: ev.RecordLearnt) -> list[Effect]:
        """Records come all the time and most only renew what is known: those change nothing and end here."""
        seat = event.record.seat
        holder, reason = self.view(seat), self.standing.reason
        out = self.membership.handle(event, self._now)
        self._compare(event.record)
        if not out and holder == self.view(seat) and reason == self.standing.reason:
            return out
        self.lookout.heard()
        return self._follow(event, out)

    def _follow(self, event: ev.Event, out: list[Effect]) -> list[Effect]:
        """What the membership made of an event is `out`: now the other parts, then the device."""
        now = self._now
        if any(isinstance(effect, do.Leave) for effect in out):
            self.phase = Phase.LEFT
            return out
        handler = HANDLERS.get(type(event))
        if handler is not None:
            out += handler(self, event)
        out += self._settle()
        if (
            self.work is not None
            and not self._has_left
            and (self._farewell.is_under_way or not self.standing.is_unsure)
        ):
            out += self.work.plan.next(now, stopping=self._farewell.is_stop)
        return out

    def next_deadline(self) -> float | None:
        """When `TimePassed` is due, monotonic seconds."""
        times = [self.membership.next_deadline(self._now)]
        if self.work is not None:
            times += [*self.work.deadlines(self._now), self.standing.next_deadline]
            if not self._farewell.is_under_way:
                times += [
                    self.clock.due_after(self._now),
                    self.clock.opens_after(self._now),
                ]  # one held back: by its end
            if self.waits_for or self.work.flow.gate.is_starved(self._now):
                times.append(self._now + LOOK_AGAIN_S)
        if self._farewell.is_under_way or self.phase is Phase.SYNCING:
            times.append(self._now + LOOK_AGAIN_S)
        earliest = min((time for time in times if time is not None), default=None)
        return None if earliest is None else max(earliest, self._now)

    def view(self, seat: Seat) -> PeerId | None:
        """The peer that holds `seat` and works there, as far as this node knows."""
        record = self.membership.roster.active_holder(seat, self._now)
        return None if record is None or record.peer == self.peer else record.peer

    def admits(self, micro_batch: MicroBatchId, now: float) -> bool:
        """Whether a hop announced now would be admitted: else BUSY is said before its activation is sent."""
        if self.work is None or self._farewell.is_stop or self._has_left:
            return False
        return self.work.admits(micro_batch, now)

    # --- what others see --------------------------------------------------------------------------

    @property
    def flow(self) -> MicroBatchFlow | None:
        return None if self.work is None else self.work.flow

    @property
    def outer_step(self) -> int:
        return self.clock.outer_step

    @property
    def inner_step(self) -> int:
        return self.clock.inner_step

    @property
    def waits_for(self) -> str:
        """What the node stands still for, in words."""
        is_early = self.work is not None and self.clock.opens_after(self._now) is not None
        return self.lookout.waits_for or (NOT_BEGUN if is_early else "")

    # --- weights ----------------------------------------------------------------------------------

    def _on_started(self, event: ev.Started) -> list[Effect]:
        self._has_initial_peers = event.has_initial_peers
        self.states.started(event)
        return []

    def _on_state_loaded(self, event: ev.StateLoaded) -> list[Effect]:
        """The weights are in place: take the seat's work up."""
        seat = self.membership.seat
        if seat is None or not self._awaits_state_of(event.seat):
            return []
        self.clock.load(event.outer_step, event.inner_step, self._now)
        self._checkpoint_step = event.outer_step if event.source != "seed" else 0
        self.states.loaded()
        self.standing.loaded(event.outer_step)
        roster = self.membership.roster
        flow = MicroBatchFlow(self.settings, seat, data_next=first_number(roster, seat, event, self.peer))
        flow.accounts.drawn_again = event.drawn_again
        desk = ExchangeDesk(self.settings, seat, self.incarnation)
        if event.last is not None and event.last.outer_step < event.outer_step:
            desk.recall(event.last)
        plan = DevicePlan(
            self.settings,
            self.clock,
            flow,
            desk,
            self._is_left_over,
            lambda: promises_of_others(roster, self.membership.seat, self.peer),
        )
        self.work = Work(flow, desk, plan, DataPromise(flow.data_next, self.settings.renew_s, self._now))
        self.phase = Phase.TRAINING
        stages = (seat.stage + 1, seat.stage)
        around = [near for stage in stages for near in self.lookout.replicas_from(stage, seat.replica)]
        self.membership.watch(around)
        if self.clock.is_over:
            self._end(FINISHED)
        desk.expect_phase(self.outer_step)
        self._is_phase_begun = self._is_announced = False
        return self._publish_now(self.work)

    def _awaits_state_of(self, seat: Seat | None) -> bool:
        """What was asked for a seat lost meanwhile is not heard: neither its weights nor that there are none."""
        return self.phase is Phase.SYNCING and self._sync_asked and self._is_ours(seat)

    def _is_ours(self, seat: Seat | None) -> bool:
        return self.membership.seat is not None and seat in (None, self.membership.seat)

    def _on_state_unavailable(self, event: ev.StateUnavailable) -> list[Effect]:
        """A donor or the local checkpoint failed: ask again, without the local one that failed."""
        if not self._awaits_state_of(event.seat):
            return []
        self.states.failed(event.reason)
        self.membership.keep(self.states.kept)
        self._sync_asked = False
        self.lookout.waits_for = event.reason
        return []

    def _on_checkpoint_saved(self, event: ev.CheckpointSaved) -> list[Effect]:
        seat = self.membership.seat
        if not event.reason and seat is not None and self._is_ours(event.seat):
            self._checkpoint_step = max(self._checkpoint_step, event.outer_step)
            self.states.saved(seat, event.outer_step)
            self.membership.keep(self.states.kept)
        return []

    def _on_seats_read(self, event: ev.SeatsRead) -> list[Effect]:
        """In SYNCING the stage's seats were read: now it is known where the weights come from."""
        seat = self.membership.seat
        if seat is None or seat not in event.seats:
            return []
        if self._has_initial_peers and not event.reached:
            return []  # nobody answered: that says nothing about who trained what
        self.standing.looked()
        if self.phase is not Phase.SYNCING or self._sync_asked:
            return []
        found = self.states.choose(seat, self._now)
        self.lookout.waits_for = self.states.waits_for
        self._sync_asked = found is not None
        return [] if found is None else [found]

    def _compare(self, record: SeatRecord) -> None:
        """A replica of our stage is far ahead: how far the stage is, is told by the median of those at work."""
        work = self.work
        if work is None or record.peer == self.peer or not self.standing.is_far_ahead(record, work.flow.seat.stage):
            return
        active = self.membership.roster.stage_active(record.seat.stage, self._now)
        self.standing.compare([other.checkpoint_step for other in active if other.peer != self.peer])

    def _fall_behind(self, work: Work) -> list[Effect]:
        """Weights too old for the stage, or refused by its replicas: fetch newer ones like a newcomer (DESIGN 4)."""
        out: list[Effect] = []
        if self.standing.begins_to_doubt(self.clock.lag(self._now), self._now):
            out = self.lookout.look(self._stage_of(work.flow.seat), self._now, pause_s=0.0)
        if not self.standing.reason or not work.plan.is_idle or work.desk.is_open:
            return out
        self.states.distrusts_own = True
        self.states.waits_for = self.lookout.waits_for = self.standing.reason
        out += [*work.flow.abandon(), *self._desk(work.desk.stop(self._now))]
        data_next = work.promise.next(work.flow.draw_next, self._now) if work.flow.is_first else 0
        self.work, self.phase, self._sync_asked = None, Phase.SYNCING, False
        self.membership.set_progress(SeatState.JOINING, self.outer_step, data_next, self._checkpoint_step)
        return out + self.membership.publish_now(self._now)

    # --- micro-batches ----------------------------------------------------------------------------

    def _on_micro_batch_event(self, event: Any) -> list[Effect]:
        if self.work is None:
            return [do.AnswerBusy(event.call)] if isinstance(event, ev.MicroBatchArrived) else []
        return self.work.on_micro_batch_event(event, self.view, self._now, stopping=self._farewell.is_stop)

    def _on_inner_step_done(self, event: ev.InnerStepDone) -> list[Effect]:
        if self.work is not None:
            self.work.plan.done()
            self.clock.inner_step += 1
        return []

    # --- outer steps ------------------------------------------------------------------------------

    def _on_boundary_taken(self, event: ev.BoundaryTaken) -> list[Effect]:
        """x is frozen: trade it, and look for the partner of the phase that begins."""
        if self.work is None:
            return []
        flow, desk, plan = self.work.flow, self.work.desk, self.work.plan
        plan.done()
        out = self._desk(desk.boundary(event, self.view, self._now))
        stage = self.membership.roster.stage_active(flow.seat.stage, self._now)
        self.clock.advance(flow.seat.stage, (r.outer_step for r in stage if r.peer != self.peer), self._now)
        self.standing.reached(self.outer_step)
        if self.clock.is_over:
            flow.serve_only()
            return out
        return out + self._desk(desk.begin_phase(self.outer_step, self.view, self._now))

    def _on_correction_added(self, event: ev.CorrectionAdded) -> list[Effect]:
        if self.work is not None:
            self.work.plan.done()
            self.work.desk.correction_added(event.outer_step)
        return []

    def _on_state_copied(self, event: ev.StateCopied) -> list[Effect]:
        if self.work is not None:
            self.work.plan.done()
        return []

    def _on_clock_followed(self, event: ev.ClockFollowed) -> list[Effect]:
        self.clock.follow(event.jump_s)
        return []

    def _on_exchange_event(self, event: Any) -> list[Effect]:
        if self.work is None:
            return [do.AnswerOffer(event.ticket, OfferAnswer.LATER)] if isinstance(event, ev.OfferReceived) else []
        return self._desk(self.work.desk.handle(event, self.view, self._now))

    def _desk(self, effects: list[Effect]) -> list[Effect]:
        """Count and save what the desk closes."""
        for effect in effects:
            if isinstance(effect, do.CloseExchange):
                self.closed[effect.outcome] += 1
                self.standing.closed(effect)
                self.states.closed(effect.outcome)
        return effects if self.work is None else self.work.plan.note(effects)

    def _is_left_over(self) -> bool:
        """Steps clock, later stages: what would make the step due will not come, and others are further.

        Detours give a replica fewer micro-batches than its share. When nothing comes any more and the partner waits
        already, or the stage before is gone at the end of the run, the boundary is taken with what was trained.
        """
        work = self.work
        if work is None or work.flow.is_first or self.inner_step == 0 or not work.flow.gate.is_starved(self._now):
            return False
        return work.desk.partner_waits(self.outer_step) or self.lookout.is_vacant(work.flow.seat.stage - 1)

    # --- after each event -------------------------------------------------------------------------

    def _settle(self) -> list[Effect]:
        """Follow up on what the parts decided: seat won or lost, deadlines, look-ups, the end."""
        out = self._follow_seat()
        if self.work is not None:
            out += self._follow_work(self.work)
        if self._farewell.is_under_way:
            out += self._wind_up()
        return out

    def _follow_seat(self) -> list[Effect]:
        seat = self.membership.seat
        if self.phase is Phase.JOINING and seat is not None:
            self.phase, self._sync_asked = Phase.SYNCING, False
        if self.phase is Phase.SYNCING and seat is not None and not self._sync_asked:
            return self.lookout.look(self._stage_of(seat), self._now)
        if seat is None and self.phase in (Phase.SYNCING, Phase.TRAINING, Phase.EXCHANGING):
            return self._lose_seat()
        return []

    def _stage_of(self, seat: Seat) -> Iterator[Seat]:
        """The seats of its stage, itself first."""
        yield seat
        yield from (other for other in self.lookout.replicas_of(seat.stage) if other != seat)

    def _lose_seat(self) -> list[Effect]:
        """Outranked: stop, keep the checkpoint, be a spare."""
        out = [] if self.work is None else [*self.work.flow.abandon(), *self._desk(self.work.desk.stop(self._now))]
        self.work, self.phase = None, Phase.JOINING
        self.lookout.waits_for = "the seat was taken by a node with an older claim"
        return out

    def _follow_work(self, work: Work) -> list[Effect]:
        out = work.flow.time_passed(self.view, self._now)
        if not self._farewell.is_under_way:
            out += self._fall_behind(work)
            if self.work is None:
                return out
            out += [*self._pass_untrained(work), *self._begin_work(work), *self._desk(work.desk.look_ahead(self.view))]
        blocked, trades = work.desk.blocks_training(self._now), work.desk.is_trading(self._now)
        out += work.flow.hand_back() if blocked else []
        if self.phase in (Phase.TRAINING, Phase.EXCHANGING):
            self.phase = Phase.EXCHANGING if blocked else Phase.TRAINING
        if self.clock.is_over and not self._farewell.is_under_way and not work.plan.is_unsaved and not trades:
            self._end(FINISHED)
        return out

    def _pass_untrained(self, work: Work) -> list[Effect]:
        """Time clock: an interval in which this node could not train at all passes; there is nothing to exchange."""
        if not self.clock.is_timed or work.flow.has_trained or not self.clock.is_due(work.flow.seat.stage, self._now):
            return []
        self.clock.advance(work.flow.seat.stage, (), self._now)
        return self._desk(work.desk.begin_phase(self.outer_step, self.view, self._now))

    def _begin_work(self, work: Work) -> list[Effect]:
        """Look for peers, the first partner and data; the last two not before a new run has its seats together."""
        begun = self.outer_step or self.inner_step or work.flow.accounts.sent
        missing = [] if begun else self.lookout.missing_to_start(work.flow.seat)
        out = self.lookout.look_around(work.flow, work.desk, missing, self._now)
        if missing or not self._is_announced:
            return out  # an OFFER that carries a `joining` record finds no ear
        if not self._is_phase_begun:
            out += self._desk(work.desk.begin_phase(self.outer_step, self.view, self._now))
            self._is_phase_begun = True
        return out + ([] if self.waits_for else self._draw(work))

    def _draw(self, work: Work) -> list[Effect]:
        """Read ahead, within what is promised to a successor; who cannot be heard by anybody goes on without."""
        flow, promise = work.flow, work.promise
        if not flow.is_first or self.membership.step is not Claiming.HOLDING:
            return flow.draws()
        out = self._publish_now(work) if promise.is_short(flow.draw_next, self._now) else []
        return out + flow.draws(promise.limit(self._now))

    def _publish_now(self, work: Work) -> list[Effect]:
        out = self.membership.publish_now(self._now)
        if out and work.flow.is_first:
            work.promise.asked(work.promise.next(work.flow.draw_next, self._now), self._now)
        return out

    def _on_record_published(self, event: ev.RecordPublished) -> list[Effect]:
        record, work = event.record, self.work
        self._is_announced = record.state is SeatState.ACTIVE
        if work is not None and self._is_announced and work.flow.is_first:
            work.promise.told(record.data_next, work.flow.draw_next, self._now)
        if record.state is SeatState.LEAVING and self._farewell.is_said:
            return self._leave()
        return [] if event.confirmed else self.membership.show(record.seat, self._now)

    def _progress(self) -> Progress | None:
        """What a record says now; `data_next` is a promise not to be passed before the renewal after it."""
        work = self.work
        if work is None:
            return None
        flow = work.flow
        data_next = work.promise.next(flow.draw_next, self._now) if flow.is_first else flow.data_position
        return Progress(SeatState.ACTIVE, self.outer_step, data_next, self._checkpoint_step)

    # --- the end ----------------------------------------------------------------------------------

    @property
    def _has_left(self) -> bool:
        return self.phase is Phase.LEFT

    def _on_stop(self, event: ev.StopRequested) -> list[Effect]:
        if not self._farewell.is_stop:
            self._end(event.reason)
        return []

    def _end(self, reason: str) -> None:
        self._farewell.begin(reason, self._now)
        self.phase = Phase.DRAINING

    def _wind_up(self) -> list[Effect]:
        """DRAINING: let what is in flight end, save, say goodbye, leave."""
        farewell, work = self._farewell, self.work
        if farewell.is_said:
            return self._leave() if farewell.is_overdue(self._now) else []
        out: list[Effect] = []
        if work is not None:
            effects, is_ready = farewell.wind_up(work, self.lookout, self.settings.lease_s, self._now)
            out += self._desk(effects)
            if not is_ready:
                return out
            out += work.flow.abandon()
        farewell.said(self._now)
        return out + (self.membership.leave(self._now) or self._leave())

    def _leave(self) -> list[Effect]:
        self.phase = Phase.LEFT
        return [do.Leave(self._farewell.reason)]


HANDLERS: dict[type, Callable[[Machine, Any], list[Effect]]] = {
    ev.Started: Machine._on_started,
    ev.ClockFollowed: Machine._on_clock_followed,
    ev.StopRequested: Machine._on_stop,
    ev.StateLoaded: Machine._on_state_loaded,
    ev.StateUnavailable: Machine._on_state_unavailable,
    ev.StateCopied: Machine._on_state_copied,
    ev.CheckpointSaved: Machine._on_checkpoint_saved,
    ev.SeatsRead: Machine._on_seats_read,
    ev.RecordPublished: Machine._on_record_published,
    ev.InnerStepDone: Machine._on_inner_step_done,
    ev.BoundaryTaken: Machine._on_boundary_taken,
    ev.CorrectionAdded: Machine._on_correction_added,
    **dict.fromkeys(ev.MICRO_BATCH_EVENTS, Machine._on_micro_batch_event),
    **dict.fromkeys(ev.EXCHANGE_EVENTS, Machine._on_exchange_event),
}
