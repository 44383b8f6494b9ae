"""NodeService, both sides: Hello, Offer, Status."""

from __future__ import annotations

import json
from typing import Any

from noloco_node.core import limits
from noloco_node.core.types import Offer, OfferAnswer, PeerId
from noloco_node.errors import HopBusy, PeerLost, RemoteProtocolError, VersionMismatch, WrongRun
from noloco_node.ports import ClockBook, ExchangeHandler, Gatekeeper, StateHandler
from noloco_node.transport.calls import learn_record, peer_errors, record_metadata
from noloco_node.transport.channels import Channels, Lane
from noloco_node.transport.door import Context, Door
from noloco_node.transport.exchange_codec import decode_seat, encode_seat, printable
from noloco_node.transport.identity import RunIdentity
from noloco_node.wire import node_pb2, node_pb2_grpc

ANSWERS = {
    OfferAnswer.AGREED: node_pb2.OFFER_ANSWER_AGREED,
    OfferAnswer.LATER: node_pb2.OFFER_ANSWER_LATER,
    OfferAnswer.TAKEN: node_pb2.OFFER_ANSWER_TAKEN,
}
ANSWER_OF = {number: answer for answer, number in ANSWERS.items()}


class NodeService(node_pb2_grpc.NodeServiceServicer):
    """Answers for this node. A Hello is answered even to those who do not fit, so that they learn why."""

    def __init__(
        self, door: Door, identity: RunIdentity, clocks: ClockBook, exchange: ExchangeHandler, state: StateHandler
    ) -> None:
        self._door = door
        self._identity = identity
        self._clocks = clocks
        self._exchange = exchange
        self._state = state

    async def Hello(self, request: node_pb2.HelloRequest, context: Context) -> node_pb2.HelloReply:
        own, now_s = self._identity, self._clocks.wall_s()
        if own.fits(request.run, request.protocol):
            peer = await self._door.admit(context, needs_lease=False)
            if request.unix_ms:
                self._clocks.measured(peer, now_s - request.unix_ms / 1000, 0.0, asked=False)
        else:
            await self._door.caller(context)
        return node_pb2.HelloReply(
            run=own.run, protocol=own.protocol, version=own.version, unix_ms=int(self._clocks.wall_s() * 1000)
        )

    async def Offer(self, request: node_pb2.OfferRequest, context: Context) -> node_pb2.OfferReply:
        peer = await self._door.admit(context, needs_lease=True)
        async with self._door.watch(context, peer):
            offer = Offer(request.outer_step, decode_seat(request.sender), decode_seat(request.receiver))
            return node_pb2.OfferReply(answer=ANSWERS[self._exchange.offered(peer, offer)])
        raise AssertionError("watch aborts")

    async def Status(self, request: node_pb2.StatusRequest, context: Context) -> node_pb2.StatusReply:
        await self._door.admit(context, needs_lease=False)
        return node_pb2.StatusReply(json=json.dumps(self._state.status(), default=str))


class NodeClient:
    """Short calls on the control channel."""

    def __init__(self, channels: Channels, gatekeeper: Gatekeeper, identity: RunIdentity, clocks: ClockBook) -> None:
        self._channels = channels
        self._gatekeeper = gatekeeper
        self._identity = identity
        self._clocks = clocks

    async def hello(self, peer: PeerId) -> dict[str, Any]:
        """Asks again at once when the first answer took long: dialling is in it, and it would not measure a clock."""
        reply, took_s = await self._hello(peer)
        if took_s > limits.CLOCK_HELLO_S:
            reply, took_s = await self._hello(peer)
        theirs = RunIdentity(printable(reply.run), reply.protocol, printable(reply.version))
        check_fit(self._identity, theirs)
        if reply.unix_ms:
            ahead_s = self._clocks.wall_s() - took_s / 2 - reply.unix_ms / 1000
            self._clocks.measured(peer, ahead_s, took_s / 2, asked=True)
        return {"peer": peer, "run": theirs.run, "protocol": theirs.protocol, "version": theirs.version}

    async def _hello(self, peer: PeerId) -> tuple[Any, float]:
        """The answer and how long it took."""
        own, asked_s = self._identity, self._clocks.wall_s()
        reply = await self._call(peer, "Hello", node_pb2.HelloRequest(
            run=own.run, protocol=own.protocol, version=own.version, unix_ms=int(asked_s * 1000)
        ))  # fmt: skip
        return reply, max(0.0, self._clocks.wall_s() - asked_s)

    async def offer(self, peer: PeerId, offer: Offer) -> OfferAnswer:
        request = node_pb2.OfferRequest(
            outer_step=offer.outer_step, sender=encode_seat(offer.sender), receiver=encode_seat(offer.receiver)
        )
        reply = await self._call(peer, "Offer", request)
        if reply.answer not in ANSWER_OF:
            raise RemoteProtocolError(f"unknown answer {reply.answer} to an OFFER")
        return ANSWER_OF[reply.answer]

    async def status(self, peer: PeerId) -> dict[str, Any]:
        reply = await self._call(peer, "Status", node_pb2.StatusRequest())
        try:
            status = json.loads(reply.json)
        except (ValueError, RecursionError) as fault:
            raise RemoteProtocolError("the status is not JSON") from fault
        if not isinstance(status, dict):
            raise RemoteProtocolError("the status is not an object")
        return status

    async def _call(self, peer: PeerId, method: str, request: Any) -> Any:
        async with self._channels.use(peer, Lane.CONTROL) as channel:
            try:
                with peer_errors(peer):
                    stub = getattr(node_pb2_grpc.NodeServiceStub(channel), method)
                    metadata = record_metadata(self._gatekeeper)
                    call = stub(request, timeout=limits.UNARY_DEADLINE_S, metadata=metadata)
                    reply = await call
                    await learn_record(self._gatekeeper, peer, call)
                    return reply
            except HopBusy as fault:
                raise PeerLost(f"{peer} is overloaded: {fault}") from fault


def check_fit(own: RunIdentity, theirs: RunIdentity) -> None:
    """Raises VersionMismatch or WrongRun, in words for a person."""
    if theirs.protocol != own.protocol:
        older = "this node" if own.protocol < theirs.protocol else "that node"
        raise VersionMismatch(
            f"the peer speaks protocol {theirs.protocol} (noloco-node {theirs.version}), "
            f"this node {own.protocol} (noloco-node {own.version})",
            f"upgrade {older}",
        )
    if theirs.run != own.run:
        raise WrongRun(
            f"the peer belongs to run {theirs.run[:16]}, this node to run {own.run[:16]}",
            "use the run spec (swarm.toml) of the swarm you want to join",
        )
