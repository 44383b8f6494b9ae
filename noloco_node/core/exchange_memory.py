"""What is said about outer steps that are not under way: closed ones, and ones not reached yet (DESIGN 5a).

Owns the outcomes of the last EXCHANGE_MEMORY_STEPS outer steps, with the partner's peer, and the few BEGINs that came
before their boundary. Answers, never acts. Must not know: the exchange under way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from noloco_node.core import limits
from noloco_node.core.effects import Effect, SendExchange
from noloco_node.core.events import ExchangeMessageReceived
from noloco_node.core.exchange_reason import Reason
from noloco_node.core.exchange_table import ExchangeState, Role, Row, rules_of
from noloco_node.core.types import Ask, Begin, ClosedStep, Commit, Have, Outcome, PeerId, Reached, Ready, Solo, Wait


class ExchangeMemory:
    """`partner_of` names the peer agreed for an outer step: its early BEGIN is never pushed out by a stranger's."""

    def __init__(self, partner_of: Callable[[int], PeerId | None]) -> None:
        self._partner_of = partner_of
        self._reached = -1  # the last outer step whose boundary is taken
        self._closed: dict[int, ClosedStep] = {}  # oldest first, at most EXCHANGE_MEMORY_STEPS
        self._early: dict[tuple[int, PeerId], Begin] = {}  # oldest first, at most EARLY_BEGINS_MAX

    def reach(self, outer_step: int) -> None:
        """All outer steps up to this one are reached (or skipped): they no longer make anyone wait."""
        self._reached = max(self._reached, outer_step)
        self._early = {key: begin for key, begin in self._early.items() if key[0] > self._reached}

    def close(self, step: ClosedStep) -> None:
        """Remember the outcome; a closed step never changes."""
        self._closed.setdefault(step.outer_step, step)
        while len(self._closed) > limits.EXCHANGE_MEMORY_STEPS:
            del self._closed[next(iter(self._closed))]

    def has_early(self, outer_step: int, peer: PeerId) -> bool:
        """The peer has begun a step not reached here yet: it waits."""
        begin = self._early.get((outer_step, peer))
        return begin is not None and not begin.ahead

    def early(self, outer_step: int, peer: PeerId) -> Begin | None:
        return self._early.get((outer_step, peer))

    def take_early(self, outer_step: int, peer: PeerId) -> Begin | None:
        """The BEGIN that `peer` sent for `outer_step` before it was reached here."""
        return self._early.pop((outer_step, peer), None)

    def answer(self, event: ExchangeMessageReceived, now: float) -> list[Effect]:
        is_reached = event.message.outer_step <= self._reached
        state = ExchangeState.CLOSED if is_reached else ExchangeState.TRAINING
        rule = RULES.get((state, type(event.message), Role.DECIDER))
        return rule(self, event, now) if rule else []

    def _wait(self, event: ExchangeMessageReceived, now: float) -> list[Effect]:
        if isinstance(event.message, Begin):
            self._keep(event.peer, event.message)
        elif isinstance(event.message, Reached) and (key := (event.message.outer_step, event.peer)) in self._early:
            self._early[key] = replace(self._early[key], ahead=False)
        return [SendExchange(event.peer, Wait(event.message.outer_step))]

    def _keep(self, peer: PeerId, begin: Begin) -> None:
        """For the outer step worked on and the next only; the oldest of a stranger makes room."""
        if begin.outer_step > self._reached + 2:
            return
        self._early.pop((begin.outer_step, peer), None)
        self._early[begin.outer_step, peer] = begin
        if len(self._early) > limits.EARLY_BEGINS_MAX:
            strangers = [key for key in self._early if self._partner_of(key[0]) != key[1]]
            del self._early[strangers[0]]

    def _verdict(self, event: ExchangeMessageReceived, now: float) -> list[Effect]:
        step = event.message.outer_step
        closed = self._closed.get(step)
        if closed is not None and closed.outcome is Outcome.PAIRED and closed.peer == event.peer:
            return [SendExchange(event.peer, Commit(step))]
        return [SendExchange(event.peer, Solo(step, self._why(step, closed, event.peer)))]

    def _why(self, step: int, closed: ClosedStep | None, peer: PeerId) -> str:
        if closed is None:
            return Reason.PASSED.value if step < self._reached else Reason.OTHER_PARTNER.value
        return closed.reason if closed.peer in (None, peer) else Reason.OTHER_PARTNER.value


_S = ExchangeState
_VERDICT = "of the last 4 steps: COMMIT if it was paired with you, else SOLO; older or unknown: SOLO(passed)"

ROWS: Final[tuple[Row[ExchangeMemory], ...]] = (
    Row(_S.TRAINING, Begin, "BEGIN for a step not reached", "WAIT; the BEGIN is remembered", ExchangeMemory._wait),
    Row(_S.TRAINING, Reached, "REACHED for a step not reached", "WAIT; that BEGIN now counts", ExchangeMemory._wait),
    Row(_S.TRAINING, Ask, "ASK for a step not reached", "WAIT", ExchangeMemory._wait),
    Row(_S.CLOSED, Begin, "BEGIN", _VERDICT, ExchangeMemory._verdict),
    Row(_S.CLOSED, Reached, "REACHED", _VERDICT, ExchangeMemory._verdict),
    Row(_S.CLOSED, Ready, "READY", _VERDICT, ExchangeMemory._verdict),
    Row(_S.CLOSED, Ask, "ASK", _VERDICT, ExchangeMemory._verdict),
    Row(_S.CLOSED, Have, "HAVE", "the same: a decider need not wait for its deadline", ExchangeMemory._verdict),
)

RULES: Final = rules_of(ROWS)
