"""Exchange messages of core.types <-> ExchangeFrame. Owns the checks of every field a partner sends."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Any

from noloco_node.core import limits
from noloco_node.core.types import Ask, Begin, Commit, ExchangeMessage, Have, Reached, Ready, Seat, Solo, Wait
from noloco_node.errors import RemoteProtocolError
from noloco_node.wire import exchange_pb2, record_pb2

WORD_CHARS_MAX = 128  # codec and shape hash
STEP_ONLY: dict[str, type[Any]] = {
    "have": Have,
    "ready": Ready,
    "commit": Commit,
    "ask": Ask,
    "wait": Wait,
    "reached": Reached,
}
FIELD_OF = {kind: field for field, kind in STEP_ONLY.items()}


def encode_message(message: ExchangeMessage) -> exchange_pb2.ExchangeFrame:
    if isinstance(message, Begin):
        return exchange_pb2.ExchangeFrame(begin=encode_begin(message))
    if isinstance(message, Solo):
        reason = message.reason[: limits.REASON_CHARS_MAX]
        return exchange_pb2.ExchangeFrame(solo=exchange_pb2.Solo(outer_step=message.outer_step, reason=reason))
    frame = exchange_pb2.ExchangeFrame()
    body = getattr(frame, FIELD_OF[type(message)])
    body.SetInParent()
    body.outer_step = message.outer_step
    return frame


def decode_message(frame: exchange_pb2.ExchangeFrame) -> ExchangeMessage:
    """Raises RemoteProtocolError for anything that is no protocol message or out of range."""
    field = frame.WhichOneof("kind") or ""
    decoder = DECODERS.get(field)
    if decoder is not None:
        return decoder(getattr(frame, field))
    if field in STEP_ONLY:
        message: ExchangeMessage = STEP_ONLY[field](getattr(frame, field).outer_step)
        return message
    raise RemoteProtocolError(f"no exchange message: {field or 'empty'}")


def encode_begin(begin: Begin) -> exchange_pb2.Begin:
    return exchange_pb2.Begin(
        outer_step=begin.outer_step,
        sender=encode_seat(begin.sender),
        receiver=encode_seat(begin.receiver),
        incarnation=begin.incarnation,
        codec=begin.codec,
        shape_hash=begin.shape_hash,
        tensor_bytes=begin.tensor_bytes,
        tensor_id=begin.tensor_id,
        weight=begin.weight,
        held_bytes=begin.held_bytes,
        held_id=begin.held_id,
        ahead=begin.ahead,
    )


def decode_begin(body: exchange_pb2.Begin) -> Begin:
    check_begin(body)
    return Begin(
        outer_step=body.outer_step,
        sender=decode_seat(body.sender),
        receiver=decode_seat(body.receiver),
        incarnation=body.incarnation,
        codec=body.codec,
        shape_hash=body.shape_hash,
        tensor_bytes=body.tensor_bytes,
        tensor_id=body.tensor_id,
        weight=body.weight,
        held_bytes=body.held_bytes,
        held_id=body.held_id,
        ahead=body.ahead,
    )


def check_begin(body: exchange_pb2.Begin) -> None:
    if not 0 < body.tensor_bytes <= limits.TENSOR_BYTES_MAX or body.held_bytes > limits.TENSOR_BYTES_MAX:
        raise RemoteProtocolError("BEGIN names an impossible size")
    if len(body.tensor_id) != limits.DIGEST_BYTES or len(body.held_id) not in (0, limits.DIGEST_BYTES):
        raise RemoteProtocolError("BEGIN's name of a tensor has the wrong length")
    if not (isfinite(body.weight) and body.weight > 0):
        raise RemoteProtocolError("BEGIN's weight is not a positive number")
    if max(len(body.codec), len(body.shape_hash)) > WORD_CHARS_MAX:
        raise RemoteProtocolError("BEGIN's words are too long")


def decode_solo(body: exchange_pb2.Solo) -> Solo:
    return Solo(body.outer_step, printable(body.reason))


def printable(text: str) -> str:
    """A peer's words, fit for a log line."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[: limits.REASON_CHARS_MAX])


def encode_seat(seat: Seat) -> record_pb2.Seat:
    return record_pb2.Seat(stage=seat.stage, replica=seat.replica)


def decode_seat(body: record_pb2.Seat) -> Seat:
    if max(body.stage, body.replica) >= limits.SEATS_MAX:
        raise RemoteProtocolError("a seat outside any table")
    return Seat(body.stage, body.replica)


DECODERS: dict[str, Callable[[Any], ExchangeMessage]] = {"begin": decode_begin, "solo": decode_solo}
