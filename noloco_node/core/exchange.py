"""One outer step of one pair: from the frozen x to paired or solo (DESIGN 5a, the table).

Owns the state of a single exchange: how much of the partner's tensor is here, what was said, and until when it may
last. Every rule is a row of `ROWS`; `handle` only finds the row. Must not know: whom to pair with, tensors, streams,
when the device is free. Both sides end alike, because only the decider may say COMMIT and the follower, once READY,
waits for its word.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from noloco_node.core import limits
from noloco_node.core.agreement import Agreed
from noloco_node.core.effects import (
    CloseExchange,
    Effect,
    OpenExchange,
    SendExchange,
    StreamTensor,
)
from noloco_node.core.events import (
    BoundaryTaken,
    ExchangeOpened,
    TensorDamaged,
    TensorReceived,
    TensorRefused,
    TensorVerified,
    TimePassed,
)
from noloco_node.core.exchange_begin import Pair, offset
from noloco_node.core.exchange_reason import Reason, partners_reason
from noloco_node.core.exchange_table import ExchangeState, NextStepDue, Role, Row, rules_of, subject_of
from noloco_node.core.partner_tensor import PartnerTensor
from noloco_node.core.prefetch import Prefetch
from noloco_node.core.types import (
    Ask,
    Begin,
    Commit,
    ExchangeMessage,
    Have,
    Mode,
    Outcome,
    PeerId,
    Reached,
    Ready,
    Seat,
    Settings,
    Solo,
    Wait,
)


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds from the boundary: for the partner to begin, and for the whole exchange."""

    begin_s: float
    in_all_s: float


def patience(settings: Settings) -> Patience:
    """Waiting holds training up in modes joint and prefetch. In overlap it costs nothing: half of the outer step is for
    the trade, the other half for a follower in doubt."""
    if settings.mode is Mode.OVERLAP:
        half_s = settings.outer_interval_s / 2
        return Patience(half_s, half_s)
    return Patience(settings.grace_s, settings.exchange_max_s)


