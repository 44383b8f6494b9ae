"""The one door to everything about exchanges: whom to trade with, the trade under way, the ones that are over.

Owns the Agreement, the Exchange of the newest boundary until it closes, and the memory, and sends each event to the
one it concerns. The parent owns the device: it asks when training is blocked and when a correction is due, and calls
`before_boundary` when it takes the next boundary. Source: DESIGN 5a.
"""

from __future__ import annotations

from noloco_node.core import pairing
from noloco_node.core.agreement import Agreed, Agreement, DrawPartner, RepairOrder, View
from noloco_node.core.effects import DropPrefetch, Effect
from noloco_node.core.events import (
    BoundaryTaken,
    CorrectionAdded,
    Event,
    ExchangeMessageReceived,
    ExchangeOpened,
    SlowWeightsFrozen,
    TensorDamaged,
    TensorReceived,
    TensorRefused,
    TensorVerified,
    TimePassed,
)
from noloco_node.core.exchange import ROWS as EXCHANGE_ROWS
from noloco_node.core.exchange import Exchange
from noloco_node.core.exchange_begin import Pair
from noloco_node.core.exchange_memory import ROWS as MEMORY_ROWS
from noloco_node.core.exchange_memory import ExchangeMemory
from noloco_node.core.exchange_reason import Reason
from noloco_node.core.exchange_table import ExchangeState, markdown
from noloco_node.core.prefetch import ROWS as PREFETCH_ROWS
from noloco_node.core.prefetch import Prefetch
from noloco_node.core.types import ClosedStep, Mode, PeerId, Seat, Settings
from noloco_node.errors import LocalProtocolError


def table_markdown() -> str:
    """The protocol's table, rendered from the rows that run."""
    states = list(ExchangeState)
    return markdown(sorted((*EXCHANGE_ROWS, *MEMORY_ROWS, *PREFETCH_ROWS), key=lambda row: states.index(row.state)))


