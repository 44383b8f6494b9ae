"""BEGIN: what two partners must have in common before a tensor travels, and from where it is resumed (DESIGN 5a).

Owns the checks of a partner's BEGIN and the making of our own. Must not know the states of an exchange.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from noloco_node.core.agreement import Agreed
from noloco_node.core.events import ExchangeOpened, SlowWeightsFrozen, TensorFrozen
from noloco_node.core.exchange_reason import Reason
from noloco_node.core.types import Begin, Seat, Settings

WEIGHT: Final = 1.0  # token weights are not in use


@dataclass(frozen=True, slots=True)
class Pair:
    """One side's view of who trades what."""

    me: Seat
    partner: Agreed
    incarnation: int
    settings: Settings

    def begin(self, mine: TensorFrozen, opened: ExchangeOpened) -> Begin:
        """Our own. Sent on a new stream, it says what of the partner's tensor came on earlier ones."""
        return Begin(
            mine.outer_step,
            self.me,
            self.partner.seat,
            self.incarnation,
            self.settings.codec,
            mine.shape_hash,
            mine.tensor_bytes,
            mine.tensor_id,
            WEIGHT,
            opened.held_bytes,
            opened.held_id,
            ahead=isinstance(mine, SlowWeightsFrozen),
        )

    def misfit(self, begin: Begin, mine: TensorFrozen) -> Reason | None:
        """Why the partner's BEGIN does not fit, if it does not."""
        checks = (
            (Reason.SEATS, (begin.sender, begin.receiver), (self.partner.seat, self.me)),
            (Reason.CODEC, begin.codec, self.settings.codec),
            (Reason.SHAPES, begin.shape_hash, mine.shape_hash),
            (Reason.SIZE, begin.tensor_bytes, mine.tensor_bytes),
            (Reason.WEIGHT, begin.weight, WEIGHT),
        )
        return next((reason for reason, theirs, ours in checks if theirs != ours), None)


def offset(begin: Begin, mine: TensorFrozen) -> int:
    """Where the partner wants our tensor from."""
    intact = begin.held_id == mine.tensor_id
    return begin.held_bytes if intact and 0 <= begin.held_bytes <= begin.tensor_bytes else 0
