"""What is done to whom, and when: a pure function of the seed.

Owns the plan of a chaos run. It keeps its own books of who is up, so that it never kills a stopped node or cuts one
that left, and leaves each node time to come back. Must not know processes, networks, clocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from noloco_node.core import seed as draws

WORD = "chaos"  # separates these draws from the swarm's own
RANGE = 1 << 64
BACK_S = 20.0


class Action(StrEnum):
    """One primitive deed. The second of a pair undoes the first."""

    KILL = "kill"
    RESTART = "restart"
    STOP = "stop"
    CONTINUE = "continue"
    CUT = "cut"
    HEAL = "heal"
    KILL_DAEMON = "kill_p2pd"
    LEAVE = "leave"
    JOIN = "join"


UNDONE_BY = {Action.KILL: Action.RESTART, Action.STOP: Action.CONTINUE, Action.CUT: Action.HEAL}


@dataclass(frozen=True, slots=True, order=True)
class Deed:
    """`action` to `node`, `at_s` seconds after all nodes train."""

    at_s: float
    action: Action
    node: str


@dataclass(frozen=True, slots=True)
class Lengths:
    """How long faults last: short ones pass within the limits of an exchange, long ones outlive a lease."""

    short_s: tuple[float, float] = (1.0, 6.0)
    long_s: tuple[float, float] = (18.0, 30.0)
    long_share: float = 0.35


@dataclass(frozen=True, slots=True)
class Plan:
    """Faults begin between `calm_before_s` and `seconds - calm_after_s`, `gap_s` apart on average.

    The same deck of faults is dealt again and again, shuffled: none is forgotten. `deck` may leave some out. After
    the end of a fault a node is left alone for `back_s`: a start takes most of it.
    """

    seconds: float
    gap_s: float = 11.0
    calm_before_s: float = 10.0
    calm_after_s: float = 60.0
    lengths: Lengths = Lengths()
    back_s: float = BACK_S
    deck: tuple[Action, ...] = (
        Action.KILL,
        Action.KILL,
        Action.STOP,
        Action.STOP,
        Action.CUT,
        Action.CUT,
        Action.KILL_DAEMON,
        Action.LEAVE,
    )


def schedule(seed: int, nodes: Sequence[str], plan: Plan) -> tuple[Deed, ...]:
    """All deeds in order of time."""
    return tuple(sorted(_Planner(seed, plan, list(nodes)).deeds()))


@dataclass(slots=True)
class _Planner:
    seed: int
    plan: Plan
    nodes: list[str]
    busy_until: dict[str, float] = field(default_factory=dict)
    joined: int = 0
    _integers: Iterator[int] = field(init=False)

    def __post_init__(self) -> None:
        self._integers = draws.integers(self.seed, WORD)

    def deeds(self) -> Iterator[Deed]:
        now_s, deck = self.plan.calm_before_s, list[Action]()
        at_once_max = max(1, len(self.nodes) // 4)
        while now_s < self.plan.seconds - self.plan.calm_after_s:
            deck = deck or self._shuffled()
            idle = [node for node in self.nodes if self.busy_until.get(node, 0.0) <= now_s]
            if len(self.nodes) - len(idle) < at_once_max and idle:
                yield from self._fault(deck.pop(), idle[self._below(len(idle))], now_s)
            now_s += self.plan.gap_s * self._between(0.6, 1.4)

    def _fault(self, action: Action, node: str, now_s: float) -> Iterator[Deed]:
        yield Deed(round(now_s, 2), action, node)
        last_s = self.plan.seconds - self.plan.calm_after_s
        end_s = round(min(now_s + self._length(), last_s), 2)
        self.busy_until[node] = end_s + self.plan.back_s
        if action in UNDONE_BY:
            yield Deed(end_s, UNDONE_BY[action], node)
        if action is Action.LEAVE:
            yield Deed(end_s, Action.JOIN, self._swap(node, end_s))

    def _swap(self, node: str, at_s: float) -> str:
        """One leaves for good, a new one comes."""
        self.nodes.remove(node)
        newcomer = f"new{self.joined}"
        self.joined += 1
        self.nodes.append(newcomer)
        self.busy_until[newcomer] = at_s + self.plan.back_s
        return newcomer

    def _shuffled(self) -> list[Action]:
        rest = list(self.plan.deck)
        return [rest.pop(self._below(len(rest))) for _ in range(len(rest))]

    def _length(self) -> float:
        lengths = self.plan.lengths
        return self._between(*(lengths.long_s if self._between(0, 1) < lengths.long_share else lengths.short_s))

    def _below(self, bound: int) -> int:
        return next(self._integers) % bound  # of 2**64: the bias is far below anything seen

    def _between(self, least: float, most: float) -> float:
        return least + (most - least) * (next(self._integers) / RANGE)