class Exchange:
    """One outer step of the seat `me`. Mutable; lives from the boundary until CLOSED.

    `correction_due`: paired, and c is to be added by the parent at the next moment with nothing between forward and
    backward. `deadline`: by when the partner's BEGIN must be here; after it, by when all must be over (`patience`).
    """

    def __init__(
        self,
        outer_step: int,
        me: Seat,
        partner: Agreed | None,
        incarnation: int,
        boundary: BoundaryTaken,
        early_begin: Begin | None,
        settings: Settings,
        lost: Reason = Reason.NO_PARTNER,
        ahead: Prefetch | None = None,
    ) -> None:
        self.outer_step = outer_step
        self.me = me
        self.partner = partner
        self.role = Role.DECIDER if partner is None or me < partner.seat else Role.FOLLOWER
        self.state = ExchangeState.TRAINING
        self.outcome: Outcome | None = None
        self.reason = ""
        self.correction_due = False
        self.deadline = 0.0
        self._pair = None if partner is None else Pair(me, partner, incarnation, settings)
        self._boundary = boundary
        self._early = early_begin
        self._ahead = ahead
        self._settings = settings
        self._lost = lost
        self._started = 0.0
        self._theirs = PartnerTensor(outer_step)
        self._opened = False  # our BEGIN is out
        self._offset: int | None = None  # where the partner wants our tensor from, until it streams
        self._heard_have = False
        self._have_due: float | None = None
        self._ask_due = 0.0

    @classmethod
    def start(
        cls,
        outer_step: int,
        me: Seat,
        partner: Agreed | None,
        incarnation: int,
        boundary: BoundaryTaken,
        early_begin: Begin | None,
        settings: Settings,
        now: float,
        lost: Reason = Reason.NO_PARTNER,
        ahead: Prefetch | None = None,
    ) -> tuple[Exchange, list[Effect]]:
        """The boundary is taken: begin to trade with `partner`, or close solo at once for the reason `lost`.

        `early_begin` is the partner's BEGIN if it came before; `ahead` what was sent ahead to this very partner.
        """
        exchange = cls(outer_step, me, partner, incarnation, boundary, early_begin, settings, lost, ahead)
        return exchange, exchange.handle(boundary, now)

    @property
    def peer(self) -> PeerId | None:
        return None if self.partner is None else self.partner.peer

    @property
    def is_closed(self) -> bool:
        return self.state is ExchangeState.CLOSED

    def is_pending(self, now: float) -> bool:
        """TRADING, or in DOUBT up to the deadline."""
        return self.state in (ExchangeState.TRADING, ExchangeState.DOUBT) and now < self.deadline

    def blocks_training(self, now: float) -> bool:
        """Joint and prefetch: optimizer steps wait while it is pending, never longer. Overlap: they never wait."""
        return self._settings.mode is not Mode.OVERLAP and self.is_pending(now)

    @property
    def next_deadline(self) -> float | None:
        if self.state is ExchangeState.TRADING:
            return self.deadline if self._have_due is None else min(self.deadline, self._have_due)
        return self._ask_due if self.state is ExchangeState.DOUBT else None

    def handle(self, event: object, now: float) -> list[Effect]:
        """The event's row, after the deadline is judged by `now`. Messages must be the partner's own."""
        effects = self.expire(now)
        subject = subject_of(event)
        rule = RULES.get((self.state, type(subject), self.role))
        return effects + (rule(self, subject, now) if rule else [])

    def expire(self, now: float) -> list[Effect]:
        """Close if TRADING and the deadline has passed."""
        return self._late() if self.state is ExchangeState.TRADING and now > self.deadline else []

    def force_close(self, now: float) -> list[Effect]:
        """The next step is due and all received messages are handled: whatever is open ends solo."""
        return self.handle(NextStepDue(), now)

    # --- the boundary -----------------------------------------------------------------------------

    def _on_boundary(self, taken: BoundaryTaken, now: float) -> list[Effect]:
        self._started, self.deadline = now, now + patience(self._settings).begin_s
        if self.partner is None:
            return self._close_solo(self._lost)
        if not taken.is_finite:
            return self._close_solo(Reason.NOT_FINITE)
        self.state = ExchangeState.TRADING
        if self._ahead is not None:
            return self._go_on(self._ahead)
        decides = self.role is Role.DECIDER
        effects: list[Effect] = [OpenExchange(self.outer_step, self.partner.peer, decider=decides)]
        if self._early is not None:
            effects += self._on_begin(self._early, now)
        return effects

    def _go_on(self, ahead: Prefetch) -> list[Effect]:
        """The stream is kept up already and our tensor is on its way: it goes on with what was frozen now."""
        self._theirs, self._opened, self._offset = ahead.theirs, ahead.is_opened, ahead.offset
        effects = self._say(Reached(self.outer_step)) if self._opened else []
        if self._theirs.has_begun:
            self._begun()
        return effects + (self._theirs.complete() if ahead.is_whole else [])

    # --- TRADING ----------------------------------------------------------------------------------

    def _on_opened(self, opened: ExchangeOpened, now: float) -> list[Effect]:
        assert self._pair is not None
        self._opened = True
        return [*self._say(self._pair.begin(self._boundary, opened)), *self._stream()]

    def _on_begin(self, begin: Begin, now: float) -> list[Effect]:
        assert self._pair is not None
        misfit = self._pair.misfit(begin, self._boundary)
        if misfit is not None:
            return self._close_solo(misfit, say=misfit)
        effects = [] if self._theirs.is_known(begin) else self._receive(begin)
        if not begin.ahead:
            effects += self._theirs.reached(self._pair.partner.peer)
            self._begun()
        self._offset = offset(begin, self._boundary)
        return effects + self._stream()

    def _on_reached(self, reached: Reached, now: float) -> list[Effect]:
        """Heard before its BEGIN it says nothing: that comes again with the next stream."""
        assert self.partner is not None
        effects = self._theirs.reached(self.partner.peer)
        if self._theirs.has_begun:
            self._begun()
        return effects

    def _begun(self) -> None:
        self.deadline = self._started + patience(self._settings).in_all_s

    def _on_received(self, event: TensorReceived, now: float) -> list[Effect]:
        return self._theirs.complete()

    def _on_damaged(self, event: TensorDamaged, now: float) -> list[Effect]:
        return self._close_solo(Reason.DAMAGED, say=Reason.DAMAGED) if self._theirs.is_arriving else []

    def _on_refused(self, event: TensorRefused, now: float) -> list[Effect]:
        return self._close_solo(Reason.REFUSED, say=Reason.REFUSED) if self._theirs.judge() else []

    def _on_verified_decider(self, event: TensorVerified, now: float) -> list[Effect]:
        return self._say_have(now) if self._theirs.judge() else []

    def _on_verified_follower(self, event: TensorVerified, now: float) -> list[Effect]:
        return self._say_ready() if self._theirs.judge() and self._heard_have else []

    def _on_have(self, have: Have, now: float) -> list[Effect]:
        self._heard_have = True
        return self._say_ready() if self._theirs.is_verified else []

    def _on_ready(self, ready: Ready, now: float) -> list[Effect]:
        """COMMIT goes out before anything else. Not verified: it answers a HAVE of an earlier incarnation."""
        return self._say(Commit(self.outer_step)) + self._close_paired() if self._theirs.is_verified else []

    def _on_ask(self, ask: Ask, now: float) -> list[Effect]:
        """The follower is READY and its word was lost: HAVE makes it say so again."""
        return self._say_have(now) if self._theirs.is_verified else self._say(Wait(self.outer_step))

    def _on_solo(self, solo: Solo, now: float) -> list[Effect]:
        return self._close_solo(partners_reason(solo.reason))

    def _on_commit_unasked(self, commit: Commit, now: float) -> list[Effect]:
        return self._close_solo(Reason.REPEATED)

    def _on_time(self, event: TimePassed, now: float) -> list[Effect]:
        if now >= self.deadline:
            return self._late()
        return self._say_have(now) if self._have_due is not None and now >= self._have_due else []

    def _on_next_step(self, event: NextStepDue, now: float) -> list[Effect]:
        return self._close_solo(Reason.NEXT_STEP, say=Reason.NEXT_STEP)

    # --- DOUBT ------------------------------------------------------------------------------------

    def _doubt_opened(self, opened: ExchangeOpened, now: float) -> list[Effect]:
        return self._say(Ask(self.outer_step))

    def _doubt_begin(self, begin: Begin, now: float) -> list[Effect]:
        """The decider reopened the stream; or it began anew, and the tensor we mixed with c is gone."""
        if self._theirs.is_known(begin):
            return self._say(Ready(self.outer_step))
        return self._close_solo(Reason.RESTARTED, say=Reason.RESTARTED)

    def _doubt_have(self, have: Have, now: float) -> list[Effect]:
        return self._say(Ready(self.outer_step))

    def _doubt_commit(self, commit: Commit, now: float) -> list[Effect]:
        return self._close_paired()

    def _doubt_time(self, event: TimePassed, now: float) -> list[Effect]:
        if now < self._ask_due:
            return []
        self._ask_due = now + limits.ASK_INTERVAL_S
        return self._say(Ask(self.outer_step))

    def _doubt_next_step(self, event: NextStepDue, now: float) -> list[Effect]:
        return self._close_solo(Reason.DOUBT, say=Reason.DOUBT)

    # --- tensors ----------------------------------------------------------------------------------

    def _receive(self, begin: Begin) -> list[Effect]:
        """First BEGIN, or the partner began anew: what it said before is void."""
        assert self.partner is not None
        self._heard_have, self._have_due = False, None
        return self._theirs.announce(begin, self.partner.peer)

    def _stream(self) -> list[Effect]:
        """Our tensor goes out once both BEGINs are over: ours announces it, theirs says from where."""
        if self.partner is None or self._offset is None or not self._opened:
            return []
        offset, self._offset = self._offset, None
        return [StreamTensor(self.outer_step, self.partner.peer, offset)]

    # --- messages ---------------------------------------------------------------------------------

    def _say(self, message: ExchangeMessage) -> list[Effect]:
        return [] if self.partner is None else [SendExchange(self.partner.peer, message)]

    def _say_have(self, now: float) -> list[Effect]:
        self._have_due = now + limits.HAVE_INTERVAL_S
        return self._say(Have(self.outer_step))

    def _say_ready(self) -> list[Effect]:
        """From here on only the decider's word counts; the first ASK is due at the own deadline."""
        self.state, self._ask_due = ExchangeState.DOUBT, self.deadline
        return self._say(Ready(self.outer_step))

    # --- the end ----------------------------------------------------------------------------------

    def _late(self) -> list[Effect]:
        reason = Reason.NOT_BEGUN if not self._theirs.has_begun else Reason.DEADLINE
        return self._close_solo(reason, say=reason)

    def _close_paired(self) -> list[Effect]:
        self.correction_due = True
        return self._close(Outcome.PAIRED, Reason.COMMITTED)

    def _close_solo(self, reason: str, say: str = "") -> list[Effect]:
        told = self._say(Solo(self.outer_step, str(say))) if say else []
        return told + self._theirs.drop() + self._close(Outcome.SOLO, reason)

    def _close(self, outcome: Outcome, reason: str) -> list[Effect]:
        self.state, self.outcome, self.reason = ExchangeState.CLOSED, outcome, str(reason)
        seat = None if self.partner is None else self.partner.seat
        return [CloseExchange(self.outer_step, self.peer, outcome, self.reason, seat)]


