"""One stage, two replicas, a slow link: exchanges of real processes that last seconds, so that a fault hits inside one.

Owns when the next boundary is due, how much of a tensor is on the wire by the count of the link itself, and how both
sides closed each outer step. Must not know which fault is done. The product has no hooks for this: the link is slow.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaos_report import histories
from chaos_spec import chaos_spec
from chaos_swarm import ChaosSwarm
from fault_schedule import Action, Deed
from micro_batch_audit import Line
from network_lab import sent_bytes
from node_process import NodeProcess

from noloco_node.config.run_spec import RunSpec

HIDDEN = 192  # some MiB of x, in several chunks
BYTES_PER_S = 1_500_000
LEAD_S = 1.0  # before a boundary, in which a fault is made ready
LATE_S = 6.0  # a busy machine writes the outcome down so much later than it may be decided
FINE_S = 0.004
DECIDER, FOLLOWER = "n0", "n1"


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds of the outer clock; the trade takes about three of them."""

    interval_s: float
    grace_s: float
    exchange_max_s: float


def duel_spec(pace: Pace) -> RunSpec:
    timing = {"grace_s": pace.grace_s, "exchange_max_s": pace.exchange_max_s, "lease_s": 20.0, "renew_s": 5.0}
    outer = {"outer_interval_s": pace.interval_s}
    return chaos_spec(1, 2, hidden=HIDDEN, batch={"micro_batch_size": 2}, outer=outer, timing=timing)


@dataclass(slots=True)
class Duel:
    swarm: ChaosSwarm
    pace: Pace
    wire_bytes: dict[str, int] = field(default_factory=dict)  # of one undisturbed exchange, by node

    def node(self, name: str) -> NodeProcess:
        return self.swarm.nodes[name]

    def do(self, action: Action, name: str) -> None:
        self.swarm.do(Deed(self.swarm.now_s, action, name))

    def due_s(self, step: int) -> float:
        """Unix seconds."""
        outer = self.swarm.spec.outer
        return float(outer.start_unix_s + (step + 1) * outer.outer_interval_s)

    def next_step(self) -> int:
        """The next one whose boundary can still be prepared for; returns LEAD_S before it is due."""
        outer = self.swarm.spec.outer
        step = int((time.time() + LEAD_S - outer.start_unix_s) / outer.outer_interval_s)
        time.sleep(max(0.0, self.due_s(step) - LEAD_S - time.time()))
        return step

    def wait_until_due(self, step: int) -> None:
        time.sleep(max(0.0, self.due_s(step) - time.time()))

    def wait_until_sent(self, name: str, step: int, share: float) -> None:
        """Call it before the boundary: until the node's link has carried so much of its exchange."""
        pid = self.node(name).life.process.pid
        before, deadline_s = sent_bytes(pid), self.due_s(step) + self.pace.exchange_max_s
        while sent_bytes(pid) - before < share * self.wire_bytes[name] and time.time() < deadline_s:
            time.sleep(FINE_S)

    def measure(self) -> None:
        """What an exchange that nothing disturbs puts on the wire. Both sides must pair."""
        step = self.next_step()
        before = {name: sent_bytes(self.node(name).life.process.pid) for name in self.swarm.names}
        closed = self.outcomes(step)
        assert [line["outcome"] for line in closed.values()] == ["paired", "paired"], closed
        for name, sent in before.items():
            self.wire_bytes[name] = sent_bytes(self.node(name).life.process.pid) - sent

    def outcomes(self, step: int, names: tuple[str, ...] = (DECIDER, FOLLOWER)) -> dict[str, Line]:
        """How they closed it, once all of `names` did. Fails when one does not within the limits of an exchange, or
        by its next boundary."""
        deadline_s = self.due_s(step + 1) + self.pace.exchange_max_s + LATE_S
        while True:
            found = {name: line for name in names if (line := self.closed(name, step)) is not None}
            if len(found) == len(names):
                return found
            assert time.time() < deadline_s, f"step {step} is not closed: {found}\n{self.last_words()}"
            time.sleep(0.1)

    def closed(self, name: str, step: int) -> Line | None:
        lines = [x for x in self.history(name) if x["kind"] == "outer" and x["outer_step"] == step]
        assert len(lines) <= 1 or self.swarm.nodes[name].lives[1:], f"{name} closed step {step} twice: {lines}"
        return lines[-1] if lines else None

    def history(self, name: str) -> list[Line]:
        return histories(self.swarm)[name]

    def wait_until_paired(self, after: int) -> int:
        """Training goes on: a later step that both close paired. Its number."""
        deadline_s = time.time() + 6 * self.pace.interval_s + 60.0
        while time.time() < deadline_s:
            paired = [
                {x["outer_step"] for x in self.history(name) if x["kind"] == "outer" and x["outcome"] == "paired"}
                for name in (DECIDER, FOLLOWER)
            ]
            both = {step for step in paired[0] & paired[1] if step > after}
            if both:
                return int(min(both))
            time.sleep(0.2)
        raise AssertionError(f"no pair after step {after}\n{self.last_words()}")

    def wait_until_both_train(self) -> None:
        deadline_s = time.time() + 120.0
        while not all(node.status.get("phase") in ("training", "exchanging") for node in self.swarm.nodes.values()):
            assert time.time() < deadline_s, self.last_words()
            time.sleep(0.1)

    def last_words(self) -> str:
        return "\n".join(f"--- {name} {node.status}\n{node.last_words()}" for name, node in self.swarm.nodes.items())

    def stopped_for(self, name: str, seconds: float) -> None:
        self.do(Action.STOP, name)
        time.sleep(seconds)
        self.do(Action.CONTINUE, name)

    def cut_for(self, name: str, seconds: float) -> None:
        self.do(Action.CUT, name)
        time.sleep(seconds)
        self.do(Action.HEAL, name)


@contextmanager
def duel(folder: Path, pace: Pace) -> Iterator[Duel]:
    """Both nodes train and have paired once over the slow link."""
    with ChaosSwarm(duel_spec(pace), folder) as swarm:
        found = Duel(swarm, pace)
        swarm.start()
        for name in swarm.names:
            swarm.network.slow(name, BYTES_PER_S)
        found.measure()
        yield found
        swarm.stop()
        assert swarm.orphans() == []
        assert swarm.deaths == []


def limits_kept(duel: Duel, line: dict[str, Any], step: int) -> bool:
    """Decided within exchange_max_s of the boundary, or of the moment it was taken."""
    return bool(line["unix_s"] <= duel.due_s(step) + duel.pace.exchange_max_s + LATE_S)
