"""Decoders against anything: right on good input, one error class on bad, never more memory than announced."""

from __future__ import annotations

import zlib

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st
from loopback_swarm import micro_batch

from noloco_node.core import limits
from noloco_node.core.types import Ask, Begin, Commit, ExchangeMessage, Have, Ready, Seat, Solo, Wait
from noloco_node.errors import LocalProtocolError, RemoteProtocolError
from noloco_node.ports import TensorBlob
from noloco_node.transport.exchange_codec import decode_message, encode_message
from noloco_node.transport.frames import join_frame, split_frame
from noloco_node.transport.framing import TensorInbox, byte_view, cut, digest_of, frames_of
from noloco_node.transport.tensors import HopShape, decode_tensor, encode_hop, encode_tensor, size_of
from noloco_node.wire.exchange_pb2 import ExchangeFrame
from noloco_node.wire.pipeline_pb2 import HopHeader, HopRequest
from noloco_node.wire.transfer_pb2 import Chunk, Tensor

steps = st.integers(0, 2**63)
seats = st.builds(Seat, st.integers(0, limits.SEATS_MAX - 1), st.integers(0, limits.SEATS_MAX - 1))
digests = st.binary(min_size=32, max_size=32)
begins = st.builds(
    Begin,
    outer_step=steps,
    sender=seats,
    receiver=seats,
    incarnation=steps,
    codec=st.sampled_from(["float32", "int8"]),
    shape_hash=st.text(max_size=64),
    tensor_bytes=st.integers(1, limits.TENSOR_BYTES_MAX),
    tensor_id=digests,
    weight=st.floats(1e-6, 1e9),
    held_bytes=st.integers(0, limits.TENSOR_BYTES_MAX),
    held_id=st.just(b"") | digests,
)
words = st.text(st.characters(codec="utf-8", categories=["L", "N", "P"]), max_size=limits.REASON_CHARS_MAX)
messages = (
    begins
    | st.builds(Solo, steps, words)
    | st.sampled_from([Have, Ready, Commit, Ask, Wait]).flatmap(lambda kind: st.builds(kind, steps))
)
requests = st.builds(
    lambda offset, crc: HopRequest(chunk=Chunk(offset=offset, crc32=crc)), steps, st.integers(0, 2**32 - 1)
)


@given(requests, st.binary(max_size=500))
def test_frame_is_plain_protobuf_both_ways(head: HopRequest, payload: bytes) -> None:
    encoded = join_frame(head, payload)
    by_protobuf = HopRequest.FromString(encoded)
    assert (by_protobuf.payload, by_protobuf.chunk) == (payload, head.chunk)
    decoded, view = split_frame(HopRequest, by_protobuf.SerializeToString())
    assert (bytes(view), decoded.chunk) == (payload, head.chunk)


@given(st.binary(max_size=200))
def test_decoder_agrees_with_protobuf_on_any_bytes(data: bytes) -> None:
    try:
        expected = HopRequest.FromString(data)
    except DecodeError:
        with pytest.raises(RemoteProtocolError):
            split_frame(HopRequest, data)
        return
    decoded, payload = split_frame(HopRequest, data)
    assert bytes(payload) == expected.payload
    expected.payload = b""
    decoded.payload = b""
    assert decoded == expected


@given(messages)
def test_exchange_message_survives_the_wire(message: ExchangeMessage) -> None:
    frame, payload = split_frame(ExchangeFrame, join_frame(encode_message(message)))
    assert decode_message(frame) == message
    assert len(payload) == 0


@given(st.binary(max_size=300))
def test_any_bytes_make_a_message_or_one_error(data: bytes) -> None:
    try:
        frame, _ = split_frame(ExchangeFrame, data)
        decode_message(frame)
    except RemoteProtocolError:
        return


BAD_BEGINS = [
    {"tensor_bytes": 0},
    {"tensor_bytes": limits.TENSOR_BYTES_MAX + 1},
    {"held_bytes": limits.TENSOR_BYTES_MAX + 1},
    {"tensor_id": b"short"},
    {"held_id": b"short"},
    {"weight": 0.0},
    {"weight": float("nan")},
    {"weight": float("inf")},
    {"codec": "x" * 129},
    {"shape_hash": "x" * 129},
    {"sender": Seat(limits.SEATS_MAX, 0)},
    {"receiver": Seat(0, limits.SEATS_MAX)},
]


@pytest.mark.parametrize("change", BAD_BEGINS)
def test_begin_out_of_range_is_refused(change: dict[str, object]) -> None:
    good: dict[str, object] = {
        "outer_step": 1,
        "sender": Seat(0, 0),
        "receiver": Seat(0, 1),
        "incarnation": 1,
        "codec": "float32",
        "shape_hash": "h",
        "tensor_bytes": 8,
        "tensor_id": bytes(32),
    }
    message = Begin(**(good | change))  # type: ignore[arg-type]
    with pytest.raises(RemoteProtocolError):
        decode_message(encode_message(message))


