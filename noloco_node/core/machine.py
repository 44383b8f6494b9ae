"""One node's decisions: `handle(event, now) -> effects`. Everything the node does starts here.

Owns the phase, the outer and inner step counters and the order of jobs on the device. The parts decide their own
matters: `membership` the seat, `flow` the micro-batches, `desk` the exchange; this file joins them. Must not know:
sockets, tensors, clocks. The same machine runs under the driver and in the simulator.

The chain in `_plan` is the heart: what changes parameters comes first and waits until nothing is between forward and
backward; while it waits no forward starts (DESIGN 5, invariant 7).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from noloco_node.core import effects as do
from noloco_node.core import events as ev
from noloco_node.core import limits, schedule
from noloco_node.core.effects import Effect
from noloco_node.core.exchange_desk import ExchangeDesk
from noloco_node.core.exchange_table import ExchangeState
from noloco_node.core.flow import MicroBatchFlow
from noloco_node.core.membership import Membership
from noloco_node.core.types import Admit, Clock, OfferAnswer, Outcome, PeerId, Phase, Seat, SeatState, Settings

LOOK_AGAIN_S = 1.0  # a vacant seat that is needed now is read again at most this often
PUBLISH_WAIT_S = 3.0  # how long the last record may take


@dataclass(slots=True)
class Closing:
    """How the newest outer step closed, until its checkpoint is on the way."""

    outcome: Outcome
    partner: Seat | None


@dataclass(slots=True)
class Machine:
    """State machine of one node. `wanted` is the seat asked for (None: the one the swarm needs most).

    `start_s` is the monotonic time of outer step 0 on the time clock.
    """

    settings: Settings
    peer: PeerId
    incarnation: int
    wanted: Seat | None = None
    start_s: float = 0.0
    phase: Phase = Phase.JOINING
    outer_step: int = 0  # closed outer steps = number of the one now worked on
    inner_step: int = 0  # optimizer steps since the boundary
    closed: dict[Outcome, int] = field(default_factory=lambda: dict.fromkeys(Outcome, 0))
    flow: MicroBatchFlow | None = None
    desk: ExchangeDesk | None = None
    membership: Membership = field(init=False)
    time_clock: schedule.TimeClock | None = field(init=False)
    waits_for: str = ""  # what the node stands still for, in words
    _started: ev.Started = field(default_factory=ev.Started)
    _job: Effect | None = None
    _closing: Closing | None = None
    _checkpoint_step: int = 0
    _step_positions: tuple[int, ...] = ()
    _ending: str = ""  # "finished" or the reason of a stop
    _ending_since_s: float = 0.0
    _final_save: bool = False  # the checkpoint of a stop is taken
    _said_goodbye_s: float | None = None
    _sync_asked: bool = False
    _is_phase_begun: bool = False
    _is_announced: bool = False  # our `active` record is signed and stored
    _peers_checked_s: float = float("-inf")
    _news: bool = True  # a record came since the peers were looked through
    _looked_s: dict[Seat, float] = field(default_factory=dict)
    _now: float = 0.0

    def __post_init__(self) -> None:
        settings = self.settings
        self.membership = Membership(settings, self.peer, self.incarnation, self.wanted)
        on_time = settings.clock is Clock.TIME
        self.time_clock = schedule.TimeClock(self.start_s, settings.outer_interval_s) if on_time else None

    # --- entry ------------------------------------------------------------------------------------

    def handle(self, event: ev.Event, now: float) -> list[Effect]:
        """Take in what happened, return what to do now, in order."""
        self._now = now
        if self.phase is Phase.LEFT:
            return []
        self._news = self._news or isinstance(event, ev.RecordLearnt | ev.StateLoaded)
        out = self.membership.handle(event, now)
        if any(isinstance(effect, do.Leave) for effect in out):
            self.phase = Phase.LEFT
            return out
        handler = HANDLERS.get(type(event))
        if handler is not None:
            out += handler(self, event)
        out += self._settle()
        out += self._plan()
        return out

    def next_deadline(self) -> float | None:
        """When `TimePassed` is due, monotonic seconds."""
        times = [self.membership.next_deadline(self._now)]
        if self.flow is not None and self.desk is not None:
            times += [self.flow.next_deadline(), self.desk.next_deadline(self._now), self._boundary_time()]
            if self.waits_for or self.flow.gate.is_starved(self._now):
                times.append(self._now + LOOK_AGAIN_S)
            elif self.flow.gate.is_empty:
                times.append(self.flow.gate.starves_at_s)
        if self._ending or self.phase is Phase.SYNCING:
            times.append(self._now + LOOK_AGAIN_S)
        known = [max(t, self._now) for t in times if t is not None]
        return min(known, default=None)

    def view(self, seat: Seat) -> PeerId | None:
        """The peer that holds `seat` and works there, as far as this node knows."""
        record = self.membership.roster.active_holder(seat, self._now)
        return None if record is None or record.peer == self.peer else record.peer

    # --- life -------------------------------------------------------------------------------------

    def _on_started(self, event: ev.Started) -> list[Effect]:
        self._started = event
        return []

    def _on_stop(self, event: ev.StopRequested) -> list[Effect]:
        if self._ending in ("", "finished"):
            self._end(event.reason)
        return []

    def _on_state_loaded(self, event: ev.StateLoaded) -> list[Effect]:
        """The weights are in place: take the seat's work up."""
        seat = self.membership.seat
        if seat is None:
            return []
        self.outer_step, self.inner_step = event.outer_step, event.inner_step
        if self.time_clock is not None:
            self.outer_step = max(self.outer_step, self.time_clock.running(self._now))
        self._checkpoint_step = event.outer_step if event.source != "seed" else 0
        data_next = event.data_next
        if seat.stage == 0 and event.source != "checkpoint":  # a successor begins where the last holder promised
            data_next = max(data_next, self.membership.roster.data_next(seat))
        self.flow = MicroBatchFlow(self.settings, seat, data_next=data_next)
        self.desk = ExchangeDesk(self.settings, seat, self.incarnation)
        self.phase = Phase.TRAINING
        self.membership.watch([*self._replicas_of(seat.stage + 1), *self._replicas_of(seat.stage)])
        if self._is_run_over():
            self._end("finished")
        self.desk.expect_phase(self.outer_step)
        self._is_phase_begun = False
        return self._say_progress()

    def _on_state_unavailable(self, event: ev.StateUnavailable) -> list[Effect]:
        """A donor or the local checkpoint failed: ask again, without the local one."""
        self.waits_for = event.reason
        self._started = ev.Started(has_initial_peers=self._started.has_initial_peers)
        self._sync_asked = False
        return []

    def _on_checkpoint_saved(self, event: ev.CheckpointSaved) -> list[Effect]:
        if not event.reason:
            self._checkpoint_step = max(self._checkpoint_step, event.outer_step)
            self._tell_membership()
        return []

    def _on_seats_read(self, event: ev.SeatsRead) -> list[Effect]:
        """In SYNCING the stage's seats were read: now it is known where the weights come from."""
        seat = self.membership.seat
        if self.phase is not Phase.SYNCING or self._sync_asked or seat is None or seat not in event.seats:
            return []
        self._sync_asked = True
        return self._ask_for_state(seat)

    def _on_record_published(self, event: ev.RecordPublished) -> list[Effect]:
        self._is_announced = event.record.state is SeatState.ACTIVE
        return self._leave() if event.record.state is SeatState.LEAVING and self._said_goodbye_s is not None else []

    def _ask_for_state(self, seat: Seat) -> list[Effect]:
        """Own checkpoint, else a live replica's, else the seed; a stage that trained waits for a donor."""
        stage = [r for r in self.membership.roster.records(self._now) if r.seat.stage == seat.stage]
        newest = self.membership.roster.outer_step_seen(seat.stage)
        own = self._started.checkpoint_step
        if own is not None and self._started.checkpoint_seat == seat and own + limits.STALE_STEPS_MAX >= newest:
            return [do.LoadCheckpoint(seat)]
        donors = tuple(r.peer for r in stage if r.checkpoint_step >= 1 and r.peer != self.peer)
        if donors:
            return [do.FetchState(seat, donors)]
        if newest >= 1:
            self._sync_asked = False
            self.waits_for = f"stage {seat.stage} has trained and no holder of its checkpoint is known yet"
            return []
        self.waits_for = ""
        return [do.InitialiseState(seat)]

    # --- micro-batches ----------------------------------------------------------------------------

    def _on_micro_batch_event(self, event: Any) -> list[Effect]:
        flow = self.flow
        if flow is None:
            return [do.AnswerBusy(event.call)] if isinstance(event, ev.MicroBatchArrived) else []
        match event:
            case ev.MicroBatchDrawn():
                return flow.drawn(event, self._now)
            case ev.MicroBatchArrived():
                return flow.refuse(event) if self._is_stopping() else self._arrived(flow, event)
            case ev.CallerLost():
                return flow.caller_lost(event)
            case ev.ForwardDone():
                self._job = None
                return flow.forward_done(event, self.view, self._now)
            case ev.HopAdmitted():
                return flow.hop_admitted(event, self._now)
            case ev.HopRefused() | ev.HopBroken():
                return flow.hop_failed(event, self.view, self._now)
            case ev.GradientArrived():
                return flow.gradient_arrived(event)
            case _:
                self._job = None
                return flow.backward_done(event, self._now)

    def _arrived(self, flow: MicroBatchFlow, event: ev.MicroBatchArrived) -> list[Effect]:
        blocked = self.desk is not None and self.desk.blocks_training(self._now)
        return flow.arrived(event, self._now, blocked=blocked)

    def _on_inner_step_done(self, event: ev.InnerStepDone) -> list[Effect]:
        self._job = None
        self.inner_step += 1
        return []

    # --- outer steps ------------------------------------------------------------------------------

    def _on_boundary_taken(self, event: ev.BoundaryTaken) -> list[Effect]:
        """x is frozen: trade it, and look for the partner of the phase that begins."""
        self._job = None
        if self.desk is None:
            return []
        out = self._desk(self.desk.boundary(event, self.view, self._now))
        self.outer_step = self._next_outer_step()
        self.inner_step, self._step_positions = 0, ()
        self._tell_membership()
        if not self._is_run_over():
            out += self._desk(self.desk.begin_phase(self.outer_step, self.view, self._now))
        elif self.flow is not None:
            self.flow.serve_only()
        return out

    def _on_correction_added(self, event: ev.CorrectionAdded) -> list[Effect]:
        self._job = None
        if self.desk is not None:
            self.desk.correction_added(event.outer_step)
        return []

    def _on_exchange_event(self, event: Any) -> list[Effect]:
        if self.desk is None:
            if isinstance(event, ev.OfferReceived):
                return [do.AnswerOffer(event.ticket, OfferAnswer.LATER)]
            return []
        return self._desk(self.desk.handle(event, self.view, self._now))

    def _desk(self, effects: list[Effect]) -> list[Effect]:
        """Note the outcome when the desk closes a step."""
        for effect in effects:
            if isinstance(effect, do.CloseExchange):
                self.closed[effect.outcome] += 1
                self._closing = Closing(effect.outcome, effect.partner)
        return effects

    def _boundary_time(self) -> float | None:
        if self.time_clock is None or self._ending:
            return None
        return self.time_clock.due_s(self.outer_step)

    def _is_due(self) -> bool:
        """Is outer step `outer_step` due (DESIGN 5a, When)?"""
        if self._ending or self.flow is None or self._is_run_over():
            return False
        if self.time_clock is not None:
            return self.time_clock.due(self.outer_step, self._now)
        steps = schedule.StepsClock(self.flow.seat.stage, self.settings.inner_steps)
        if not self.flow.gate.is_empty:
            return False
        return steps.due(self.outer_step, self.inner_step, self._step_positions) or self._is_left_over()

    def _is_left_over(self) -> bool:
        """Steps clock, later stages: what would make the step due will not come, and others are further.

        Detours give a replica fewer micro-batches than its share. When nothing comes any more and the partner waits
        already, or the stage before is gone at the end of the run, the boundary is taken with what was trained.
        """
        flow, desk = self.flow, self.desk
        if flow is None or desk is None or flow.is_first or self.inner_step == 0 or not flow.gate.is_starved(self._now):
            return False
        upstream = self._replicas_of(flow.seat.stage - 1)
        return desk.partner_waits(self.outer_step) or all(self.view(seat) is None for seat in upstream)

    def _next_outer_step(self) -> int:
        if self.time_clock is not None:
            return self.time_clock.after(self.outer_step, self._now)
        if self.settings.admit is Admit.ORDERED or self.flow is None:
            return self.outer_step + 1
        stage = self.flow.seat.stage
        others = [r.outer_step for r in self.membership.roster.stage_active(stage, self._now) if r.peer != self.peer]
        return schedule.StepsClock(stage, self.settings.inner_steps).after(self.outer_step, others)

    def _is_run_over(self) -> bool:
        total = self.settings.total_outer_steps
        return total > 0 and self.outer_step >= total

    # --- after each event -------------------------------------------------------------------------

    def _settle(self) -> list[Effect]:
        """Follow up on what the parts decided: seat won or lost, deadlines, look-ups, the end."""
        out = self._follow_seat()
        if self.flow is not None and self.desk is not None:
            out += self.flow.time_passed(self.view, self._now)
            if not self._ending:
                out += self._look_for_peers()
                out += self._begin_work()
            blocked = self.desk.blocks_training(self._now)
            out += self.flow.hand_back() if blocked else []
            if self.phase in (Phase.TRAINING, Phase.EXCHANGING):
                self.phase = Phase.EXCHANGING if blocked else Phase.TRAINING
            if self._is_run_over() and not self._ending and self._closing is None and not blocked:
                self._end("finished")
        if self._ending:
            out += self._wind_up()
        return out

    def _follow_seat(self) -> list[Effect]:
        held = self.membership.is_holder
        if self.phase is Phase.JOINING and held and self.membership.seat is not None:
            self.phase, self._sync_asked = Phase.SYNCING, False
        if self.phase is Phase.SYNCING and held and not self._sync_asked and not self._ending:
            return self._look(self._replicas_of(self.membership.seat.stage if self.membership.seat else 0))
        if not held and self.phase in (Phase.SYNCING, Phase.TRAINING, Phase.EXCHANGING):
            return self._lose_seat()
        return []

    def _lose_seat(self) -> list[Effect]:
        """Outranked: stop, keep the checkpoint, be a spare."""
        out = self.flow.abandon() if self.flow is not None else []
        if self.desk is not None:
            out += self._desk(self.desk.stop(self._now))
        self.flow = self.desk = self._closing = None
        self.phase, self.inner_step = Phase.JOINING, 0
        self.waits_for = "the seat was taken by a node with an older claim"
        return out

    def _look_for_peers(self) -> list[Effect]:
        """Read again the seats this node needs now and finds vacant: the next stage's and the partner's.

        Whom it misses is looked through once a second and when news came, not at every event.
        """
        flow, desk = self.flow, self.desk
        assert flow is not None
        assert desk is not None
        if self._now < self._peers_checked_s + LOOK_AGAIN_S and not self._news:
            return []
        self._peers_checked_s, self._news = self._now, False
        stage = flow.seat.stage
        missing = self._missing_to_start()
        wanted = self._replicas_of(stage + 1)
        vacant = [seat for seat in wanted if self.view(seat) is None]
        self.waits_for = ""
        if missing:
            self.waits_for = f"a new run starts with {self.settings.start_seats} active seats"
        elif wanted and len(vacant) == len(wanted):
            self.waits_for = f"no replica of stage {stage + 1} is known"
        partner = desk.seat_sought(self.view)
        if flow.gate.is_starved(self._now):
            vacant += self._replicas_of(stage - 1)
        seats = dict.fromkeys([*missing, *vacant, *([partner] if partner is not None else [])])
        return self._look(list(seats)) if seats else []

    def _begin_work(self) -> list[Effect]:
        """Look for the first partner and draw data, but not before a new run has its seats together."""
        flow, desk = self.flow, self.desk
        assert flow is not None
        assert desk is not None
        if self._missing_to_start() or not self._is_announced:
            return []  # an OFFER that carries a `joining` record finds no ear
        begin = [] if self._is_phase_begun else self._desk(desk.begin_phase(self.outer_step, self.view, self._now))
        self._is_phase_begun = True
        return begin + ([] if self.waits_for else flow.draws())

    def _missing_to_start(self) -> list[Seat]:
        """Seats to look for while a new run has too few of them: at the very beginning only."""
        begun = self.outer_step or self.inner_step or self.flow is None or self.flow.accounts.sent
        if begun or self.settings.start_seats == 0:
            return []
        others = [s for stage in range(self.settings.num_stages) for s in self._replicas_of(stage)]
        vacant = [seat for seat in others if seat != self.membership.seat and self.view(seat) is None]
        return vacant if len(others) - len(vacant) < self.settings.start_seats else []

    def _look(self, seats: list[Seat]) -> list[Effect]:
        due = [s for s in seats if self._now >= self._looked_s.get(s, -LOOK_AGAIN_S) + LOOK_AGAIN_S]
        due = due[: limits.SWEEP_SEATS_PER_RENEWAL]
        self._looked_s.update(dict.fromkeys(due, self._now))
        return [do.ReadSeats(tuple(due))] if due else []

    def _say_progress(self) -> list[Effect]:
        self._tell_membership()
        return self.membership.publish_now(self._now)

    def _tell_membership(self) -> None:
        """What the next record says; `data_next` is a promise not to be passed before the renewal after it."""
        if self.flow is not None:
            told = self.outer_step, self.flow.data_promise, self._checkpoint_step
            self.membership.set_progress(SeatState.ACTIVE, *told)

    # --- the end ----------------------------------------------------------------------------------

    def _is_stopping(self) -> bool:
        return self._ending not in ("", "finished")

    def _end(self, reason: str) -> None:
        self._ending, self._ending_since_s = reason, self._now
        self.phase = Phase.DRAINING

    def _wind_up(self) -> list[Effect]:
        """DRAINING: let what is in flight end, save, say goodbye, leave."""
        if self._said_goodbye_s is not None:
            return self._leave() if self._now >= self._said_goodbye_s + PUBLISH_WAIT_S else []
        out: list[Effect] = []
        if self.flow is not None and self.desk is not None:
            if self._is_stopping():
                overdue = self._now >= self._ending_since_s + limits.DRAIN_S
                if overdue or self.desk.state is not ExchangeState.DOUBT:  # one in doubt hears the verdict if it can
                    out += self._desk(self.desk.stop(self._now))
                if overdue and self.flow.in_flight:
                    out += self.flow.abandon()
                if self.flow.in_flight or self._job is not None or not self._final_save:
                    return out
            elif not self._may_leave():
                return out + self._look_upstream()
            out += self.flow.abandon()
        self._said_goodbye_s = self._now
        farewell = self.membership.leave(self._now)
        return out + (farewell or self._leave())

    def _may_leave(self) -> bool:
        """The run is over: later stages serve until the stage before is gone, at most a lease long."""
        flow, desk = self.flow, self.desk
        assert flow is not None
        assert desk is not None
        waited_s = self._now - self._ending_since_s
        if self._job is not None or self._closing is not None or desk.is_open or flow.in_flight:
            return waited_s >= self.settings.lease_s
        if waited_s < limits.LINGER_S:
            return False
        upstream = self._replicas_of(flow.seat.stage - 1)
        return all(self.view(seat) is None for seat in upstream) or waited_s >= self.settings.lease_s

    def _look_upstream(self) -> list[Effect]:
        return [] if self.flow is None else self._look(self._replicas_of(self.flow.seat.stage - 1))

    def _replicas_of(self, stage: int) -> list[Seat]:
        """All seats of a stage; none for a stage that does not exist."""
        exists = 0 <= stage < self.settings.num_stages
        return [Seat(stage, replica) for replica in range(self.settings.num_replicas)] if exists else []

    def _leave(self) -> list[Effect]:
        self.phase = Phase.LEFT
        return [do.Leave(self._ending)]

    # --- the device -------------------------------------------------------------------------------

    def _plan(self) -> list[Effect]:
        """What the device does next, one job at a time: the first rule that has something."""
        if self._job is not None or self.flow is None or self.phase is Phase.LEFT:
            return []
        for change in (self._add_correction, self._take_boundary, self._run_inner_step, self._save):
            job = change()
            if job is not None:
                return job() if self.flow.in_flight == 0 else self._backward()
        return self._backward() or self._forward()

    def _add_correction(self) -> Callable[[], list[Effect]] | None:
        due = self.desk.correction_due if self.desk is not None else None
        return None if due is None else lambda: self._device(do.AddCorrection(due))

    def _take_boundary(self) -> Callable[[], list[Effect]] | None:
        desk = self.desk
        if desk is None or not self._is_due() or desk.blocks_training(self._now):
            return None
        return lambda: [*self._desk(desk.before_boundary(self._now)), *self._device(do.TakeBoundary(self.outer_step))]

    def _run_inner_step(self) -> Callable[[], list[Effect]] | None:
        flow, desk = self.flow, self.desk
        if flow is None or desk is None or desk.blocks_training(self._now):
            return None
        if self._is_stopping():
            return self._inner_step if flow.gate.totals.done and not flow.in_flight else None
        return self._inner_step if flow.gate.is_complete(self._now) and not self._is_run_over() else None

    def _inner_step(self) -> list[Effect]:
        assert self.flow is not None
        totals = self.flow.close_step()
        self._step_positions = totals.positions
        step = do.RunInnerStep(totals.tokens, self._position(), totals.loss_sum, totals.done)
        return self._device(step)

    def _save(self) -> Callable[[], list[Effect]] | None:
        """A checkpoint after each outer step and at a stop."""
        if self._closing is None and (not self._is_stopping() or self._final_save or self._has_open_job()):
            return None
        return self._save_now

    def _save_now(self) -> list[Effect]:
        assert self.flow is not None
        closing, self._closing = self._closing, None
        self._final_save = self._is_stopping()
        return self._device(
            do.SaveCheckpoint(
                self.outer_step,
                self.inner_step,
                self.flow.data_position,
                closing.outcome if closing else None,
                closing.partner if closing else None,
            )
        )

    def _has_open_job(self) -> bool:
        return self.desk is not None and self.desk.is_open

    def _backward(self) -> list[Effect]:
        assert self.flow is not None
        work = self.flow.gate.next_backward()
        return [] if work is None else self._device(self.flow.start_backward(work))

    def _forward(self) -> list[Effect]:
        flow, desk = self.flow, self.desk
        if flow is None or desk is None or self._is_stopping() or (flow.is_first and self._is_run_over()):
            return []
        if self.settings.admit is Admit.ORDERED and desk.blocks_training(self._now):
            return []  # a forward before the correction would make the result depend on timing
        work = flow.gate.next_forward(self._now)
        return [] if work is None else self._device(flow.start_forward(work, self._position(), self._now))

    def _position(self) -> int:
        return schedule.position(self.outer_step, self.inner_step, self.settings.inner_steps)

    def _device(self, job: Effect) -> list[Effect]:
        self._job = job
        return [job]

    def _on_state_copied(self, event: ev.StateCopied) -> list[Effect]:
        self._job = None
        return []


HANDLERS: dict[type, Callable[[Machine, Any], list[Effect]]] = {
    ev.Started: Machine._on_started,
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
    **dict.fromkeys(
        (
            ev.MicroBatchDrawn,
            ev.MicroBatchArrived,
            ev.CallerLost,
            ev.ForwardDone,
            ev.HopAdmitted,
            ev.HopRefused,
            ev.HopBroken,
            ev.GradientArrived,
            ev.BackwardDone,
        ),
        Machine._on_micro_batch_event,
    ),
    **dict.fromkeys(
        (
            ev.OfferReceived,
            ev.OfferAnswered,
            ev.ExchangeOpened,
            ev.ExchangeMessageReceived,
            ev.TensorReceived,
            ev.TensorDamaged,
            ev.TensorVerified,
            ev.TensorRefused,
            ev.TimePassed,
            ev.RecordLearnt,
        ),
        Machine._on_exchange_event,
    ),
}
