"""What happened: inputs of the state machine. Past tense, frozen, handles and sizes instead of tensors.

`call` is a handle the driver draws for one micro-batch visit to this replica: own data and incoming hops alike.
"""

from __future__ import annotations

from dataclasses import dataclass

from noloco_node.core.types import (
    ClosedStep,
    ExchangeMessage,
    MicroBatchId,
    Offer,
    OfferAnswer,
    PeerId,
    Seat,
    SeatRecord,
)

# --- life -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Started:
    """The node's parts are up. `checkpoint_step` is the newest complete local checkpoint, if any, of `checkpoint_seat`;
    `kept` are those of other seats, held before."""

    checkpoint_step: int | None = None
    checkpoint_seat: Seat | None = None
    has_initial_peers: bool = False
    reinit_stage: bool = False  # draw a stage from the seed although it has trained
    kept: tuple[tuple[Seat, int], ...] = ()


@dataclass(frozen=True, slots=True)
class TimePassed:
    """`Machine.next_deadline()` came."""


@dataclass(frozen=True, slots=True)
class ClockFollowed:
    """The node's unix time was set right by `jump_s` while it runs."""

    jump_s: float


@dataclass(frozen=True, slots=True)
class StopRequested:
    reason: str


@dataclass(frozen=True, slots=True)
class StateLoaded:
    """Weights are in place. `inner_step` counts this replica's optimizer steps since the last boundary.

    `data_next` of a peer's state is what its donor knows of our seat's last promise; `promised` are those of the
    stage's seats that our own checkpoint knows; `drawn_again`: micro-batches drawn after it that are drawn anew.
    """

    outer_step: int
    inner_step: int
    data_next: int
    source: str  # seed | checkpoint | peer
    last: ClosedStep | None = None  # of our own checkpoint: the newest outer step closed before it
    promised: tuple[tuple[int, int], ...] = ()  # (replica, data_next)
    drawn_again: int = 0
    seat: Seat | None = None  # whose weights they are; None: of the seat that is held


@dataclass(frozen=True, slots=True)
class StateUnavailable:
    reason: str
    seat: Seat | None = None  # that it was asked for; None: the one that is held


@dataclass(frozen=True, slots=True)
class StateCopied:
    """The checkpoint's copy is taken; the device is free again, the disk is still busy."""


@dataclass(frozen=True, slots=True)
class CheckpointSaved:
    """The checkpoint is on disk, whole. `reason` is set when it could not be written."""

    outer_step: int
    reason: str = ""
    seat: Seat | None = None  # whose state it holds; None: of the seat that is held


# --- seats ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RecordLearnt:
    """A verified record came from the DHT or on a call. `lives_s`: seconds until it expires by the local clock."""

    record: SeatRecord
    lives_s: float


@dataclass(frozen=True, slots=True)
class PeerAnswered:
    """A peer took the record that we showed it."""

    peer: PeerId


@dataclass(frozen=True, slots=True)
class SeatsRead:
    """A look-up ended; what it found came as `RecordLearnt` just before. `reached`: at least one peer was met."""

    seats: tuple[Seat, ...]
    reached: bool


@dataclass(frozen=True, slots=True)
class RecordPublished:
    """Our own record was signed and stored. `confirmed`: some other node took it."""

    record: SeatRecord
    lives_s: float
    confirmed: bool


# --- micro-batches --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MicroBatchDrawn:
    """Stage 0: the next micro-batch of our own data is in host memory."""

    call: int
    n: int
    tokens: int


@dataclass(frozen=True, slots=True)
class MicroBatchArrived:
    """A hop came in. `tokens` is counted here from the labels; `position` is the origin's schedule position."""

    call: int
    id: MicroBatchId
    digest: bytes
    tokens: int
    position: int


@dataclass(frozen=True, slots=True)
class CallerLost:
    call: int


@dataclass(frozen=True, slots=True)
class ForwardDone:
    """Activation ready. On the last stage forward and backward are one job and `loss_sum` is set."""

    call: int
    finite: bool = True
    loss_sum: float | None = None


@dataclass(frozen=True, slots=True)
class HopAdmitted:
    call: int
    seat: Seat


@dataclass(frozen=True, slots=True)
class HopRefused:
    """BUSY: the candidate has no place now."""

    call: int
    seat: Seat


@dataclass(frozen=True, slots=True)
class HopBroken:
    """The candidate is unreachable, died, or gave the micro-batch up."""

    call: int
    seat: Seat
    reason: str