_S, _X = ExchangeState, Exchange
_D, _F = Role.DECIDER, Role.FOLLOWER
_SOLO = "SOLO(reason), CLOSED(solo)"
_AGREED = """freeze x, local step; TRADING with the partner agreed; deadline = now + grace_s until its BEGIN is here, \
now + exchange_max_s after it (overlap: now + half an outer step for both); REACHED, if phi went ahead; no partner, or \
x not finite: CLOSED(solo)"""
_FITS = f"""fits: make room for its tensor (a new incarnation or id: again, from zero), stream x from the offset \
it holds; else {_SOLO}"""
_BEGIN = "same tensor: READY again; else the decider began anew: SOLO(reason), drop c, CLOSED(solo)"
_STEP_DUE = "next step due, all received messages handled"
_REPEATED = "COMMIT, READY not said: the partner paired with an earlier incarnation"

ROWS: Final[tuple[Row[Exchange], ...]] = (
    Row(_S.TRAINING, BoundaryTaken, "step due, nothing between forward and backward", _AGREED, _X._on_boundary),
    Row(_S.TRADING, ExchangeOpened, "stream up, first or again", "BEGIN with what is held", _X._on_opened),
    Row(_S.TRADING, Begin, "BEGIN", _FITS, _X._on_begin),
    Row(_S.TRADING, Reached, "REACHED", "its BEGIN(ahead) counts as BEGIN from now on", _X._on_reached),
    Row(_S.TRADING, TensorReceived, "partner's tensor complete", "check it, compute c", _X._on_received),
    Row(_S.TRADING, TensorDamaged, "tensor damaged", _SOLO, _X._on_damaged),
    Row(_S.TRADING, TensorRefused, "tensor non-finite or far too large", _SOLO, _X._on_refused),
    Row(_S.TRADING, TensorVerified, "tensor verified", "HAVE, repeated each second", _X._on_verified_decider, _D),
    Row(_S.TRADING, TensorVerified, "tensor verified", "if HAVE came: READY; DOUBT", _X._on_verified_follower, _F),
    Row(_S.TRADING, Have, "HAVE", "if the decider's tensor is verified: READY; DOUBT", _X._on_have, _F),
    Row(_S.TRADING, Ready, "READY, now <= deadline", "COMMIT first; CLOSED(paired); add c", _X._on_ready, _D),
    Row(_S.TRADING, Ask, "ASK", "HAVE again if verified, else WAIT", _X._on_ask, _D),
    Row(_S.TRADING, Solo, "SOLO", "CLOSED(solo)", _X._on_solo),
    Row(_S.TRADING, Commit, _REPEATED, "CLOSED(solo)", _X._on_commit_unasked),
    Row(_S.TRADING, TimePassed, "deadline passed", _SOLO, _X._on_time),
    Row(_S.TRADING, NextStepDue, _STEP_DUE, _SOLO, _X._on_next_step),
    Row(_S.DOUBT, ExchangeOpened, "stream up again", "ASK", _X._doubt_opened),
    Row(_S.DOUBT, Begin, "BEGIN", _BEGIN, _X._doubt_begin),
    Row(_S.DOUBT, Have, "HAVE", "READY again", _X._doubt_have),
    Row(_S.DOUBT, Commit, "COMMIT", "add c, CLOSED(paired)", _X._doubt_commit),
    Row(_S.DOUBT, Solo, "SOLO", "drop c, CLOSED(solo)", _X._on_solo),
    Row(_S.DOUBT, TimePassed, "own deadline", "go on training, keep c, ASK every second", _X._doubt_time),
    Row(_S.DOUBT, NextStepDue, _STEP_DUE, "drop c, CLOSED(solo), counted as doubt", _X._doubt_next_step),
)

RULES: Final = rules_of(ROWS)
