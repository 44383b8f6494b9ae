"""How micro-batches come to this replica, go on to the next stage, and end (DESIGN 5).

Owns the hop of each micro-batch along its path, the accounts of the origin and the memory of replays. The device is
asked through the machine: this part names the next forward or backward, the machine decides when. Must not know
outer steps beyond the schedule position it stamps on own micro-batches.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from noloco_node.core import effects as do
from noloco_node.core import events as ev
from noloco_node.core import limits, routing
from noloco_node.core.effects import Effect
from noloco_node.core.step_gate import StepGate, StepTotals, Work, WorkState
from noloco_node.core.types import Admit, MicroBatchId, PeerId, Seat, Settings

View = Callable[[Seat], PeerId | None]


@dataclass(slots=True)
class Hop:
    """Attempts to hand one activation to the next stage: candidates in order, round after round."""

    candidates: tuple[int, ...]
    started_s: float
    next_index: int = 0
    broken: int = 0
    rounds: int = 0  # in which every candidate refused
    at: Seat | None = None  # the replica that has it now
    retry_s: float | None = None  # every candidate refused: when to begin the next round


@dataclass(slots=True)
class Accounts:
    """Of the origin: every own micro-batch sent ends once, `trained` or `dropped`. The rest are extra counts."""

    sent: int = 0  # own, begun here
    trained: int = 0
    dropped: int = 0
    served: int = 0  # of other origins, added to a step here
    resent: int = 0
    late: int = 0
    replayed: int = 0
    busy: int = 0
    drawn_again: int = 0  # own, drawn before a crash and after the checkpoint that was loaded


@dataclass(slots=True)
class MicroBatchFlow:
    """Micro-batches of one replica, made anew whenever a state is loaded. `data_next`: the first number it draws."""

    settings: Settings
    seat: Seat
    data_next: int = 0
    accounts: Accounts = field(default_factory=Accounts)
    gate: StepGate = field(init=False)
    _works: dict[int, Work] = field(default_factory=dict)
    _hops: dict[int, Hop] = field(default_factory=dict)
    _memory: OrderedDict[MicroBatchId, int] = field(default_factory=OrderedDict)
    _steps_closed: int = 0
    _drawing: set[int] = field(default_factory=set)  # n asked for, not here yet
    _draw_next: int = 0
    _serving_only: bool = False
    _unfinished: set[int] = field(default_factory=set)  # own n drawn and not in a closed step

    def __post_init__(self) -> None:
        s = self.settings
        inflight_max = 1 if self.is_last else s.num_stages - self.seat.stage + s.inflight_extra
        self.gate = StepGate(s.micro_batches, inflight_max, s.admit, s.grace_s, s.idle_close_s)
        self._draw_next = self.data_next
        self._open_step()

    @property
    def is_first(self) -> bool:
        return self.seat.stage == 0

    @property
    def is_last(self) -> bool:
        return self.seat.stage == self.settings.num_stages - 1

    @property
    def in_flight(self) -> int:
        return self.gate.in_flight

    @property
    def open(self) -> int:
        """Own micro-batches sent and not ended."""
        return self.accounts.sent - self.accounts.trained - self.accounts.dropped

    @property
    def has_trained(self) -> bool:
        """At least one micro-batch was counted here since the state was loaded."""
        return self.accounts.trained + self.accounts.served > 0

    @property
    def data_position(self) -> int:
        """The first own micro-batch that is not in a closed step: where a restart begins.

        Later stages have no data of their own; there it is the number with which their open step begins.
        """
        if not self.is_first:
            return self._step * self.settings.micro_batches
        return min(self._unfinished, default=self._draw_next)

    @property
    def draw_next(self) -> int:
        """The number that is drawn next."""
        return self._draw_next

    # --- events -----------------------------------------------------------------------------------

    def drawn(self, event: ev.MicroBatchDrawn, now: float) -> list[Effect]:
        self._drawing.discard(event.n)
        micro_batch = MicroBatchId(self.seat.replica, event.n)
        self._add(Work(event.call, micro_batch, event.tokens, 0, own=True, arrived_s=now))
        return []

    def admits(self, micro_batch: MicroBatchId, *, blocked: bool) -> bool:
        """Whether a hop finds a place in the queue. Changes nothing.

        Hops still being received hold no place: slow senders would keep the device idle.

        `blocked`: the optimizer waits for a partner, so a full step will not open the next one soon.
        """
        full = self.gate.queued >= self._queue_max() or (blocked and self.gate.is_full)
        return not full or self.gate.is_expected(micro_batch)

    def turned_away(self) -> None:
        """A hop has heard BUSY before its activation was sent."""
        self.accounts.busy += 1

    def arrived(self, event: ev.MicroBatchArrived, now: float, *, blocked: bool) -> list[Effect]:
        """A hop: a place in the queue, or BUSY. A known id is computed and answered, not added again."""
        if not self.admits(event.id, blocked=blocked):
            return self.refuse(event)
        work = Work(event.call, event.id, event.tokens, event.position, own=False, arrived_s=now)
        known = event.id in self._memory or any(w.id == event.id for w in self._works.values())
        passed = self.settings.admit is Admit.ORDERED and event.id.n // self.settings.micro_batches < self._step
        work.count = not known and not passed and not self._serving_only
        self.accounts.replayed += known
        self._add(work)
        return [do.AnswerAdmitted(event.call)]

    def refuse(self, event: ev.MicroBatchArrived) -> list[Effect]:
        self.accounts.busy += 1
        return [do.AnswerBusy(event.call)]

    def caller_lost(self, event: ev.CallerLost) -> list[Effect]:
        """Nobody waits for the answer: dropped unless its backward is on the device or done."""
        work = self._works.get(event.call)
        if work is None or work.state is WorkState.BACKWARD:
            return []
        if work.state is WorkState.FORWARD:
            work.orphaned = True  # the device has it; it ends when the forward is done
            return []
        return self._end(work, dropped=True)

    def forward_done(self, event: ev.ForwardDone, view: View, now: float) -> list[Effect]:
        work = self._works.get(event.call)
        if work is None:
            return []
        if not event.finite or (work.orphaned and not self.is_last):
            return self._end(work, dropped=True)
        if self.is_last:
            work.loss_sum, work.loss_tokens = event.loss_sum or 0.0, work.tokens
            return self._trained(work, now)
        work.state, work.away_since_s = WorkState.AWAY, now
        self._hops[work.call] = Hop(self._candidates(work.id), started_s=now)
        return self._next_candidate(work, view, now)

    def hop_admitted(self, event: ev.HopAdmitted, now: float) -> list[Effect]:
        work = self._works.get(event.call)
        if work is not None:
            work.away_since_s = now
        return []

    def hop_failed(self, event: ev.HopRefused | ev.HopBroken, view: View, now: float) -> list[Effect]:
        """BUSY or broken: the next candidate of the same order."""
        work, hop = self._works.get(event.call), self._hops.get(event.call)
        if work is None or hop is None or hop.at != event.seat:
            return []
        hop.at = None
        if isinstance(event, ev.HopBroken):
            hop.broken += 1
            self.accounts.resent += 1
        else:
            hop.broken = 0  # one is there and only busy: HOP_GIVE_UP_S decides, not the dead one beside it
        return self._next_candidate(work, view, now)

    def gradient_arrived(self, event: ev.GradientArrived) -> list[Effect]:
        work = self._works.get(event.call)
        if work is None:
            return []
        self._hops.pop(event.call, None)
        if not event.finite:
            return self._end(work, dropped=True)
        work.state = WorkState.RETURNED
        work.loss_sum, work.loss_tokens = event.loss_sum, event.tokens
        return []

    def backward_done(self, event: ev.BackwardDone, now: float) -> list[Effect]:
        work = self._works.get(event.call)
        if work is None:
            return []
        return self._trained(work, now) if event.finite else self._end(work, dropped=True)

    def time_passed(self, view: View, now: float) -> list[Effect]:
        """Begin the next round of refused hops, give up hopeless ones, drop the graphs of late ones."""
        out: list[Effect] = []
        for call, hop in list(self._hops.items()):
            work = self._works[call]
            if hop.retry_s is not None and now >= hop.retry_s:
                hop.retry_s, hop.next_index = None, 0
                out += self._next_candidate(work, view, now)
        for work in self.gate.works:
            if work.state is WorkState.AWAY and not work.late and now >= work.away_since_s + self.settings.late_s:
                self.gate.set_late(work)
                self.accounts.late += 1
                out.append(do.DropGraph(work.call))
        return out

    # --- for the machine --------------------------------------------------------------------------

    def draws(self, before: int = limits.DATA_NEXT_MAX) -> list[Effect]:
        """Stage 0 reads a few micro-batches ahead, so that the device never waits; none from number `before` on."""
        out: list[Effect] = []
        while self.is_first and len(self._drawing) + self.gate.queued < limits.DRAWN_AHEAD_MAX:
            n = self._draw_next
            if n >= before:
                break
            self._draw_next += 1
            self._drawing.add(n)
            self._unfinished.add(n)
            out.append(do.DrawMicroBatch(n))
        return out

    def start_forward(self, work: Work, position: int, now: float) -> Effect:
        if work.own:
            work.position = position
            self.accounts.sent += 1
        self.gate.admit(work, now)
        return do.RunForward(work.call, count=work.count)

    def start_backward(self, work: Work) -> Effect:
        work.state = WorkState.BACKWARD
        return do.RunBackward(work.call, count=work.count, recompute=work.late)

    def close_step(self) -> StepTotals:
        """The optimizer is about to step: the open step ends, its ids go into the memory of replays."""
        totals = self.gate.close()
        self._steps_closed += 1
        self._unfinished = {n for n in self._unfinished if self._is_open(n)}
        self._forget_old_ids()
        self._open_step()
        return totals

    def serve_only(self) -> None:
        """The run is over here: what still comes is computed and answered, and changes nothing."""
        self._serving_only = True
        for work in self.gate.works:
            work.count = False

    def hand_back(self) -> list[Effect]:
        """The open step is full and must wait for a partner: others may be starving for what is queued here."""
        if self.settings.admit is Admit.ORDERED or not self.gate.is_full:
            return []
        waiting = [w for w in self._works.values() if w.state is WorkState.QUEUED and not w.own]
        for work in waiting:
            self.gate.remove(work)
            del self._works[work.call]
            self.accounts.busy += 1
        return [do.AnswerBusy(work.call) for work in waiting]

    def abandon(self) -> list[Effect]:
        """Drop everything that is here: the node stops or loses its seat."""
        return [effect for work in list(self._works.values()) for effect in self._end(work, dropped=True)]

    def next_deadline(self, now: float) -> float | None:
        late_s = self.settings.late_s
        times = [hop.retry_s for hop in self._hops.values() if hop.retry_s is not None]
        times += [w.away_since_s + late_s for w in self.gate.works if w.state is WorkState.AWAY and not w.late]
        gate = self.gate.next_deadline(now)
        if gate is not None:
            times.append(gate)
        return min(times, default=None)

    # --- inside -----------------------------------------------------------------------------------

    def _add(self, work: Work) -> None:
        self._works[work.call] = work
        self.gate.enqueue(work)

    def _queue_max(self) -> int:
        """Ordered mode must hold what every origin may have under way, or it could wait for what it refused."""
        s = self.settings
        ordered = s.num_replicas * (s.num_stages + s.inflight_extra + 1) if s.admit is Admit.ORDERED else 0
        return max(s.queue_max, ordered)

    def _candidates(self, micro_batch: MicroBatchId) -> tuple[int, ...]:
        s = self.settings
        order = routing.candidates(s.seed, self.seat.stage + 1, micro_batch.n, micro_batch.origin, s.num_replicas)
        return order[:1] if s.admit is Admit.ORDERED else order

    def _next_candidate(self, work: Work, view: View, now: float) -> list[Effect]:
        hop = self._hops[work.call]
        waited_s = now - hop.started_s
        breaks_all = hop.broken > 2 * len(hop.candidates) and waited_s >= limits.HOP_BROKEN_S
        if breaks_all or waited_s >= limits.HOP_GIVE_UP_S:
            return self._end(work, dropped=True)
        while hop.next_index < len(hop.candidates):
            seat = Seat(self.seat.stage + 1, hop.candidates[hop.next_index])
            hop.next_index += 1
            peer = view(seat)
            if peer is not None:
                hop.at = seat
                return [do.CallNextStage(work.call, work.id, work.position, seat, peer)]
        hop.retry_s = now + min(limits.HOP_RETRY_S * 2**hop.rounds, limits.HOP_RETRY_MAX_S)
        hop.rounds += 1
        return []

    def _trained(self, work: Work, now: float) -> list[Effect]:
        self.gate.finish(work, now)
        del self._works[work.call]
        if work.count:
            self._memory[work.id] = self._steps_closed
            self.accounts.trained += work.own
            self.accounts.served += not work.own
        else:
            self.accounts.dropped += work.own  # it came back after the run was over here
        if work.own:
            return [do.ForgetMicroBatch(work.call)]
        return [do.ReturnGradient(work.call, work.loss_sum, work.loss_tokens, replayed=not work.count)]

    def _end(self, work: Work, *, dropped: bool) -> list[Effect]:
        dropped = dropped and work.state is not WorkState.QUEUED  # read ahead and not begun: nothing is lost
        self.gate.remove(work)
        del self._works[work.call]
        hop = self._hops.pop(work.call, None)
        self.accounts.dropped += dropped and work.own
        cancel: list[Effect] = [do.CancelHop(work.call)] if hop is not None and hop.at is not None else []
        return [*cancel, do.ForgetMicroBatch(work.call, answer_dropped=not work.own)]

    def _is_open(self, n: int) -> bool:
        return n in self._drawing or any(w.own and w.id.n == n for w in self._works.values())

    def _forget_old_ids(self) -> None:
        oldest = self._steps_closed - limits.REPLAY_MEMORY_STEPS
        while self._memory and (
            next(iter(self._memory.values())) < oldest or len(self._memory) > limits.REPLAY_ENTRIES_MAX
        ):
            self._memory.popitem(last=False)

    def _open_step(self) -> None:
        """Ordered mode: name the ids of the step. Step t of every replica is made of numbers n with n // M = t."""
        s = self.settings
        if s.admit is Admit.ORDERED:
            self.gate.expect(
                routing.ordered_ids(
                    s.seed, self.seat.stage, self._step, self.seat.replica, s.micro_batches, s.num_replicas
                )
            )

    @property
    def _step(self) -> int:
        """Number of the open step, counted from the beginning of the run."""
        return self.data_next // self.settings.micro_batches + self._steps_closed
