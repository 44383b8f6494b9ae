"""Mode prefetch: slow weights of one outer step on their way before its boundary (DESIGN 5a).

phi is fixed from the end of one exchange to the next boundary, and the partner is known from the agreement on: so phi
is sent meanwhile, as the first part of a tensor whose rest, the outer gradient, follows after the boundary. Owns what
of that tensor is announced and under way on either side until the boundary, where the Exchange takes it over. Nothing
is decided here: whatever goes wrong, the exchange begins at the boundary as if nothing had been sent. Must not know:
when phi may be frozen, streams, the device.
"""

from __future__ import annotations

from typing import Final

from noloco_node.core import limits
from noloco_node.core.agreement import Agreed
from noloco_node.core.effects import Effect, FreezeSlowWeights, OpenExchange, SendExchange, StreamTensor
from noloco_node.core.events import ExchangeOpened, SlowWeightsFrozen, TensorDamaged, TensorReceived
from noloco_node.core.exchange_begin import Pair, offset
from noloco_node.core.exchange_table import ExchangeState, Role, Row, rules_of, subject_of
from noloco_node.core.partner_tensor import PartnerTensor
from noloco_node.core.types import Begin, Reached, Solo


class Prefetch:
    """Before the boundary of one outer step, with the partner agreed. Mutable.

    `offset`: where the partner wants our tensor from, until it streams. `is_opened`: our BEGIN is out. `is_whole`: all
    of the partner's tensor is here. `is_over`: nothing more is sent ahead; what was is void.
    """

    def __init__(self, outer_step: int, pair: Pair) -> None:
        self.outer_step = outer_step
        self.pair = pair
        self.theirs = PartnerTensor(outer_step)
        self.offset: int | None = None
        self.is_opened = self.is_whole = self.is_over = False
        self._mine: SlowWeightsFrozen | None = None
        self._begins = 0  # of the partner

    @property
    def partner(self) -> Agreed:
        return self.pair.partner

    @property
    def is_frozen(self) -> bool:
        return self._mine is not None

    def start(self) -> list[Effect]:
        return [FreezeSlowWeights(self.outer_step)]

    def handle(self, event: object) -> list[Effect]:
        """The event's row. Messages must be the partner's own."""
        subject = subject_of(event)
        rule = None if self.is_over else RULES.get((ExchangeState.AHEAD, type(subject), Role.DECIDER))
        return rule(self, subject, 0.0) if rule else []

    def _on_frozen(self, mine: SlowWeightsFrozen, now: float) -> list[Effect]:
        if not mine.is_finite:
            return self._give_up(mine, now)
        self._mine = mine
        decides = self.pair.me < self.partner.seat
        return [OpenExchange(self.outer_step, self.partner.peer, decider=decides)]

    def _on_opened(self, opened: ExchangeOpened, now: float) -> list[Effect]:
        if self._mine is None:
            return []
        self.is_opened = True
        return [SendExchange(self.partner.peer, self.pair.begin(self._mine, opened)), *self._stream()]

    def _on_begin(self, begin: Begin, now: float) -> list[Effect]:
        if self._mine is None:
            return []  # it is remembered, and heard once phi is frozen
        if self.pair.misfit(begin, self._mine) is not None:
            return self._give_up(begin, now)
        effects: list[Effect] = []
        if not self.theirs.is_known(begin):
            self.is_whole = False
            effects = self.theirs.announce(begin, self.partner.peer)
        elif not begin.ahead:
            effects = self.theirs.reached(self.partner.peer)
        self._begins += 1
        if self._begins > limits.PREFETCH_BEGINS_MAX:
            return self._give_up(begin, now)  # each may ask for all of phi once more
        self.offset = offset(begin, self._mine)
        return effects + self._stream()

    def _on_reached(self, reached: Reached, now: float) -> list[Effect]:
        return self.theirs.reached(self.partner.peer)

    def _on_received(self, event: TensorReceived, now: float) -> list[Effect]:
        self.is_whole = self.theirs.is_arriving
        return []

    def _give_up(self, event: object, now: float) -> list[Effect]:
        self.is_over = True
        return []

    def _stream(self) -> list[Effect]:
        """Once both BEGINs are over. What is not made yet is waited for by whoever sends."""
        if self.offset is None or not self.is_opened:
            return []
        start, self.offset = self.offset, None
        return [StreamTensor(self.outer_step, self.partner.peer, start)]


_S, _P = ExchangeState.AHEAD, Prefetch
_FITS = "fits: make room for its tensor, stream phi from the offset it holds; else: nothing more before the boundary"
_AGAIN = "free both sides' parts; all is sent after the boundary"

ROWS: Final[tuple[Row[Prefetch], ...]] = (
    Row(_S, SlowWeightsFrozen, "phi copied; partner agreed, last exchange over", "open a stream", _P._on_frozen),
    Row(_S, ExchangeOpened, "stream up, first or again", "BEGIN(ahead) with what is held", _P._on_opened),
    Row(_S, Begin, "BEGIN", _FITS, _P._on_begin),
    Row(_S, Reached, "REACHED", "the rest of its tensor is due; WAIT", _P._on_reached),
    Row(_S, TensorReceived, "partner's tensor complete", "checked after the boundary", _P._on_received),
    Row(_S, TensorDamaged, "tensor damaged", _AGAIN, _P._give_up),
    Row(_S, Solo, "SOLO", _AGAIN, _P._give_up),
)

RULES: Final = rules_of(ROWS)
