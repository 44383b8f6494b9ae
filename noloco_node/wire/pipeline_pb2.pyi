from noloco_node.wire import transfer_pb2 as _transfer_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class HopRequest(_message.Message):
    __slots__ = ("header", "chunk", "end", "payload")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    header: HopHeader
    chunk: _transfer_pb2.Chunk
    end: _transfer_pb2.End
    payload: bytes
    def __init__(self, header: _Optional[_Union[HopHeader, _Mapping]] = ..., chunk: _Optional[_Union[_transfer_pb2.Chunk, _Mapping]] = ..., end: _Optional[_Union[_transfer_pb2.End, _Mapping]] = ..., payload: _Optional[bytes] = ...) -> None: ...

class HopHeader(_message.Message):
    __slots__ = ("origin", "n", "position", "inputs", "position_ids", "labels")
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    POSITION_IDS_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    origin: int
    n: int
    position: int
    inputs: _transfer_pb2.Tensor
    position_ids: _transfer_pb2.Tensor
    labels: _transfer_pb2.Tensor
    def __init__(self, origin: _Optional[int] = ..., n: _Optional[int] = ..., position: _Optional[int] = ..., inputs: _Optional[_Union[_transfer_pb2.Tensor, _Mapping]] = ..., position_ids: _Optional[_Union[_transfer_pb2.Tensor, _Mapping]] = ..., labels: _Optional[_Union[_transfer_pb2.Tensor, _Mapping]] = ...) -> None: ...

class HopReply(_message.Message):
    __slots__ = ("admitted", "busy", "keep", "dropped", "gradient", "chunk", "end", "payload")
    ADMITTED_FIELD_NUMBER: _ClassVar[int]
    BUSY_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    admitted: Admitted
    busy: Busy
    keep: Keep
    dropped: Dropped
    gradient: GradientHeader
    chunk: _transfer_pb2.Chunk
    end: _transfer_pb2.End
    payload: bytes
    def __init__(self, admitted: _Optional[_Union[Admitted, _Mapping]] = ..., busy: _Optional[_Union[Busy, _Mapping]] = ..., keep: _Optional[_Union[Keep, _Mapping]] = ..., dropped: _Optional[_Union[Dropped, _Mapping]] = ..., gradient: _Optional[_Union[GradientHeader, _Mapping]] = ..., chunk: _Optional[_Union[_transfer_pb2.Chunk, _Mapping]] = ..., end: _Optional[_Union[_transfer_pb2.End, _Mapping]] = ..., payload: _Optional[bytes] = ...) -> None: ...

class Admitted(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Busy(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Keep(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Dropped(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class GradientHeader(_message.Message):
    __slots__ = ("gradient", "loss_sum", "tokens", "replayed")
    GRADIENT_FIELD_NUMBER: _ClassVar[int]
    LOSS_SUM_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    REPLAYED_FIELD_NUMBER: _ClassVar[int]
    gradient: _transfer_pb2.Tensor
    loss_sum: float
    tokens: int
    replayed: bool
    def __init__(self, gradient: _Optional[_Union[_transfer_pb2.Tensor, _Mapping]] = ..., loss_sum: _Optional[float] = ..., tokens: _Optional[int] = ..., replayed: bool = ...) -> None: ...
