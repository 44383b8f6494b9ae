"""Every message that comes from strangers: any bytes are a valid object or a documented error, nothing else."""

from __future__ import annotations

import math
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strange_bytes import TEXTS, bounded_memory, few, messages, spoiled

from noloco_node.core import limits
from noloco_node.core.types import MicroBatchId
from noloco_node.errors import HopBusy, HopDropped, PeerLost, RemoteProtocolError
from noloco_node.ports import MicroBatch, TensorBlob
from noloco_node.transport.calls import RECORD_KEY, record_in
from noloco_node.transport.exchange_codec import decode_message, decode_seat, printable
from noloco_node.transport.frames import join_frame, split_frame
from noloco_node.transport.framing import TensorInbox, digest_of, frames_of
from noloco_node.transport.hop_client import HopReading
from noloco_node.transport.meter import Meter
from noloco_node.transport.node_service import NodeClient
from noloco_node.transport.state_download import PartFile, check_end
from noloco_node.transport.tensors import HopShape, decode_tensor, encode_hop, encode_tensor
from noloco_node.transport.tunnel import PEER_NAME_BYTES_MAX, peer_named
from noloco_node.wire import exchange_pb2, node_pb2, pipeline_pb2, record_pb2, state_pb2, transfer_pb2

IDS = TensorBlob("int32", (2, 3), bytes(24))
BATCH = MicroBatch(MicroBatchId(1, 11), 42, TensorBlob("float32", (2, 3, 4), bytes(range(96))), IDS, IDS)
HOP = [BATCH.inputs.data, BATCH.position_ids.data, BATCH.labels.data]
HOP_FRAMES = [
    join_frame(pipeline_pb2.HopRequest(header=encode_hop(BATCH))),
    *(frame for frame, _ in frames_of(pipeline_pb2.HopRequest, HOP)),
]
ANSWER_FRAMES = [
    join_frame(pipeline_pb2.HopReply(admitted=pipeline_pb2.Admitted())),
    join_frame(
        pipeline_pb2.HopReply(
            gradient=pipeline_pb2.GradientHeader(gradient=encode_tensor(BATCH.inputs), loss_sum=1.0, tokens=6)
        )
    ),
    *(frame for frame, _ in frames_of(pipeline_pb2.HopReply, [BATCH.inputs.data])),
]
BEGIN = join_frame(
    exchange_pb2.ExchangeFrame(
        begin=exchange_pb2.Begin(outer_step=3, tensor_bytes=96, tensor_id=bytes(32), weight=1.0, codec="float32")
    )
)
EXCHANGE_FRAMES = [BEGIN, *(frame for frame, _ in frames_of(exchange_pb2.ExchangeFrame, [bytes(96)]))]
STATE_FRAMES = [frame for frame, _ in frames_of(state_pb2.StateFrame, [bytes(96)])]
WORDS_MAX = 200
refused = suppress(RemoteProtocolError)


@few
@given(data=spoiled(*HOP_FRAMES, *ANSWER_FRAMES, *EXCHANGE_FRAMES, *STATE_FRAMES))
@pytest.mark.parametrize(
    "kind", [exchange_pb2.ExchangeFrame, pipeline_pb2.HopRequest, pipeline_pb2.HopReply, state_pb2.StateFrame]
)
def test_a_frame_is_split_as_protobuf_would_or_refused(kind: Any, data: bytes) -> None:
    with refused:
        head, payload = split_frame(kind, data)
        whole = kind.FromString(data)
        assert bytes(payload) == whole.payload
        assert head.WhichOneof("kind") == whole.WhichOneof("kind")


@few
@given(frame=messages(exchange_pb2.ExchangeFrame), data=spoiled(*EXCHANGE_FRAMES))
def test_exchange_message_is_valid_or_refused(frame: Any, data: bytes) -> None:
    for one in (frame.SerializeToString(), data):
        with refused:
            message = decode_message(split_frame(exchange_pb2.ExchangeFrame, one)[0])
            assert 0 <= message.outer_step < 1 << 64
            assert 0 < getattr(message, "tensor_bytes", 1) <= limits.TENSOR_BYTES_MAX
            assert math.isfinite(getattr(message, "weight", 1.0))
            assert len(getattr(message, "reason", "")) <= limits.REASON_CHARS_MAX


@few
@given(header=messages(transfer_pb2.Tensor))
def test_tensor_header_names_a_bounded_size_or_is_refused(header: Any) -> None:
    with refused:
        dtype, shape = decode_tensor(header)
        assert dtype in ("float32", "bfloat16", "int32", "int8")
        assert 1 <= math.prod(shape) <= limits.TENSOR_BYTES_MAX


@few
@given(header=messages(pipeline_pb2.HopHeader), data=spoiled(*HOP_FRAMES))
def test_hop_header_reserves_nothing_before_its_size_is_known(header: Any, data: bytes) -> None:
    with bounded_memory():
        for one in (pipeline_pb2.HopRequest(header=header).SerializeToString(), data):
            with refused:
                shape = HopShape(split_frame(pipeline_pb2.HopRequest, one)[0].header)
                assert shape.announced().shape
                assert 0 < shape.size_bytes <= 3 * limits.TENSOR_BYTES_MAX


