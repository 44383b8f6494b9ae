"""What strangers may send: refused with the right reason, a strike, and the server goes on."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import grpc
import grpc.aio
import pytest
from loopback_streams import LoopbackStreams
from loopback_swarm import ALICE, CAROL, Node, Swarm, micro_batch, until

from noloco_node.core import limits
from noloco_node.errors import PeerLost, RemoteProtocolError
from noloco_node.ports import HopAnswer, MicroBatch, TensorBlob
from noloco_node.transport import hop_client
from noloco_node.transport.channels import Lane
from noloco_node.transport.exchange_hub import METHOD as EXCHANGE
from noloco_node.transport.frames import join_frame
from noloco_node.transport.framing import chunk_frame, digest_of, end_frame, frames_of
from noloco_node.transport.hop_client import METHOD as RUN_HOP
from noloco_node.transport.tensors import encode_hop
from noloco_node.transport.tunnel import PROTOCOL
from noloco_node.wire.pipeline_pb2 import HopRequest
from noloco_node.wire.transfer_pb2 import DTYPE_FLOAT32, Tensor

BATCH = micro_batch()
PARTS = [BATCH.inputs.data, BATCH.position_ids.data, BATCH.labels.data]
WHOLE = b"".join(bytes(part) for part in PARTS)


def good_frames() -> list[bytes]:
    return [join_frame(HopRequest(header=encode_hop(BATCH))), *(frame for frame, _ in frames_of(HopRequest, PARTS))]


def without_a_chunk() -> list[bytes]:
    frames = good_frames()
    return frames[:2] + frames[3:]


def with_a_flipped_bit() -> list[bytes]:
    frames = good_frames()
    flipped = bytearray(frames[1])
    flipped[-1] ^= 1
    return [frames[0], bytes(flipped), *frames[2:]]


def with_wrong_digest() -> list[bytes]:
    return [*good_frames()[:-1], end_frame(HopRequest, len(WHOLE), 3, digest_of(b"else"))]


def with_wrong_count() -> list[bytes]:
    return [*good_frames()[:-1], end_frame(HopRequest, len(WHOLE), 2, digest_of(WHOLE))]


def longer_than_announced() -> list[bytes]:
    return [*good_frames()[:-1], chunk_frame(HopRequest, len(WHOLE), memoryview(b"more"))]


def ended_early() -> list[bytes]:
    return [*good_frames()[:2], end_frame(HopRequest, len(WHOLE), 1, digest_of(WHOLE))]


def header_with(**changes: Any) -> list[bytes]:
    header = encode_hop(BATCH)
    for name, tensor in changes.items():
        getattr(header, name).CopyFrom(tensor)
    return [join_frame(HopRequest(header=header))]


def of_a_huge_shape() -> list[bytes]:
    rows = Tensor(dtype=3, shape=[60_000, 3])
    return header_with(inputs=Tensor(dtype=DTYPE_FLOAT32, shape=[60_000, 3, 4_000]), position_ids=rows, labels=rows)


BAD_HOPS: list[tuple[str, Callable[[], list[bytes]]]] = [
    ("at offset", without_a_chunk),
    ("checksum", with_a_flipped_bit),
    ("digest", with_wrong_digest),
    ("chunks came", with_wrong_count),
    ("more than the announced", longer_than_announced),
    ("ended after", ended_early),
    ("not a protobuf", lambda: [b"\xff\xff\xff"]),
    ("expected header", lambda: good_frames()[1:]),
    ("expected header", lambda: [b""]),
    ("expected chunk or end", lambda: good_frames()[:1] * 2),
    ("unknown dtype", lambda: header_with(inputs=Tensor(dtype=99, shape=[2, 3, 4]))),
    ("impossible shape", lambda: header_with(inputs=Tensor(dtype=DTYPE_FLOAT32, shape=[2, 0, 4]))),
    ("impossible shape", lambda: header_with(inputs=Tensor(dtype=DTYPE_FLOAT32, shape=[1] * 9))),
    ("activation", lambda: header_with(inputs=Tensor(dtype=DTYPE_FLOAT32, shape=[2, 4, 4]))),
    ("int32", lambda: header_with(labels=Tensor(dtype=DTYPE_FLOAT32, shape=[2, 3]))),
    ("bytes, at most", of_a_huge_shape),
    ("bytes after END", lambda: [*good_frames(), good_frames()[0]]),
]


async def raw_call(node: Node, peer: str, method: str, frames: Iterable[bytes]) -> grpc.aio.AioRpcError | None:
    """Send frames as they are; the error the server answered with."""
    async with node.network.channels.use(peer, Lane.BULK) as channel:  # type: ignore[arg-type]
        call = channel.stream_stream(method)()
        try:
            for frame in frames:
                await call.write(frame)
            while await call.read() is not grpc.aio.EOF:
                pass
        except (asyncio.InvalidStateError, grpc.aio.AioRpcError):
            pass
        return None if await call.code() is grpc.StatusCode.OK else await error_of(call)


async def error_of(call: Any) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(await call.code(), grpc.aio.Metadata(), grpc.aio.Metadata(), await call.details())


@pytest.mark.parametrize(("reason", "frames"), BAD_HOPS)
async def test_bad_hop_is_refused_with_its_reason_and_a_strike(
    alice: Node, bob: Node, reason: str, frames: Callable[[], list[bytes]]
) -> None:
    never: asyncio.Future[HopAnswer] = asyncio.get_running_loop().create_future()
    bob.driver.reply = lambda batch: never
    error = await raw_call(alice, bob.peer, RUN_HOP, frames())
    assert error is not None
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert reason in (error.details() or "")
    assert [(peer, reason in words) for peer, words in bob.gate.strikes] == [(alice.peer, True)]
    bob.driver.reply = None
    assert (await alice.network.run_hop(bob.peer, BATCH, lambda: None)).tokens == 5


BAD_EXCHANGES = [("begin with OPEN", b""), ("not a protobuf", b"\xff"), ("begin with OPEN", b"\x12\x00")]


@pytest.mark.parametrize(("reason", "frame"), BAD_EXCHANGES)
async def test_exchange_that_does_not_begin_with_open_is_refused(
    alice: Node, bob: Node, reason: str, frame: bytes
) -> None:
    error = await raw_call(alice, bob.peer, EXCHANGE, [frame])
    assert error is not None
    assert reason in (error.details() or "")
    assert len(bob.gate.strikes) == 1
    assert bob.network.exchange.link_count == 0


async def test_message_above_the_limit_never_leaves(alice: Node, bob: Node) -> None:
    assert await raw_call(alice, bob.peer, RUN_HOP, [bytes(4 * limits.MIB + 1)]) is not None
    assert (await alice.network.run_hop(bob.peer, BATCH, lambda: None)).tokens == 5


async def test_server_refuses_a_big_message_of_a_client_without_limits(alice: Node, bob: Node) -> None:
    listener = await alice.network.tunnel.listen(bob.peer)
    options = [("grpc.max_send_message_length", -1), ("grpc.default_authority", "localhost")]
    async with grpc.aio.insecure_channel(f"unix:{listener.path}", options=options) as channel:
        call = channel.stream_stream(RUN_HOP)()
        await call.write(bytes(4 * limits.MIB + 1))
        assert await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    await listener.close()
    assert (await alice.network.run_hop(bob.peer, BATCH, lambda: None)).tokens == 5


async def test_silent_caller_is_let_go(alice: Node, bob: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CHUNK_DEADLINE_S", 0.3)
    error = await raw_call(alice, bob.peer, RUN_HOP, good_frames()[:2])
    assert error is not None
    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED


@pytest.mark.parametrize(
    "junk", [b"GET / HTTP/1.1\r\n\r\n", os.urandom(70_000), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(999)]
)
async def test_peer_of_another_protocol_harms_nothing(alice: Node, bob: Node, peers: Swarm, junk: bytes) -> None:
    reader, writer = await LoopbackStreams(CAROL, peers.wires).open(bob.peer, PROTOCOL)
    writer.write(junk)
    await asyncio.wait_for(reader.read(), 10)  # the server hangs up
    assert (await alice.network.run_hop(bob.peer, BATCH, lambda: None)).tokens == 5
    writer.close()


async def test_streams_beyond_the_cap_are_closed(bob: Node, peers: Swarm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STREAMS_PER_PEER_MAX", 3)
    mallory = LoopbackStreams(CAROL, peers.wires)
    opened = [await mallory.open(bob.peer, PROTOCOL) for _ in range(6)]
    await until(lambda: bob.network.tunnel.stream_count == 3)
    ended = [await asyncio.wait_for(reader.read(), 5) for reader, _ in opened[3:]]
    assert ended == [b""] * 3


# --- answers a caller must not believe ------------------------------------------------------------


def answering(answer: HopAnswer) -> Callable[[MicroBatch], asyncio.Future[HopAnswer]]:
    def lie(batch: MicroBatch) -> asyncio.Future[HopAnswer]:
        future: asyncio.Future[HopAnswer] = asyncio.get_running_loop().create_future()
        future.set_result(answer)
        return future

    return lie


@pytest.fixture
async def liar(peers: Swarm) -> Node:
    return await peers.add(CAROL)


def gradient(shape: tuple[int, ...], dtype: str = "float32") -> HopAnswer:
    size = 4
    for length in shape:
        size *= length
    return HopAnswer(TensorBlob(dtype, shape, bytes(size)), 1.0, 1)


@pytest.mark.parametrize(
    ("loss_sum", "tokens"), [(float("nan"), 4), (float("inf"), 4), (-float("inf"), 4), (1.0, 7), (1.0, 1 << 31)]
)
async def test_loss_that_is_no_number_and_tokens_that_were_never_sent_are_refused(
    alice: Node, liar: Node, loss_sum: float, tokens: int
) -> None:
    """Believed, they would end up in our own record, and others would strike us for it."""
    honest = gradient(BATCH.inputs.shape)
    liar.driver.reply = answering(replace(honest, loss_sum=loss_sum, tokens=tokens))
    with pytest.raises(RemoteProtocolError, match="impossible"):
        await alice.network.run_hop(liar.peer, BATCH, lambda: None)
    assert [peer for peer, _ in alice.gate.strikes] == [liar.peer]


@pytest.mark.parametrize(("shape", "dtype"), [((2, 3, 5), "float32"), ((2, 12), "float32"), ((2, 3, 4), "int32")])
async def test_gradient_of_another_shape_is_refused(
    alice: Node, liar: Node, shape: tuple[int, ...], dtype: str
) -> None:
    liar.driver.reply = answering(gradient(shape, dtype))
    with pytest.raises(RemoteProtocolError, match="expected"):
        await alice.network.run_hop(liar.peer, BATCH, lambda: None)
    assert alice.gate.strikes[0][0] == liar.peer


async def test_missing_keeps_mean_peer_lost(alice: Node, bob: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    bob.driver.reply = lambda batch: asyncio.get_running_loop().create_future()
    hop = asyncio.create_task(alice.network.run_hop(bob.peer, BATCH, lambda: None))
    await until(lambda: bob.driver.hops)
    await asyncio.sleep(0.2)
    monkeypatch.setattr(hop_client.limits, "KEEPS_MISSED_MAX", 0.02)
    hop.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hop
    with pytest.raises(PeerLost, match="no answer in time"):
        await alice.network.run_hop(bob.peer, BATCH, lambda: None)


# --- identity -------------------------------------------------------------------------------------


async def test_caller_cannot_name_itself_by_metadata(alice: Node, bob: Node) -> None:
    async with alice.network.channels.use(bob.peer, Lane.BULK) as channel:
        call = channel.stream_stream(RUN_HOP)(
            metadata=(("peer", CAROL), ("x-peer-id", CAROL), ("noloco-record-bin", b"I am Carol"))
        )
        for frame in good_frames():
            await call.write(frame)
        await until(lambda: bob.driver.hops)
        call.cancel()
    assert [caller for caller, _, _ in bob.driver.hops] == [ALICE]


async def test_call_that_did_not_come_through_a_stream_is_refused(bob: Node) -> None:
    async with grpc.aio.insecure_channel(f"unix:{bob.network.tunnel.server_path}") as channel:
        call = channel.stream_stream(RUN_HOP)()
        assert await call.code() is grpc.StatusCode.UNAUTHENTICATED