class ExchangeDesk:
    """Exchanges of one seat in one incarnation. At most one is open at a time."""

    def __init__(
        self,
        settings: Settings,
        me: Seat,
        incarnation: int,
        *,
        partner: DrawPartner = pairing.partner,
        repair_order: RepairOrder = pairing.repair_order,
    ) -> None:
        self._settings = settings
        self._me = me
        self._incarnation = incarnation
        self._agreement = Agreement(settings, me, partner, repair_order)
        self._memory = ExchangeMemory(self._peer_agreed)
        self._exchange: Exchange | None = None  # open: TRADING or DOUBT
        self._ahead: Prefetch | None = None  # of the running outer step
        self._given_up = -1  # the outer step of which nothing is sent ahead any more
        self._is_turning = False  # the boundary is being taken, or the seat given up: phi is about to change
        self.correction_due: int | None = None  # the outer step whose c the parent adds at the next free moment
        self.last_outcome: ClosedStep | None = None

    # --- what the parent asks ---------------------------------------------------------------------

    @property
    def state(self) -> ExchangeState:
        """Of the newest boundary; TRAINING before the first."""
        if self._exchange is not None:
            return self._exchange.state
        return ExchangeState.TRAINING if self.last_outcome is None else ExchangeState.CLOSED

    @property
    def partner(self) -> Seat | None:
        """With whom the open exchange is."""
        agreed = None if self._exchange is None else self._exchange.partner
        return None if agreed is None else agreed.seat

    @property
    def is_open(self) -> bool:
        """An exchange is not closed yet, or its correction not added."""
        return self._exchange is not None or self.correction_due is not None

    @property
    def awaits_answer(self) -> bool:
        """Whether the running outer step has a partner is about to be known: an OFFER is out."""
        return self._agreement.awaits_answer

    def partner_of(self, outer_step: int) -> Agreed | None:
        return self._agreement.partner_of(outer_step)

    def partner_waits(self, outer_step: int) -> bool:
        """The agreed partner has begun to trade for a step that is not due here yet."""
        agreed = self._agreement.partner_of(outer_step)
        return agreed is not None and self._memory.has_early(outer_step, agreed.peer)

    def seat_sought(self, view: View) -> Seat | None:
        """The seat whose record would help now: the drawn partner's, while nobody is known to hold it."""
        return self._agreement.seat_sought(view)

    def blocks_training(self, now: float) -> bool:
        return self._exchange is not None and self._exchange.blocks_training(now)

    def is_trading(self, now: float) -> bool:
        """An exchange is open and its deadline lies ahead."""
        return self._exchange is not None and self._exchange.is_pending(now)

    def next_deadline(self, now: float) -> float | None:
        exchange = None if self._exchange is None else self._exchange.next_deadline
        times = [time for time in (self._agreement.next_deadline, exchange) if time is not None]
        return min(times, default=None)

    # --- what the parent tells --------------------------------------------------------------------

    def expect_phase(self, outer_step: int) -> None:
        """The state is loaded; work begins when the run has its seats together."""
        self._memory.reach(outer_step - 1)
        self._agreement.expect_phase(outer_step)

    def begin_phase(self, outer_step: int, view: View, now: float) -> list[Effect]:
        """The inner phase of `outer_step` begins (again, after a restart): look for its partner."""
        self._memory.reach(outer_step - 1)
        return self._drop_ahead() + self._agreement.begin_phase(outer_step, view, now)

    def look_ahead(self, view: View) -> list[Effect]:
        """Mode prefetch: slow weights go to the partner of the running outer step as soon as it is agreed and nothing
        can change them any more; they stop when it is lost."""
        if self._settings.mode is not Mode.PREFETCH or self._is_turning:
            return []
        if self._ahead is not None:
            partner = self._ahead.partner
            return [] if view(partner.seat) == partner.peer else self._drop_ahead()
        step = self._agreement.step
        agreed = self._agreement.partner_of(step)
        if agreed is None or self.is_open or step == self._given_up:
            return []
        if not self._agreement.is_under_way or view(agreed.seat) != agreed.peer:
            return []
        self._ahead = Prefetch(step, Pair(self._me, agreed, self._incarnation, self._settings))
        return self._ahead.start()

    def before_boundary(self, now: float) -> list[Effect]:
        """The next boundary is taken now, all received messages are handled: what is open ends solo."""
        self._is_turning = True
        return [] if self._exchange is None else self._settle(self._exchange.force_close(now))

    def boundary(self, taken: BoundaryTaken, view: View, now: float) -> list[Effect]:
        """x is frozen and the local step taken: trade, or close solo at once."""
        if self._exchange is not None or self.correction_due is not None:
            raise LocalProtocolError(f"boundary {taken.outer_step} taken before the last exchange was over")
        step = taken.outer_step
        agreed = self._agreement.partner_of(step)
        void = self._ahead is not None and self._ahead.is_over  # since the device began with the boundary
        lost = agreed is not None and (void or view(agreed.seat) != agreed.peer)
        partner = None if lost else agreed
        early = None if partner is None else self._memory.take_early(step, partner.peer)
        ahead, dropped = self._take_ahead(step, partner)
        self._memory.reach(step)
        self._agreement.end_phase(step)
        self._is_turning = False
        self._exchange, effects = Exchange.start(
            step,
            self._me,
            partner,
            self._incarnation,
            taken,
            early,
            self._settings,
            now,
            Reason.PARTNER_LOST if lost else Reason.NO_PARTNER,
            ahead,
        )
        return dropped + self._settle(effects)

    def correction_added(self, outer_step: int) -> None:
        if self.correction_due == outer_step:
            self.correction_due = None

    def recall(self, closed: ClosedStep) -> None:
        """After a restart: what the checkpoint says about its last outer step, for a partner still in doubt."""
        self._memory.reach(closed.outer_step)
        self._memory.close(closed)
        self.last_outcome = closed

    def stop(self, now: float) -> list[Effect]:
        """The seat is given up: nothing stays open, the partner is told."""
        return self._drop_ahead() + self.before_boundary(now)

    # --- events -----------------------------------------------------------------------------------

    def handle(self, event: Event, view: View, now: float) -> list[Effect]:
        match event:
            case ExchangeMessageReceived():
                return self._message(event, now)
            case ExchangeOpened():
                return self._opened(event, now)
            case SlowWeightsFrozen():
                return self._frozen(event)
            case TensorReceived() | TensorDamaged() | TensorVerified() | TensorRefused():
                ahead = self._to_ahead(event, event.outer_step)
                return ahead + self._to_exchange(event, event.outer_step, now)
            case CorrectionAdded():
                self.correction_added(event.outer_step)
                return []
            case TimePassed() if self._exchange is not None:
                return self._settle(self._exchange.handle(event, now)) + self._agreement.handle(event, view, now)
            case _:
                return self._agreement.handle(event, view, now)

    def _message(self, event: ExchangeMessageReceived, now: float) -> list[Effect]:
        """The partner's messages on the open exchange act; all others are answered from memory."""
        late = [] if self._exchange is None else self._settle(self._exchange.expire(now))
        exchange, step = self._exchange, event.message.outer_step
        if exchange is None or exchange.outer_step != step or exchange.peer != event.peer:
            return late + self._memory.answer(event, now) + self._to_ahead(event, step, event.peer)
        return late + self._settle(exchange.handle(event, now))

    def _opened(self, event: ExchangeOpened, now: float) -> list[Effect]:
        ahead = self._to_ahead(event, event.outer_step, event.peer)
        is_partner = self._exchange is not None and self._exchange.peer == event.peer
        return ahead + (self._to_exchange(event, event.outer_step, now) if is_partner else [])

    def _to_exchange(self, event: Event, outer_step: int, now: float) -> list[Effect]:
        exchange = self._exchange
        if exchange is None or exchange.outer_step != outer_step:
            return []
        return self._settle(exchange.handle(event, now))

    # --- what is sent ahead -----------------------------------------------------------------------

    def _frozen(self, event: SlowWeightsFrozen) -> list[Effect]:
        """The stream is wanted now; a BEGIN that came before is heard."""
        effects = self._to_ahead(event, event.outer_step)
        early = None if self._ahead is None else self._memory.early(event.outer_step, self._ahead.partner.peer)
        return effects if self._ahead is None or early is None else effects + self._ahead_handles(self._ahead, early)

    def _to_ahead(self, event: Event, outer_step: int, peer: PeerId | None = None) -> list[Effect]:
        ahead = self._ahead
        if ahead is None or ahead.outer_step != outer_step or peer not in (None, ahead.partner.peer):
            return []
        return self._ahead_handles(ahead, event)

    def _ahead_handles(self, ahead: Prefetch, event: object) -> list[Effect]:
        """While the device takes the boundary nothing is dropped: it would free what is being frozen."""
        effects = ahead.handle(event)
        return effects + self._drop_ahead() if ahead.is_over and not self._is_turning else effects

    def _take_ahead(self, step: int, partner: Agreed | None) -> tuple[Prefetch | None, list[Effect]]:
        """What the exchange goes on with; what was sent ahead to another partner is dropped."""
        ahead = self._ahead
        if ahead is None or (ahead.outer_step, ahead.partner) != (step, partner):
            return None, self._drop_ahead()
        self._ahead = None
        return (ahead if ahead.is_frozen else None), []

    def _drop_ahead(self) -> list[Effect]:
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            return []
        self._given_up = ahead.outer_step
        return [DropPrefetch(ahead.outer_step, ahead.partner.peer)]

    def _settle(self, effects: list[Effect]) -> list[Effect]:
        """Once the exchange is closed, only its outcome is kept."""
        exchange = self._exchange
        if exchange is None or not exchange.is_closed or exchange.outcome is None:
            return effects
        seat = None if exchange.partner is None else exchange.partner.seat
        closed = ClosedStep(exchange.outer_step, exchange.outcome, exchange.reason, seat, exchange.peer)
        self._memory.close(closed)
        self._exchange, self.last_outcome = None, closed
        if exchange.correction_due:
            self.correction_due = exchange.outer_step
        return effects

    def _peer_agreed(self, outer_step: int) -> PeerId | None:
        agreed = self._agreement.partner_of(outer_step)
        return None if agreed is None else agreed.peer
