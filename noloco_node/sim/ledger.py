"""What one node of a simulated swarm lived through, outer step by outer step. The checkers read it.

Owns facts only, written down where they happen (device, disk, network), never asked of the machine. A `tenure` is
the time from one loading of a state to the next: within it counters may only grow.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction

from noloco_node.core.types import MicroBatchId, Outcome, PeerId, Seat

STEPS_KEPT = 64  # outer steps of a tenure that partners may still be compared with


class Traffic(StrEnum):
    """What a message is for."""

    LOOK_UP = "look-ups"  # of one seat in the DHT
    STORE = "stores"  # of one copy of a record in the DHT
    HOP = "hop messages"  # activations, gradients, and short answers to hops
    CALL = "calls"  # offers, greetings, words of an exchange, requests for a state
    TENSOR = "tensors"  # x of an exchange, or the rest of it


@dataclass(slots=True)
class OuterStep:
    """One outer step of one side. Times are virtual seconds, None: has not happened."""

    number: int
    seat: Seat
    incarnation: int
    tenure: int
    life: int
    begun_s: float
    digest: bytes
    partner: Seat | None = None
    peer: PeerId | None = None
    begin_heard_s: float | None = None
    ready_s: float | None = None
    closed_s: float | None = None
    outcome: Outcome | None = None
    reason: str = ""
    is_closed_late: bool = False  # by the next boundary, or by the end of the node
    closings: int = 0
    added: int = 0
    c: Fraction | None = None
    digests: frozenset[bytes] = frozenset()  # of both tensors that c was computed from
    phi_moved: Fraction | None = None  # by adding c


@dataclass(slots=True)
class Tenure:
    """A seat held with one state. `from_step`, `from_n`: where the state stood."""

    number: int
    seat: Seat
    incarnation: int
    source: str
    from_step: int
    from_n: int
    since_s: float
    life: int  # of the process
    added: list[tuple[MicroBatchId, int]] = field(default_factory=list)  # id, and how many inner steps had closed
    inner_steps: int = 0
    trained: int = 0  # own micro-batches
    dropped: int = 0
    open: set[int] = field(default_factory=set)  # own calls begun and not ended


@dataclass(slots=True)
class Ledger:
    """Of one node, over all its lives."""

    tenures: list[Tenure] = field(default_factory=list)
    steps: list[OuterStep] = field(default_factory=list)  # of all tenures, oldest first
    sent: dict[Traffic, int] = field(default_factory=lambda: dict.fromkeys(Traffic, 0))
    bytes: int = 0
    agreed: dict[tuple[int, int], list[tuple[Seat, PeerId]]] = field(default_factory=dict)  # by (tenure, outer step)
    pauses: list[tuple[float, float]] = field(default_factory=list)  # stopped (SIGSTOP) from, to
    unquiet_changes: list[str] = field(default_factory=list)  # parameters changed between a forward and its backward

    @property
    def messages(self) -> int:
        return sum(self.sent.values())

    @property
    def tenure(self) -> Tenure | None:
        return self.tenures[-1] if self.tenures else None

    def step(self, number: int) -> OuterStep | None:
        """The newest of that number, of whatever tenure."""
        return next((step for step in reversed(self.steps) if step.number == number), None)

    def agrees(self, outer_step: int, seat: Seat, peer: PeerId) -> None:
        """Both said yes, as far as this side knows."""
        tenure = self.tenure
        assert tenure is not None
        known = self.agreed.setdefault((tenure.number, outer_step), [])
        if (seat, peer) not in known:
            known.append((seat, peer))

    def closed(self) -> list[OuterStep]:
        return [step for step in self.steps if step.outcome is not None]