@dataclass(frozen=True, slots=True)
class GradientArrived:
    """`replayed`: the later stage answered from memory and did not count it again."""

    call: int
    loss_sum: float
    tokens: int
    finite: bool = True
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class BackwardDone:
    call: int
    finite: bool = True


@dataclass(frozen=True, slots=True)
class InnerStepDone:
    """The optimizer stepped (or skipped a non-finite gradient: `applied` False)."""

    gradient_norm: float
    applied: bool = True
    learning_rate: float = 0.0


# --- outer steps ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TensorFrozen:
    """Our tensor, of which at least the first part can be sent. `is_finite` False: it is not fit to be."""

    outer_step: int
    tensor_bytes: int
    tensor_id: bytes
    shape_hash: str
    is_finite: bool = True


@dataclass(frozen=True, slots=True)
class BoundaryTaken(TensorFrozen):
    """x is frozen and the local step taken (DESIGN 2): the state a correction will be added to."""


@dataclass(frozen=True, slots=True)
class SlowWeightsFrozen(TensorFrozen):
    """Mode prefetch: phi is copied, and can be sent ahead of the boundary as the tensor's first part."""


@dataclass(frozen=True, slots=True)
class OfferReceived:
    """Answer with `effects.AnswerOffer(ticket, ...)` in the same `handle`."""

    ticket: int
    offer: Offer
    peer: PeerId


@dataclass(frozen=True, slots=True)
class OfferAnswered:
    """`answer` None: the peer could not be asked."""

    offer: Offer
    answer: OfferAnswer | None


@dataclass(frozen=True, slots=True)
class ExchangeOpened:
    """The stream to the partner is up (first time or again)."""

    outer_step: int
    peer: PeerId
    held_bytes: int = 0  # of the partner's tensor, received so far
    held_id: bytes = b""


@dataclass(frozen=True, slots=True)
class ExchangeMessageReceived:
    peer: PeerId
    message: ExchangeMessage


@dataclass(frozen=True, slots=True)
class TensorReceived:
    """All bytes of the partner's tensor are here and its digest is right."""

    outer_step: int


@dataclass(frozen=True, slots=True)
class TensorDamaged:
    """Checksum, digest, count or size was wrong."""

    outer_step: int
    reason: str


@dataclass(frozen=True, slots=True)
class TensorVerified:
    """Finite, norm in range; the correction c is computed and kept by the trainer. `spread` = rms(x_b - x_a) / gamma:
    with gamma = beta the distance of the partners' fast weights at the boundary."""

    outer_step: int
    norm: float = 0.0
    spread: float = 0.0


@dataclass(frozen=True, slots=True)
class TensorRefused:
    outer_step: int
    reason: str


@dataclass(frozen=True, slots=True)
class CorrectionAdded:
    """c of that step is in delta, phi and theta."""

    outer_step: int


Event = (
    Started
    | TimePassed
    | ClockFollowed
    | StopRequested
    | StateLoaded
    | StateUnavailable
    | StateCopied
    | CheckpointSaved
    | RecordLearnt
    | PeerAnswered
    | SeatsRead
    | RecordPublished
    | MicroBatchDrawn
    | MicroBatchArrived
    | CallerLost
    | ForwardDone
    | HopAdmitted
    | HopRefused
    | HopBroken
    | GradientArrived
    | BackwardDone
    | InnerStepDone
    | BoundaryTaken
    | OfferReceived
    | OfferAnswered
    | ExchangeOpened
    | ExchangeMessageReceived
    | TensorReceived
    | TensorDamaged
    | TensorVerified
    | TensorRefused
    | CorrectionAdded
    | SlowWeightsFrozen
)

# what the flow of micro-batches takes in
MICRO_BATCH_EVENTS = (
    MicroBatchDrawn,
    MicroBatchArrived,
    CallerLost,
    ForwardDone,
    HopAdmitted,
    HopRefused,
    HopBroken,
    GradientArrived,
    BackwardDone,
)

# what the exchange desk takes in
EXCHANGE_EVENTS = (
    OfferReceived,
    OfferAnswered,
    ExchangeOpened,
    ExchangeMessageReceived,
    TensorReceived,
    TensorDamaged,
    TensorVerified,
    TensorRefused,
    SlowWeightsFrozen,
    TimePassed,
    RecordLearnt,
)