@few
@given(frames=st.lists(spoiled(*HOP_FRAMES[1:]), max_size=5), size_bytes=st.integers(0, 200))
def test_inbox_never_hands_out_what_no_end_has_confirmed(frames: list[bytes], size_bytes: int) -> None:
    inbox = TensorInbox(size_bytes)
    for data in frames:
        with refused:
            request, payload = split_frame(pipeline_pb2.HopRequest, data)
            if request.WhichOneof("kind") == "end":
                assert digest_of(inbox.finish(request.end)) == request.end.digest
            else:
                inbox.add(request.chunk, payload)
    assert inbox.held_bytes <= size_bytes


@few
@given(
    frames=st.lists(spoiled(*ANSWER_FRAMES), max_size=4),
    odd=st.lists(messages(pipeline_pb2.HopReply), max_size=2),
    first=st.integers(0, len(ANSWER_FRAMES)),
)
def test_answer_to_a_hop_is_a_gradient_of_the_shape_sent_or_an_error(
    frames: list[bytes], odd: list[Any], first: int
) -> None:
    reading = HopReading(BATCH, lambda: None, Meter(None))
    strange = [*frames, *(reply.SerializeToString() for reply in odd)]
    for data in [*ANSWER_FRAMES[:first], *strange]:
        try:
            answer = reading.take(data)
        except (RemoteProtocolError, HopBusy, HopDropped):
            continue
        assert answer is None or (answer.gradient.shape == BATCH.inputs.shape and math.isfinite(answer.loss_sum))


@few
@given(frames=st.lists(spoiled(*STATE_FRAMES), max_size=4), described=messages(state_pb2.StateDescription))
def test_state_frames_fill_the_part_in_order_or_are_refused(
    tmp_path: Path, frames: list[bytes], described: Any
) -> None:
    described.size_bytes = min(described.size_bytes, 96)
    with (tmp_path / "part").open("wb") as handle:
        part = PartFile(tmp_path / "part", handle, described)
        for data in frames:
            with refused, suppress(PeerLost):
                frame, payload = split_frame(state_pb2.StateFrame, data)
                if frame.HasField("end"):
                    check_end(frame, len(frames), part)
                else:
                    part.add(frame, payload)
        assert part.held_bytes <= described.size_bytes


class Answering:
    """Stands in for the channel: a peer that answers every call with the same message."""

    def __init__(self, answer: Any) -> None:
        self.client = NodeClient(SimpleNamespace(), SimpleNamespace(), SimpleNamespace(), SimpleNamespace())  # type: ignore[arg-type]
        self.client._call = self._call  # type: ignore[method-assign]
        self._answer = answer

    async def _call(self, peer: str, method: str, request: Any) -> Any:
        return self._answer


def at_once(work: Any) -> Any:
    """The result of a coroutine that waits for nothing."""
    try:
        work.send(None)
    except StopIteration as ended:
        return ended.value
    raise AssertionError("it waits")


@few
@given(
    text=TEXTS
    | st.sampled_from(['{"a": 1}', '{"a": ' * 20_000, "1" * 5000, "\ud800".encode("utf-8", "replace")]).map(str)
)
def test_status_of_a_peer_is_an_object_or_refused(text: str) -> None:
    with refused:
        assert isinstance(at_once(Answering(SimpleNamespace(json=text)).client.status("peer")), dict)  # type: ignore[arg-type]


@few
@given(seat=messages(record_pb2.Seat), text=TEXTS, number=st.integers(-9, 9))
def test_seats_answers_and_words_are_bounded(seat: Any, text: str, number: int) -> None:
    with refused:
        decoded = decode_seat(seat)
        assert max(decoded.stage, decoded.replica) < limits.SEATS_MAX
    assert len(printable(text)) <= limits.REASON_CHARS_MAX
    assert printable(text).isprintable() or not printable(text)
    offer = SimpleNamespace(outer_step=1, sender=SimpleNamespace(stage=0, replica=0), receiver=None)
    offer.receiver = offer.sender
    with refused:
        at_once(Answering(node_pb2.OfferReply(answer=number)).client.offer("peer", offer))  # type: ignore[arg-type]


@few
@given(value=st.binary(max_size=limits.RECORD_BYTES_MAX * 2), key=st.sampled_from([RECORD_KEY, "other", ""]))
def test_record_in_metadata_is_of_a_fitting_size_or_none(value: bytes, key: str) -> None:
    found = record_in(((key, value), (key, value.hex())))
    assert found in (b"", value)
    assert len(found) <= limits.RECORD_BYTES_MAX


@few
@given(address=st.text(max_size=80) | st.text("unix:/-1aZ%", max_size=PEER_NAME_BYTES_MAX))
def test_connection_that_no_pump_named_has_no_peer(address: str) -> None:
    assert peer_named(address, Path("/run/x/t-abc")) is None
