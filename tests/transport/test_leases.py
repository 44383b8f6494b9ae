"""Only holders of a live lease may call the exchange and pipeline services, and offer; a place for a state is kept for
them. With real records, a real roster and the real network layer."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from loopback_streams import LoopbackStreams, Wires
from loopback_swarm import Driver, micro_batch

from noloco_node.core import limits
from noloco_node.core.seats import Roster
from noloco_node.core.types import PeerId, Seat, SeatRecord, SeatState, Settings
from noloco_node.discovery.identity import Identity, load_or_create_identity
from noloco_node.discovery.records import RecordRules, RecordVerifier, sign_record
from noloco_node.driver.doorkeeper import Doorkeeper
from noloco_node.transport.calls import RECORD_KEY
from noloco_node.transport.channels import Lane
from noloco_node.transport.exchange_hub import METHOD as EXCHANGE
from noloco_node.transport.frames import join_frame
from noloco_node.transport.framing import frames_of
from noloco_node.transport.hop_client import METHOD as RUN_HOP
from noloco_node.transport.identity import RunIdentity
from noloco_node.transport.network import GrpcNetwork, Handlers
from noloco_node.transport.state_download import DonorBusy
from noloco_node.transport.tensors import encode_hop
from noloco_node.wire import exchange_pb2, node_pb2, pipeline_pb2

SETTINGS = Settings("run", 1, num_stages=2, num_replicas=2, micro_batches=2, inner_steps=2, total_outer_steps=8)
RULES = RecordRules("run", 2, 2, round(SETTINGS.lease_s * 1000), round(SETTINGS.skew_max_s * 1000))
SEAT = Seat(0, 1)
OFFER = "/noloco.v1.NodeService/Offer"
BATCH = micro_batch()
HOP = [
    join_frame(pipeline_pb2.HopRequest(header=encode_hop(BATCH))),
    *(
        frame
        for frame, _ in frames_of(
            pipeline_pb2.HopRequest, [BATCH.inputs.data, BATCH.position_ids.data, BATCH.labels.data]
        )
    ),
]
OPEN = [join_frame(exchange_pb2.ExchangeFrame(open=exchange_pb2.Open(run="run", outer_step=1, stream_id=7)))]
ASK = [node_pb2.OfferRequest(outer_step=1).SerializeToString()]
CALLS = [(RUN_HOP, HOP), (EXCHANGE, OPEN), (OFFER, ASK)]


def unix_ms() -> int:
    return int(time.time() * 1000)


@dataclass
class Pair:
    """A caller, and a callee with the doorkeeper of a real node."""

    caller: GrpcNetwork
    callee: GrpcNetwork
    key: Identity
    other: Identity
    keeper: Doorkeeper
    roster: Roster
    heard: Driver
    to: Identity
    strikes: list[str]

    def record(self, **changes: Any) -> SeatRecord:
        now = unix_ms()
        plain = SeatRecord("run", SEAT, self.key.peer_id, 1, now, now - 9000, now + 30_000, SeatState.ACTIVE)
        return replace(plain, **changes)

    def signed(self, **changes: Any) -> bytes:
        return sign_record(self.record(**changes), self.key)[1]

    async def refusal(self, method: str, frames: list[bytes], record: bytes) -> tuple[grpc.StatusCode, str]:
        """Of a call that is refused before its stream is read: a frame written into the refusal would hide it."""
        return await self.call(method, frames if method == OFFER else [], record)

    async def call(self, method: str, frames: list[bytes], record: bytes) -> tuple[grpc.StatusCode, str]:
        """What the callee says of a call with that record; OK once it has answered anything."""
        async with self.caller.channels.use(self.to.peer_id, Lane.BULK) as channel:
            metadata = ((RECORD_KEY, record),) if record else ()
            call = channel.stream_stream(method)(metadata=metadata, timeout=20)
            try:
                for frame in frames:
                    await call.write(frame)
                if isinstance(await call.read(), bytes):
                    call.cancel()
                    return grpc.StatusCode.OK, ""
            except (grpc.aio.AioRpcError, grpc.aio.UsageError):
                pass
            return await call.code(), await call.details() or ""

    def learn(self, record: SeatRecord) -> None:
        self.roster.learn(record, (record.expires - unix_ms()) / 1000, time.monotonic())


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    keys = [load_or_create_identity(tmp_path / f"{name}.key") for name in ("caller", "callee", "other")]
    key, to, other = keys
    wires, roster, heard, strikes = Wires(), Roster(SETTINGS), Driver(), []
    keeper = Doorkeeper(
        decode=RecordVerifier(RULES, unix_ms).decode,
        learn_record=lambda record: made.learn(record),
        outranked=lambda record: roster.outranked(record, time.monotonic()),
        clock=time.monotonic,
        wall_ms=unix_ms,
        on_strike=lambda peer, reason: strikes.append(reason),
    )
    streams = [LoopbackStreams(owner.peer_id, wires) for owner in (key, to)]
    networks = [
        GrpcNetwork(stream, keeper, RunIdentity("run"), tmp_path / name)
        for stream, name in zip(streams, ("a", "b"), strict=True)
    ]
    made = Pair(networks[0], networks[1], key, other, keeper, roster, heard, to, strikes)
    await networks[0].start()
    await networks[1].start(Handlers(heard, heard, heard))
    yield made
    for network in networks:
        await network.close()
    for stream in streams:
        await stream.close()


def heard_nothing(pair: Pair) -> bool:
    heard = pair.heard
    return not (heard.hops or heard.headers or heard.offers or heard.opened or heard.messages)


every_call = pytest.mark.parametrize(("method", "frames"), CALLS, ids=["RunHop", "Exchange", "Offer"])


@every_call
async def test_holder_of_a_live_lease_is_served(pair: Pair, method: str, frames: list[bytes]) -> None:
    assert await pair.call(method, frames, pair.signed()) == (grpc.StatusCode.OK, "")
    assert not heard_nothing(pair)


@every_call
async def test_whoever_holds_no_live_lease_is_not_served(pair: Pair, method: str, frames: list[bytes]) -> None:
    now = unix_ms()
    no_leases = [
        (b"", "no lease"),
        (pair.signed(expires=now - 1), "expired"),
        (pair.signed(expires=now + 3_600_000), "expires too late"),
        (pair.signed(claim=now + 60_000), "from the future"),
        (pair.signed(state=SeatState.JOINING, seq=now + 1), "joining"),
        (pair.signed(state=SeatState.LEAVING, seq=now + 2), "leaving"),
    ]
    for record, reason in no_leases:
        code, words = await pair.refusal(method, frames, record)
        assert (code, reason in words) == (grpc.StatusCode.PERMISSION_DENIED, True), (reason, words)
    assert pair.strikes == []
    assert heard_nothing(pair)


@every_call
@pytest.mark.parametrize("kind", ["another peer's", "forged", "another run", "outside the table", "junk"])
async def test_record_that_is_not_the_callers_is_refused_with_a_strike(
    pair: Pair, method: str, frames: list[bytes], kind: str
) -> None:
    record = {
        "another peer's": lambda: sign_record(pair.record(peer=pair.other.peer_id), pair.other)[1],
        "forged": lambda: sign_record(pair.record(), pair.other)[1],
        "another run": lambda: pair.signed(run="other"),
        "outside the table": lambda: pair.signed(seat=Seat(7, 0)),
        "junk": lambda: b"junk",
    }[kind]()
    code, words = await pair.refusal(method, frames, record)
    assert code is grpc.StatusCode.PERMISSION_DENIED
    assert words.startswith("bad record: ")
    assert len(pair.strikes) == 1
    assert heard_nothing(pair)


@every_call
async def test_outranked_caller_is_not_served(pair: Pair, method: str, frames: list[bytes]) -> None:
    pair.learn(pair.record(peer=pair.other.peer_id, claim=unix_ms() - 20_000))
    assert await pair.refusal(method, frames, pair.signed()) == (grpc.StatusCode.PERMISSION_DENIED, "outranked")
    assert (pair.strikes, heard_nothing(pair)) == ([], True)


@every_call
@pytest.mark.parametrize("reason", ["banned", "denied"])
async def test_banned_and_barred_callers_are_not_served_whatever_they_hold(
    pair: Pair, method: str, frames: list[bytes], reason: str
) -> None:
    if reason == "banned":
        for _ in range(3):
            pair.keeper.strike(pair.key.peer_id, "rule broken")
    else:
        pair.keeper.barred = lambda peer: "denied" if peer == pair.key.peer_id else ""
    assert await pair.refusal(method, frames, pair.signed()) == (grpc.StatusCode.PERMISSION_DENIED, reason)
    assert heard_nothing(pair)
    assert pair.roster.records(time.monotonic()) == ()


async def with_guests(pair: Pair, folder: Path) -> Path:
    """The callee gives a state of stage 0, and guests have all the places they may have. Where the state goes."""
    (folder / "step-3.ckpt").write_bytes(b"weights")
    pair.heard.file = (folder / "step-3.ckpt", 3)
    shelf = pair.callee._shelf
    assert shelf is not None
    guests = [PeerId(f"guest{n}") for n in range(limits.STATE_UPLOADS_MAX - 1)]
    shelf._uploads, shelf._guests = dict.fromkeys(guests, int), set(guests)
    return folder / "fetched"


@pytest.mark.parametrize("state", [SeatState.JOINING, SeatState.ACTIVE])
async def test_holder_of_a_live_lease_of_the_stage_finds_the_place_kept_from_guests(
    pair: Pair, tmp_path: Path, state: SeatState
) -> None:
    into = await with_guests(pair, tmp_path)
    pair.keeper.carry(pair.signed(state=state))
    assert (await pair.caller.fetch_state(pair.to.peer_id, into, SEAT)).outer_step == 3


@pytest.mark.parametrize("kind", ["no record", "expired", "leaving", "another stage", "outranked"])
async def test_whoever_holds_no_live_lease_of_the_stage_is_a_guest(pair: Pair, tmp_path: Path, kind: str) -> None:
    into = await with_guests(pair, tmp_path)
    pair.keeper.carry(
        {
            "no record": b"",
            "expired": pair.signed(expires=unix_ms() - 1),
            "leaving": pair.signed(state=SeatState.LEAVING),
            "another stage": pair.signed(seat=Seat(1, 1)),
            "outranked": pair.signed(state=SeatState.JOINING),
        }[kind]
    )
    if kind == "outranked":
        pair.learn(pair.record(peer=pair.other.peer_id, claim=unix_ms() - 20_000))
    with pytest.raises(DonorBusy):
        await pair.caller.fetch_state(pair.to.peer_id, into, SEAT)
    assert pair.strikes == []