def test_words_of_a_peer_are_made_printable() -> None:
    frame = encode_message(Solo(1, "ok"))
    frame.solo.reason = "\x1b[31mred\n" + "x" * 1000
    decoded = decode_message(frame)
    assert isinstance(decoded, Solo)
    assert decoded.reason.isprintable()
    assert len(decoded.reason) == limits.REASON_CHARS_MAX


# --- chunks ---------------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=3000), max_size=4), st.integers(0, 5000))
@settings(max_examples=50)
def test_pieces_are_small_in_order_and_complete(parts: list[bytes], offset: int) -> None:
    whole, position = b"".join(parts), offset
    for start, piece in cut(parts, offset):
        assert 0 < len(piece) <= limits.CHUNK_BYTES_MAX
        assert start == position
        assert bytes(piece) == whole[start : start + len(piece)]
        position += len(piece)
    assert position == max(offset, len(whole))


def chunk(offset: int, data: bytes) -> tuple[Chunk, memoryview]:
    return Chunk(offset=offset, crc32=zlib.crc32(data)), memoryview(data)


@given(st.binary(min_size=1, max_size=5000), st.data())
@settings(max_examples=100)
def test_damaged_stream_never_becomes_a_tensor(whole: bytes, data: st.DataObject) -> None:
    """Frames dropped, repeated, swapped or bit-flipped: refused, or it is the very tensor."""
    size = data.draw(st.integers(1, 700))
    pieces = [whole[start : start + size] for start in range(0, len(whole), size)]
    frames = [frame for frame, _ in frames_of(HopRequest, [whole])] if size > 600 else None
    inbox = TensorInbox(len(whole), digest_of(whole))
    order = data.draw(st.lists(st.integers(0, len(pieces) - 1), max_size=len(pieces) + 1))
    try:
        for index in order:
            header, view = chunk(index * size, pieces[index])
            inbox.add(header, view)
        end = HopRequest.FromString((frames or [frame for frame, _ in frames_of(HopRequest, [whole])])[-1]).end
        end.chunks = len(order)
        assert bytes(inbox.finish(end)) == whole
    except RemoteProtocolError:
        assert not inbox.complete


def test_inbox_reserves_exactly_what_was_announced() -> None:
    inbox = TensorInbox(1000)
    with pytest.raises(LocalProtocolError):
        inbox.whole()
    inbox.add(*chunk(0, bytes(999)))
    with pytest.raises(RemoteProtocolError, match="more than the announced"):
        inbox.add(*chunk(999, bytes(2)))
    assert inbox._memory().nbytes == 1000


@pytest.mark.parametrize("size", [0, limits.CHUNK_BYTES_MAX + 1])
def test_chunk_of_an_impossible_size_is_refused(size: int) -> None:
    with pytest.raises(RemoteProtocolError, match="a chunk of"):
        TensorInbox(10 * limits.MIB).add(*chunk(0, bytes(size)))


# --- tensors --------------------------------------------------------------------------------------


@given(
    st.sampled_from(["float32", "bfloat16", "int8", "int32"]),
    st.lists(st.integers(1, 5), min_size=1, max_size=limits.TENSOR_DIMENSIONS_MAX),
)
def test_tensor_header_survives_the_wire(dtype: str, shape: list[int]) -> None:
    header = encode_tensor(TensorBlob(dtype, tuple(shape), bytes(size_of(dtype, shape))))
    assert decode_tensor(Tensor.FromString(header.SerializeToString())) == (dtype, tuple(shape))


def test_sizes_follow_from_dtype_and_shape() -> None:
    sizes = {dtype: size_of(dtype, (2, 3, 100)) for dtype in ("float32", "bfloat16", "int8", "int32")}
    assert sizes == {"float32": 2400, "bfloat16": 1200, "int8": 3 * 257, "int32": 2400}


@given(st.builds(Tensor, dtype=st.integers(0, 9), shape=st.lists(st.integers(0, 2**32 - 1), max_size=12)))
def test_any_header_is_within_the_limits_or_refused(header: Tensor) -> None:
    try:
        dtype, shape = decode_tensor(header)
    except RemoteProtocolError:
        return
    assert dtype in ("float32", "bfloat16", "int32", "int8")
    assert 1 <= len(shape) <= limits.TENSOR_DIMENSIONS_MAX


@given(st.binary(max_size=200))
def test_any_hop_header_is_checked_or_refused(data: bytes) -> None:
    try:
        header = HopHeader.FromString(data)
    except DecodeError:
        return
    try:
        HopShape(header)
    except RemoteProtocolError:
        return


@pytest.mark.parametrize("blob", [TensorBlob("float64", (1,), bytes(8)), TensorBlob("float32", (2, 2), bytes(15))])
def test_own_tensor_that_does_not_fit_its_shape_is_our_fault(blob: TensorBlob) -> None:
    with pytest.raises(LocalProtocolError):
        encode_tensor(blob)


def test_hop_of_checked_header_is_views_not_copies() -> None:
    batch = micro_batch()
    data = memoryview(b"".join(bytes(blob.data) for blob in (batch.inputs, batch.position_ids, batch.labels)))
    shape = HopShape(encode_hop(batch))
    assert shape.size_bytes == len(data)
    made = shape.micro_batch(data)
    assert made == batch
    assert byte_view(made.labels.data).obj is data.obj
