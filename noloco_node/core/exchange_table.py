"""The exchange protocol's table as a table: states, roles, rows, and the table as text (DESIGN 5a).

Owns the shape of a row and how a row is found. The rows themselves stand beside their rules in `exchange` (an outer
step under way) and `exchange_memory` (outer steps not reached yet, or closed). A state and an event without a row:
nothing happens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from typing import Any, Generic, TypeVar

from noloco_node.core.effects import Effect
from noloco_node.core.events import ExchangeMessageReceived

Owner = TypeVar("Owner")
Rule = Callable[[Owner, Any, float], list[Effect]]
"""(owner, event or message, now) -> effects."""


class ExchangeState(StrEnum):
    """Where one outer step of a seat stands. TRAINING and AHEAD last to a boundary, others end by their deadlines."""

    TRAINING = "training"  # its boundary is not taken yet
    AHEAD = "ahead"  # nor is it here, but slow weights travel to the partner agreed (mode prefetch)
    TRADING = "trading"  # x is frozen; tensors travel
    DOUBT = "doubt"  # follower only: READY is said, the decider's word is awaited
    CLOSED = "closed"  # paired or solo; never reopens


class Role(StrEnum):
    """Of the two partners the one in the lower seat decides."""

    DECIDER = "decider"
    FOLLOWER = "follower"


@dataclass(frozen=True, slots=True)
class NextStepDue:
    """The parent will take the next boundary now; every message received is handled."""


@dataclass(frozen=True, slots=True)
class Row(Generic[Owner]):
    """In `state`, when `on` comes, `rule` acts; `event` and `then` say it in words. `role` None: both roles."""

    state: ExchangeState
    on: type[object]
    event: str
    then: str
    rule: Rule[Owner]
    role: Role | None = None


Rules = dict[tuple[ExchangeState, type[object], Role], Rule[Owner]]


def rules_of(rows: Iterable[Row[Owner]]) -> Rules[Owner]:
    """The rows by what selects them. A second row for the same case is a mistake."""
    rules: Rules[Owner] = {}
    for row in rows:
        for role in Role if row.role is None else (row.role,):
            key = (row.state, row.on, role)
            if key in rules:
                raise ValueError(f"two rows for {key}")
            rules[key] = row.rule
    return rules


def subject_of(event: object) -> object:
    """What a row is chosen by: the message that came, else the event itself."""
    return event.message if isinstance(event, ExchangeMessageReceived) else event


def markdown(rows: Iterable[Row[Any]]) -> str:
    """The rows as a Markdown table, for ARCHITECTURE.md; neighbours of which the same is said share a line."""
    lines = ["| state | event | then |", "|---|---|---|"]
    for (name, role, then), alike in groupby(rows, lambda row: (row.state, row.role, row.then)):
        state = name.upper() + ("" if role is None else f", {role}")
        lines.append(f"| {state} | {' / '.join(row.event for row in alike)} | {then} |")
    return "\n".join(lines) + "\n"
