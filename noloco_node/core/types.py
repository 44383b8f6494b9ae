"""The nouns of the swarm, shared by every layer. Plain values; no behaviour beyond naming."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, NewType

from noloco_node.core import limits

PeerId = NewType("PeerId", str)  # base58 libp2p peer id, e.g. "12D3Koo..."


class Seat(NamedTuple):
    """One place in the swarm: a replica of a pipeline stage. `str(seat)` is "stage.replica"."""

    stage: int
    replica: int

    def __str__(self) -> str:
        return f"{self.stage}.{self.replica}"


class MicroBatchId(NamedTuple):
    """`n` is the running number in the data order of stage-0 replica `origin`."""

    origin: int
    n: int


class SeatState(StrEnum):
    """State a record announces. `joining` is occupied for claims and vacant for pairing and routing."""

    JOINING = "joining"
    ACTIVE = "active"
    LEAVING = "leaving"


class Phase(StrEnum):
    """Where a node stands in its life (ARCHITECTURE.md, phase table)."""

    JOINING = "joining"
    SYNCING = "syncing"
    TRAINING = "training"
    EXCHANGING = "exchanging"
    DRAINING = "draining"
    LEFT = "left"


class Clock(StrEnum):
    TIME = "time"
    STEPS = "steps"


class Mode(StrEnum):
    """Whether training waits for the exchange of an outer step, or runs on while x travels (DESIGN 5a). In prefetch it
    waits, but the slow weights have travelled before."""

    JOINT = "joint"
    PREFETCH = "prefetch"
    OVERLAP = "overlap"


class Admit(StrEnum):
    """How a replica picks micro-batches for its open step: as they come, or exactly the ids of its step."""

    ARRIVAL = "arrival"
    ORDERED = "ordered"


class Outcome(StrEnum):
    """How an outer step closed."""

    PAIRED = "paired"
    SOLO = "solo"


class OfferAnswer(StrEnum):
    AGREED = "agreed"
    LATER = "later"
    TAKEN = "taken"


@dataclass(frozen=True, slots=True)
class SeatRecord:
    """What a peer says about the seat it holds; signed and encoded by `discovery.records`.

    Times are unix milliseconds. `seq` grows with every signing by this peer; `claim` is when this claim of the
    seat began; `incarnation` is drawn at process start. At most `limits.RECORD_BYTES_MAX` when encoded.
    """

    run: str
    seat: Seat
    peer: PeerId
    incarnation: int
    seq: int
    claim: int
    expires: int
    state: SeatState
    outer_step: int = 0
    data_next: int = 0
    checkpoint_step: int = 0
    addresses: tuple[str, ...] = ()
    reach: str = "unknown"  # public | private | relay | unknown
    tokens_per_s: float = 0.0
    loss: float = 0.0
    version: str = ""
    protocol: int = 0


@dataclass(frozen=True, slots=True)
class Settings:
    """What the pure core needs of the run spec (`config.run_spec` makes it). Seconds unless named otherwise."""

    run: str
    seed: int
    num_stages: int
    num_replicas: int
    micro_batches: int  # M, admitted per inner step and replica
    inner_steps: int  # H
    total_outer_steps: int  # 0 = no end
    mode: Mode = Mode.JOINT
    codec: str = "float32"  # of x on its way
    fragments: int = 1  # an outer step exchanges one of so many parts of the weights, the next one the next part
    start_seats: int = 0  # active seats that must be known before a new run draws its first micro-batch
    alpha: float = 0.5
    beta: float = 0.7
    gamma: float = 0.7
    clock: Clock = Clock.TIME
    admit: Admit = Admit.ARRIVAL
    outer_interval_s: float = 600.0
    grace_s: float = 30.0
    exchange_max_s: float = 300.0
    lease_s: float = 60.0
    renew_s: float = 20.0
    settle_s: float = 5.0
    skew_max_s: float = 3.0
    late_s: float = 60.0
    idle_close_s: float = 10.0
    queue_max: int = 2  # deep queues tie the swarm to its slowest replica
    inflight_extra: int = 1  # micro-batches in flight beyond num_stages - stage, to hide the latency

    @property
    def stale_steps_max(self) -> int:
        """Outer steps behind its stage after which a replica fetches state."""
        return limits.STALE_STEPS_MAX * self.fragments


@dataclass(frozen=True, slots=True)
class Offer:
    """ "Shall we two exchange at outer step `outer_step`?" Sent by `sender` to the holder of `receiver`."""

    outer_step: int
    sender: Seat
    receiver: Seat


@dataclass(frozen=True, slots=True)
class ClosedStep:
    """How an outer step closed, and with whom it was traded."""

    outer_step: int
    outcome: Outcome
    reason: str
    seat: Seat | None
    peer: PeerId | None


# --- exchange messages (DESIGN 5a; wire form in proto/noloco/v1/exchange.proto) ---------------------


@dataclass(frozen=True, slots=True)
class Begin:
    """First message of either side on a stream. `held_*` names the part of the partner's tensor already here (resume).

    `ahead` (mode prefetch): the sender has not reached the boundary, only its slow weights are on their way.
    """

    outer_step: int
    sender: Seat
    receiver: Seat
    incarnation: int
    codec: str
    shape_hash: str  # of the stage's parameter names and shapes
    tensor_bytes: int
    tensor_id: bytes  # names this very x, 32 bytes
    weight: float = 1.0
    held_bytes: int = 0
    held_id: bytes = b""
    ahead: bool = False


@dataclass(frozen=True, slots=True)
class Reached:
    """Mode prefetch: I have taken the boundary that my BEGIN ran ahead of; the rest of that tensor follows."""

    outer_step: int


@dataclass(frozen=True, slots=True)
class Have:
    """Decider: your tensor is complete and verified here."""

    outer_step: int


@dataclass(frozen=True, slots=True)
class Ready:
    """Follower: yours is complete and verified too, my correction is computed; I am in doubt until you answer."""

    outer_step: int


@dataclass(frozen=True, slots=True)
class Commit:
    outer_step: int


@dataclass(frozen=True, slots=True)
class Solo:
    outer_step: int
    reason: str


@dataclass(frozen=True, slots=True)
class Ask:
    outer_step: int


@dataclass(frozen=True, slots=True)
class Wait:
    """I have not reached that outer step yet."""

    outer_step: int


ExchangeMessage = Begin | Have | Ready | Commit | Solo | Ask | Wait | Reached
