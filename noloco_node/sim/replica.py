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
SLOW_BYTES = TENSOR_BYTES // 2  # of them phi's, in mode prefetch
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


@dataclass(frozen=True, slots=True)
class Frozen:
    """What a partner hears of a boundary: x, in mode prefetch phi and Delta."""

    x: Fraction
    phi: Fraction
    outer_gradient: Fraction


@dataclass(slots=True)
class OpenExchange:
    sent: Frozen
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
        self.ahead: dict[int, tuple[Fraction, bytes]] = {}  # phi frozen before the boundary, and its tensor's digest

    @property
    def weights(self) -> tuple[Weights, ...]:
        return tuple(self._weights)

    def inner_step(self, gradient: Fraction) -> None:
        self._weights = [Weights(w.theta + gradient, w.phi, w.delta) for w in self._weights]

    def freeze_slow_weights(self, outer_step: int, digest: bytes) -> None:
        """Mode prefetch: there is one fragment."""
        self.ahead[outer_step] = self._weights[0].phi, digest

    def take_boundary(self, outer_step: int, digest: bytes) -> OpenExchange:
        """Freeze x, step locally. Where phi went ahead the tensor keeps that name."""
        fragment = outer_step % len(self._weights)
        w = self._weights[fragment]
        sent_phi, digest = self.ahead.pop(outer_step, (w.phi, digest))
        assert sent_phi == w.phi, f"phi changed after it was sent ahead of boundary {outer_step}"
        outer_gradient = w.theta - w.phi
        x = outer_update.exchanged(outer_gradient, w.phi, COEFFICIENTS)
        delta, phi = outer_update.local_step(w.delta, outer_gradient, w.phi, COEFFICIENTS)
        self._weights[fragment] = Weights(phi, phi, delta)
        mine = self.exchanges[outer_step] = OpenExchange(Frozen(x, sent_phi, outer_gradient), digest)
        return mine

    def compute_correction(self, outer_step: int, theirs: Frozen, partners_digest: bytes, *, apart: bool) -> bool:
        """False when nothing of that step is kept. `apart`: from phi and Delta, not from x."""
        mine = self.exchanges.get(outer_step)
        if mine is None:
            return False
        c, own = COEFFICIENTS, mine.sent
        mine.c = outer_update.correction(own.x, theirs.x, c)
        if apart:
            phi = outer_update.correction(own.phi, theirs.phi, c)
            outer_gradient = outer_update.correction(own.outer_gradient, theirs.outer_gradient, c)
            mine.c = outer_update.prefetched_correction(phi, outer_gradient, c)
        mine.digests = frozenset((mine.digest, partners_digest))
        return True

    def drop_correction(self, outer_step: int) -> None:
        if outer_step in self.exchanges:
            self.exchanges[outer_step].c = None

    def release(self, outer_step: int) -> None:
        """Forget what was frozen for that step, and c."""
        self.exchanges.pop(outer_step, None)
        self.ahead.pop(outer_step, None)

    def add_correction(self, outer_step: int) -> tuple[OpenExchange, Fraction]:
        """The exchange that is over, and by how much phi moved. KeyError when nothing of that step is kept."""
        mine = self.exchanges[outer_step]
        assert mine.c is not None, f"no correction is kept for outer step {outer_step}"
        fragment, c = outer_step % len(self._weights), mine.c
        w = self._weights[fragment]
        moved = Weights(*(outer_update.add(value, c) for value in (w.theta, w.phi, w.delta)))
        self._weights[fragment] = moved
        return mine, moved.phi - w.phi
