"""The weights of one simulated replica: fast, slow and momentum are three Fractions for each fragment, so sums can be
checked exactly.

Owns what the training thread owns in a real node: weights, open exchanges, graphs between forward and backward, and
the checkpoints on the disk. The outer update is the product's own (`core.outer_update`). Must not know time, peers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

from noloco_node.core import limits, outer_update
from noloco_node.core.outer_update import Coefficients
from noloco_node.core.types import ClosedStep, Seat

COEFFICIENTS = Coefficients(Fraction(1, 2), Fraction(3, 4), Fraction(3, 4), Fraction(1, 2))
TENSOR_BYTES = 1 << 20
SHAPE_HASH = "shape"


@dataclass(frozen=True, slots=True)
class Weights:
    theta: Fraction
    phi: Fraction
    delta: Fraction


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A whole file: what a restart or a newcomer finds."""

    outer_step: int
    inner_step: int
    data_next: int
    weights: tuple[Weights, ...]  # by fragment
    last: ClosedStep | None = None
    promised: tuple[tuple[int, int], ...] = ()  # (replica, data_next) of the stage's seats


@dataclass(slots=True)
class OpenExchange:
    x: Fraction
    digest: bytes
    c: Fraction | None = None
    digests: frozenset[bytes] = frozenset()


@dataclass(slots=True)
class Disk:
    """Checkpoints by seat, newest last; they outlive the process."""

    files: dict[Seat, list[Checkpoint]] = field(default_factory=dict)

    def write(self, seat: Seat, checkpoint: Checkpoint) -> None:
        kept = self.files.setdefault(seat, [])
        kept.append(checkpoint)
        del kept[: -limits.CHECKPOINTS_KEPT]

    def newest(self, seat: Seat) -> Checkpoint | None:
        return self.files.get(seat, [None])[-1]

    def newest_seat(self) -> Seat | None:
        """The seat whose checkpoint is furthest."""
        return max(self.files, key=lambda seat: (self.files[seat][-1].outer_step, seat), default=None)


class Replica:
    """One state of one seat."""

    def __init__(self, seat: Seat, fragments: int = 1, weights: tuple[Weights, ...] | None = None) -> None:
        first = Fraction(seat.stage + 1)
        self.seat = seat
        self._weights = list(weights or fragments * (Weights(first, first, Fraction(0)),))
        self.graphs: set[int] = set()  # calls between forward and backward
        self.exchanges: dict[int, OpenExchange] = {}

    @property
    def weights(self) -> tuple[Weights, ...]:
        return tuple(self._weights)

    def inner_step(self, gradient: Fraction) -> None:
        self._weights = [Weights(w.theta + gradient, w.phi, w.delta) for w in self._weights]

    def take_boundary(self, outer_step: int, digest: bytes) -> Fraction:
        """Freeze x, step locally; returns x."""
        fragment = outer_step % len(self._weights)
        w = self._weights[fragment]
        outer_gradient = w.theta - w.phi
        x = outer_update.exchanged(outer_gradient, w.phi, COEFFICIENTS)
        delta, phi = outer_update.local_step(w.delta, outer_gradient, w.phi, COEFFICIENTS)
        self._weights[fragment] = Weights(phi, phi, delta)
        self.exchanges[outer_step] = OpenExchange(x, digest)
        return x

    def compute_correction(self, outer_step: int, partners_x: Fraction, partners_digest: bytes) -> bool:
        """False when nothing of that step is kept."""
        mine = self.exchanges.get(outer_step)
        if mine is None:
            return False
        mine.c = outer_update.correction(mine.x, partners_x, COEFFICIENTS)
        mine.digests = frozenset((mine.digest, partners_digest))
        return True

    def drop_correction(self, outer_step: int) -> None:
        if outer_step in self.exchanges:
            self.exchanges[outer_step].c = None

    def release(self, outer_step: int) -> None:
        """Forget x and c of that step."""
        self.exchanges.pop(outer_step, None)

    def add_correction(self, outer_step: int) -> tuple[OpenExchange, Fraction]:
        """The exchange that is over, and by how much phi moved. KeyError when nothing of that step is kept."""
        mine = self.exchanges[outer_step]
        assert mine.c is not None, f"no correction is kept for outer step {outer_step}"
        fragment, c = outer_step % len(self._weights), mine.c
        w = self._weights[fragment]
        moved = Weights(*(outer_update.add(value, c) for value in (w.theta, w.phi, w.delta)))
        self._weights[fragment] = moved
        return mine, moved.phi - w.phi
