from noloco_node.wire import record_pb2 as _record_pb2
from noloco_node.wire import transfer_pb2 as _transfer_pb2
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StateParts(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STATE_PARTS_WHOLE: _ClassVar[StateParts]
    STATE_PARTS_SLOW: _ClassVar[StateParts]
    STATE_PARTS_SLOW_AND_MOMENTS: _ClassVar[StateParts]
STATE_PARTS_WHOLE: StateParts
STATE_PARTS_SLOW: StateParts
STATE_PARTS_SLOW_AND_MOMENTS: StateParts

class DescribeRequest(_message.Message):
    __slots__ = ("seat", "parts")
    SEAT_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    seat: _record_pb2.Seat
    parts: StateParts
    def __init__(self, seat: _Optional[_Union[_record_pb2.Seat, _Mapping]] = ..., parts: _Optional[_Union[StateParts, str]] = ...) -> None: ...

class StateDescription(_message.Message):
    __slots__ = ("name", "outer_step", "size_bytes", "digest", "data_next")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OUTER_STEP_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    DATA_NEXT_FIELD_NUMBER: _ClassVar[int]
    name: str
    outer_step: int
    size_bytes: int
    digest: bytes
    data_next: int
    def __init__(self, name: _Optional[str] = ..., outer_step: _Optional[int] = ..., size_bytes: _Optional[int] = ..., digest: _Optional[bytes] = ..., data_next: _Optional[int] = ...) -> None: ...

class FetchRequest(_message.Message):
    __slots__ = ("digest", "offset")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    digest: bytes
    offset: int
    def __init__(self, digest: _Optional[bytes] = ..., offset: _Optional[int] = ...) -> None: ...

class StateFrame(_message.Message):
    __slots__ = ("chunk", "end", "payload")
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    chunk: _transfer_pb2.Chunk
    end: _transfer_pb2.End
    payload: bytes
    def __init__(self, chunk: _Optional[_Union[_transfer_pb2.Chunk, _Mapping]] = ..., end: _Optional[_Union[_transfer_pb2.End, _Mapping]] = ..., payload: _Optional[bytes] = ...) -> None: ...
