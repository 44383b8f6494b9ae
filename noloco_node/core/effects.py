"""What to do now: outputs of the state machine. Imperative, frozen; the driver carries them out in order.

An effect's end is the next event (named in each docstring). At most one job for the training thread is out at a
time (those marked "Device job"), so the machine alone decides what the device does next.
"""

from __future__ import annotations

from dataclasses import dataclass

from noloco_node.core.types import (
    ClosedStep,
    ExchangeMessage,
    MicroBatchId,
    Offer,
    OfferAnswer,
    Outcome,
    PeerId,
    Seat,
    SeatState,
)

# --- seats ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReadSeats:
    """-> RecordLearnt*, SeatsRead."""

    seats: tuple[Seat, ...]


@dataclass(frozen=True, slots=True)
class PublishRecord:
    """Sign and store our record. `claim` None: a new claim begins now. -> RecordPublished."""

    seat: Seat
    state: SeatState
    claim: int | None
    outer_step: int
    data_next: int
    checkpoint_step: int


@dataclass(frozen=True, slots=True)
class AnnounceCheckpoint:
    """Store a `leaving` record of a seat that we held before: we have its checkpoint and give it away. No event."""

    seat: Seat
    checkpoint_step: int
    data_next: int


@dataclass(frozen=True, slots=True)
class ShowRecord:
    """The DHT did not take our record: call these peers, so that they have ours and we theirs. -> PeerAnswered."""

    peers: tuple[PeerId, ...]


# --- state ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class InitialiseState:
    """Draw the stage's weights from the run seed. -> StateLoaded."""

    seat: Seat


@dataclass(frozen=True, slots=True)
class LoadCheckpoint:
    """Load the newest complete local checkpoint. -> StateLoaded | StateUnavailable.

    `of`: that of another seat of the stage, held before; it is taken as a donor's would be.
    """

    seat: Seat
    of: Seat | None = None


@dataclass(frozen=True, slots=True)
class FetchState:
    """Fetch slow weights and momentum from one of the donors. -> StateLoaded | StateUnavailable."""

    seat: Seat
    donors: tuple[PeerId, ...]


@dataclass(frozen=True, slots=True)
class SaveCheckpoint:
    """Copy the state on the training thread, write it elsewhere. A device job. -> StateCopied, CheckpointSaved.

    `outer_step` counts the closed outer steps, `inner_step` the optimizer steps since, `last` is the newest closed one.
    `promised`: (replica, data_next) of the stage's seats, for successors in them.
    """

    outer_step: int
    inner_step: int
    data_next: int
    last: ClosedStep | None
    promised: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Leave:
    """Everything is saved and said: end the process. `code` is an `errors.ExitCode` value."""

    reason: str
    code: int = 0


# --- micro-batches --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DrawMicroBatch:
    """Read micro-batch number `n` of our own data order. -> MicroBatchDrawn."""

    n: int


@dataclass(frozen=True, slots=True)
class AnswerAdmitted:
    call: int


@dataclass(frozen=True, slots=True)
class AnswerBusy:
    """No place, or (after AnswerAdmitted) handed back unbegun: the caller tries the next candidate."""

    call: int


@dataclass(frozen=True, slots=True)
class RunForward:
    """Device job. `count`: its gradient goes into the open step (False: computed and answered only).

    On the last stage forward, loss and backward are one job. -> ForwardDone.
    """

    call: int
    count: bool = True


@dataclass(frozen=True, slots=True)
class CallNextStage:
    """Send the activation to `peer`, holder of `seat`. -> HopAdmitted, GradientArrived | HopRefused | HopBroken."""

    call: int
    id: MicroBatchId
    position: int
    seat: Seat
    peer: PeerId


@dataclass(frozen=True, slots=True)
class CancelHop:
    call: int


@dataclass(frozen=True, slots=True)
class RunBackward:
    """Device job. `recompute`: the graph was dropped as late; run the forward again first. -> BackwardDone."""

    call: int
    count: bool = True
    recompute: bool = False


@dataclass(frozen=True, slots=True)
class DropGraph:
    """Late: forget the autograd graph, keep the input. Device job (short), no event."""

    call: int


