from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SeatState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SEAT_STATE_UNSPECIFIED: _ClassVar[SeatState]
    SEAT_STATE_JOINING: _ClassVar[SeatState]
    SEAT_STATE_ACTIVE: _ClassVar[SeatState]
    SEAT_STATE_LEAVING: _ClassVar[SeatState]
SEAT_STATE_UNSPECIFIED: SeatState
SEAT_STATE_JOINING: SeatState
SEAT_STATE_ACTIVE: SeatState
SEAT_STATE_LEAVING: SeatState

class Seat(_message.Message):
    __slots__ = ("stage", "replica")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    stage: int
    replica: int
    def __init__(self, stage: _Optional[int] = ..., replica: _Optional[int] = ...) -> None: ...

class SeatRecord(_message.Message):
    __slots__ = ("run", "seat", "peer", "incarnation", "seq", "claim", "expires", "state", "outer_step", "data_next", "checkpoint_step", "addresses", "reach", "tokens_per_s", "loss", "version", "protocol")
    RUN_FIELD_NUMBER: _ClassVar[int]
    SEAT_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    CLAIM_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    OUTER_STEP_FIELD_NUMBER: _ClassVar[int]
    DATA_NEXT_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_STEP_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    REACH_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_S_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    run: str
    seat: Seat
    peer: str
    incarnation: int
    seq: int
    claim: int
    expires: int
    state: SeatState
    outer_step: int
    data_next: int
    checkpoint_step: int
    addresses: _containers.RepeatedScalarFieldContainer[str]
    reach: str
    tokens_per_s: float
    loss: float
    version: str
    protocol: int
    def __init__(self, run: _Optional[str] = ..., seat: _Optional[_Union[Seat, _Mapping]] = ..., peer: _Optional[str] = ..., incarnation: _Optional[int] = ..., seq: _Optional[int] = ..., claim: _Optional[int] = ..., expires: _Optional[int] = ..., state: _Optional[_Union[SeatState, str]] = ..., outer_step: _Optional[int] = ..., data_next: _Optional[int] = ..., checkpoint_step: _Optional[int] = ..., addresses: _Optional[_Iterable[str]] = ..., reach: _Optional[str] = ..., tokens_per_s: _Optional[float] = ..., loss: _Optional[float] = ..., version: _Optional[str] = ..., protocol: _Optional[int] = ...) -> None: ...

class SignedRecord(_message.Message):
    __slots__ = ("record", "signature")
    RECORD_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    record: bytes
    signature: bytes
    def __init__(self, record: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...
