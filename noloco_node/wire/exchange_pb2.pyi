from noloco_node.wire import record_pb2 as _record_pb2
from noloco_node.wire import transfer_pb2 as _transfer_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ExchangeFrame(_message.Message):
    __slots__ = ("open", "begin", "have", "ready", "commit", "solo", "ask", "wait", "chunk", "end", "reached", "payload")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    HAVE_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    SOLO_FIELD_NUMBER: _ClassVar[int]
    ASK_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    REACHED_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    open: Open
    begin: Begin
    have: Have
    ready: Ready
    commit: Commit
    solo: Solo
    ask: Ask
    wait: Wait
    chunk: _transfer_pb2.Chunk
    end: _transfer_pb2.End
    reached: Reached
    payload: bytes
    def __init__(self, open: _Optional[_Union[Open, _Mapping]] = ..., begin: _Optional[_Union[Begin, _Mapping]] = ..., have: _Optional[_Union[Have, _Mapping]] = ..., ready: _Optional[_Union[Ready, _Mapping]] = ..., commit: _Optional[_Union[Commit, _Mapping]] = ..., solo: _Optional[_Union[Solo, _Mapping]] = ..., ask: _Optional[_Union[Ask, _Mapping]] = ..., wait: _Optional[_Union[Wait, _Mapping]] = ..., chunk: _Optional[_Union[_transfer_pb2.Chunk, _Mapping]] = ..., end: _Optional[_Union[_transfer_pb2.End, _Mapping]] = ..., reached: _Optional[_Union[Reached, _Mapping]] = ..., payload: _Optional[bytes] = ...) -> None: ...

class Open(_message.Message):
    __slots__ = ("run", "outer_step", "stream_id", "lost_stream_id")
    RUN_FIELD_NUMBER: _ClassVar[int]
    OUTER_STEP_FIELD_NUMBER: _ClassVar[int]
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    LOST_STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    run: str
    outer_step: int
    stream_id: int
    lost_stream_id: int
    def __init__(self, run: _Optional[str] = ..., outer_step: _Optional[int] = ..., stream_id: _Optional[int] = ..., lost_stream_id: _Optional[int] = ...) -> None: ...

class Begin(_message.Message):
    __slots__ = ("outer_step", "sender", "receiver", "incarnation", "codec", "shape_hash", "tensor_bytes", "tensor_id", "weight", "held_bytes", "held_id", "ahead")
    OUTER_STEP_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    RECEIVER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    CODEC_FIELD_NUMBER: _ClassVar[int]
    SHAPE_HASH_FIELD_NUMBER: _ClassVar[int]
    TENSOR_BYTES_FIELD_NUMBER: _ClassVar[int]
    TENSOR_ID_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    HELD_BYTES_FIELD_NUMBER: _ClassVar[int]
    HELD_ID_FIELD_NUMBER: _ClassVar[int]
    AHEAD_FIELD_NUMBER: _ClassVar[int]
    outer_step: int
    sender: _record_pb2.Seat
    receiver: _record_pb2.Seat
    incarnation: int
    codec: str
    shape_hash: str
    tensor_bytes: int
    tensor_id: bytes
    weight: float
    held_bytes: int
    held_id: bytes
    ahead: bool
    def __init__(self, outer_step: _Optional[int] = ..., sender: _Optional[_Union[_record_pb2.Seat, _Mapping]] = ..., receiver: _Optional[_Union[_record_pb2.Seat, _Mapping]] = ..., incarnation: _Optional[int] = ..., codec: _Optional[str] = ..., shape_hash: _Optional[str] = ..., tensor_bytes: _Optional[int] = ..., tensor_id: _Optional[bytes] = ..., weight: _Optional[float] = ..., held_bytes: _Optional[int] = ..., held_id: _Optional[bytes] = ..., ahead: bool = ...) -> None: ...

class Reached(_message.Message):
    __slots__ = ("outer_step",)
    OUTER_STEP_FIELD_NUMBER: _ClassVar[int]
    outer_step: int
    def __init__(self, outer_step: _Optional[int] = ...) -> None: ...

class Have(_message.Message):
    __slots__ = ("outer_step",)
    OUTER_STEP_FIELD_NUMBER: _ClassVar[int]
    outer_step: int
    def __init__(self, outer_step: _Optional[int] = ...) -> None: ...

class Ready(_message.Message):
    __slots__ = ("outer_step",)
    OUTER_STEP_FIELD_NUMBER: _ClassVar[int]
    outer_step: int
    def __init__(self, outer_step: _Optional[int] = ...) -> None: ...

class Commit(_message.Message):
    __slots__ = ("outer_step",)
    OUTER_STEP_FIELD_NUMBER: _ClassVar[int]
    outer_step: int
    def __init__(self, outer_step: _Optional[int] = ...) -> None: ...

class Solo(_message.Message):
    __slots__ = ("outer_step", "reason")
    OUTER_STEP_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    outer_step: int
    reason: str
    def __init__(self, outer_step: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Ask(_message.Message):
    __slots__ = ("outer_step",)
    OUTER_STEP_FIELD_NUMBER: _ClassVar[int]
    outer_step: int
    def __init__(self, outer_step: _Optional[int] = ...) -> None: ...

class Wait(_message.Message):
    __slots__ = ("outer_step",)
    OUTER_STEP_FIELD_NUMBER: _ClassVar[int]
    outer_step: int
    def __init__(self, outer_step: _Optional[int] = ...) -> None: ...
