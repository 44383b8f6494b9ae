from noloco_node.wire import record_pb2 as _record_pb2
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class OfferAnswer(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OFFER_ANSWER_UNSPECIFIED: _ClassVar[OfferAnswer]
    OFFER_ANSWER_AGREED: _ClassVar[OfferAnswer]
    OFFER_ANSWER_LATER: _ClassVar[OfferAnswer]
    OFFER_ANSWER_TAKEN: _ClassVar[OfferAnswer]
OFFER_ANSWER_UNSPECIFIED: OfferAnswer
OFFER_ANSWER_AGREED: OfferAnswer
OFFER_ANSWER_LATER: OfferAnswer
OFFER_ANSWER_TAKEN: OfferAnswer

class HelloRequest(_message.Message):
    __slots__ = ("run", "protocol", "version", "unix_ms")
    RUN_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    run: str
    protocol: int
    version: str
    unix_ms: int
    def __init__(self, run: _Optional[str] = ..., protocol: _Optional[int] = ..., version: _Optional[str] = ..., unix_ms: _Optional[int] = ...) -> None: ...

class HelloReply(_message.Message):
    __slots__ = ("run", "protocol", "version", "unix_ms")
    RUN_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    run: str
    protocol: int
    version: str
    unix_ms: int
    def __init__(self, run: _Optional[str] = ..., protocol: _Optional[int] = ..., version: _Optional[str] = ..., unix_ms: _Optional[int] = ...) -> None: ...

class OfferRequest(_message.Message):
    __slots__ = ("outer_step", "sender", "receiver")
    OUTER_STEP_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    RECEIVER_FIELD_NUMBER: _ClassVar[int]
    outer_step: int
    sender: _record_pb2.Seat
    receiver: _record_pb2.Seat
    def __init__(self, outer_step: _Optional[int] = ..., sender: _Optional[_Union[_record_pb2.Seat, _Mapping]] = ..., receiver: _Optional[_Union[_record_pb2.Seat, _Mapping]] = ...) -> None: ...

class OfferReply(_message.Message):
    __slots__ = ("answer",)
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    answer: OfferAnswer
    def __init__(self, answer: _Optional[_Union[OfferAnswer, str]] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ("json",)
    JSON_FIELD_NUMBER: _ClassVar[int]
    json: str
    def __init__(self, json: _Optional[str] = ...) -> None: ...