@dataclass(frozen=True, slots=True)
class ReturnGradient:
    """Answer the hop with the input gradient. `replayed`: computed again, not added here a second time."""

    call: int
    loss_sum: float
    tokens: int
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class ForgetMicroBatch:
    """Trained, dropped or answered: free every buffer. `answer_dropped`: the caller still waits, tell it."""

    call: int
    answer_dropped: bool = False


@dataclass(frozen=True, slots=True)
class RunInnerStep:
    """Device job: divide the gradient sums by `tokens`, clip, AdamW at schedule place `position`. -> InnerStepDone."""

    tokens: int
    position: int
    loss_sum: float
    micro_batches: int


# --- outer steps ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TakeBoundary:
    """Device job: freeze x = beta*Delta + gamma*phi and take the local step. -> BoundaryTaken."""

    outer_step: int


@dataclass(frozen=True, slots=True)
class FreezeSlowWeights:
    """Mode prefetch: copy phi on the training thread, between two jobs; nothing changes it before the boundary.
    -> SlowWeightsFrozen."""

    outer_step: int


@dataclass(frozen=True, slots=True)
class DropPrefetch:
    """The partner agreed with is lost before the boundary: free what was frozen for it and what came of it."""

    outer_step: int
    peer: PeerId


@dataclass(frozen=True, slots=True)
class SendOffer:
    """-> OfferAnswered."""

    offer: Offer
    peer: PeerId


@dataclass(frozen=True, slots=True)
class AnswerOffer:
    ticket: int
    answer: OfferAnswer


@dataclass(frozen=True, slots=True)
class OpenExchange:
    """Keep a stream to the partner up, reopening it when lost, until CloseExchange. -> ExchangeOpened (each time).

    `decider`: ours is the lower seat of the pair; of two crossing streams that of the decider stays.
    """

    outer_step: int
    peer: PeerId
    decider: bool = False


@dataclass(frozen=True, slots=True)
class SendExchange:
    """Queue one protocol message on the stream for (peer, outer step); opened by either side."""

    peer: PeerId
    message: ExchangeMessage


@dataclass(frozen=True, slots=True)
class ReceiveTensor:
    """The partner's BEGIN fits: make room for its tensor, or keep what came of it. -> TensorReceived | TensorDamaged.

    `ahead`: it has not taken its boundary, so what follows its slow weights is not due yet.
    """

    outer_step: int
    peer: PeerId
    tensor_bytes: int
    tensor_id: bytes
    ahead: bool = False


@dataclass(frozen=True, slots=True)
class StreamTensor:
    """Stream our encoded x from `offset`, then END."""

    outer_step: int
    peer: PeerId
    offset: int


@dataclass(frozen=True, slots=True)
class VerifyTensor:
    """Beside the device: check the partner's x, compute c. -> TensorVerified | TensorRefused."""

    outer_step: int


@dataclass(frozen=True, slots=True)
class AddCorrection:
    """Device job: add c to delta, phi and theta. -> CorrectionAdded."""

    outer_step: int


@dataclass(frozen=True, slots=True)
class DropCorrection:
    outer_step: int


@dataclass(frozen=True, slots=True)
class CloseExchange:
    """The outer step closed here: free x and the partner's tensor. The stream stays for late questions."""

    outer_step: int
    peer: PeerId | None
    outcome: Outcome
    reason: str
    partner: Seat | None = None


Effect = (
    ReadSeats
    | PublishRecord
    | AnnounceCheckpoint
    | ShowRecord
    | InitialiseState
    | LoadCheckpoint
    | FetchState
    | SaveCheckpoint
    | Leave
    | DrawMicroBatch
    | AnswerAdmitted
    | AnswerBusy
    | RunForward
    | CallNextStage
    | CancelHop
    | RunBackward
    | DropGraph
    | ReturnGradient
    | ForgetMicroBatch
    | RunInnerStep
    | TakeBoundary
    | SendOffer
    | AnswerOffer
    | OpenExchange
    | SendExchange
    | ReceiveTensor
    | StreamTensor
    | VerifyTensor
    | AddCorrection
    | DropCorrection
    | CloseExchange
    | FreezeSlowWeights
    | DropPrefetch
)
