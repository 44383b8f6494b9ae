"""GrpcNetwork: the PeerNetwork port over gRPC inside peer streams. Plugs the transport's parts together.

Owns their order of start and close, and the rule that one event loop per process uses gRPC (grpc#25364).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from noloco_node.core import limits
from noloco_node.core.types import Offer, OfferAnswer, PeerId, Seat
from noloco_node.errors import LocalProtocolError
from noloco_node.ports import (
    ClockBook,
    ExchangeHandler,
    FetchedState,
    Gatekeeper,
    HopAnswer,
    MicroBatch,
    PeerStreams,
    PipelineHandler,
    StateHandler,
    StateParts,
)
from noloco_node.transport.channels import Channels
from noloco_node.transport.door import Door
from noloco_node.transport.exchange_hub import GrpcExchangeHub
from noloco_node.transport.exchange_inbound import ExchangeService
from noloco_node.transport.hop_client import HopClient
from noloco_node.transport.hop_service import HopService
from noloco_node.transport.identity import RunIdentity
from noloco_node.transport.meter import Meter, Traffic
from noloco_node.transport.node_service import NodeClient, NodeService
from noloco_node.transport.server import Server, Services
from noloco_node.transport.state_download import StateClient
from noloco_node.transport.state_service import StateService
from noloco_node.transport.state_shelf import StateShelf
from noloco_node.transport.tunnel import Tunnel


@dataclass(frozen=True, slots=True)
class Handlers:
    """Who answers peers' calls: usually the driver in all three roles."""

    pipeline: PipelineHandler
    exchange: ExchangeHandler
    state: StateHandler


class WallOnly:
    """`ClockBook` port of commands that only ask: keeps no book."""

    def wall_s(self) -> float:
        return time.time()

    def measured(self, peer: PeerId, ahead_s: float, error_s: float, *, asked: bool) -> None:
        return None


class LoopGuard:
    """At most one event loop per process holds networks at a time."""

    _owner: ClassVar[asyncio.AbstractEventLoop | None] = None
    _holders: ClassVar[int] = 0

    @classmethod
    def enter(cls) -> None:
        loop = asyncio.get_running_loop()
        if cls._holders and cls._owner is not loop:
            raise LocalProtocolError("gRPC already runs on another event loop of this process")
        cls._owner = loop
        cls._holders += 1

    @classmethod
    def leave(cls) -> None:
        cls._holders -= 1


class GrpcNetwork:
    """`start` with handlers serves and calls; without, it only calls (commands that ask a live swarm)."""

    def __init__(
        self,
        streams: PeerStreams,
        gatekeeper: Gatekeeper,
        identity: RunIdentity,
        directory: Path,
        *,
        traffic: Traffic | None = None,
        activation_bytes_max: int = limits.ACTIVATION_BYTES_MAX,
        uploads_max: int | None = None,
        on_upload: Callable[[bool], None] = lambda complete: None,
        clocks: ClockBook | None = None,
    ) -> None:
        self._gatekeeper = gatekeeper
        self._identity = identity
        self._clocks = clocks or WallOnly()
        self._meter = Meter(traffic)
        self._activation_bytes_max = activation_bytes_max
        self._uploads_max = uploads_max
        self._on_upload = on_upload
        self.tunnel = Tunnel(streams, directory)
        self.channels = Channels(self.tunnel)
        self.exchange = GrpcExchangeHub(self.channels, gatekeeper, self._meter, identity.run)
        self._node = NodeClient(self.channels, gatekeeper, identity, self._clocks)
        self._hops = HopClient(self.channels, gatekeeper, self._meter)
        self._states = StateClient(self.channels, gatekeeper, self._meter)
        self._shelf: StateShelf | None = None
        self._server: Server | None = None
        self._started = False

    async def start(self, handlers: Handlers | None = None) -> None:
        LoopGuard.enter()
        self._started = True
        try:
            self.tunnel.open()
            self.channels.start()
            if handlers is not None:
                await self._serve(handlers)
        except BaseException:
            await self.close()
            raise

    async def _serve(self, handlers: Handlers) -> None:
        self.exchange.bind(handlers.exchange)
        door = Door(self._gatekeeper, self.tunnel.directory)
        self._shelf = StateShelf(handlers.state, self._uploads_max, self._on_upload)
        services = Services(
            NodeService(door, self._identity, self._clocks, handlers.exchange, handlers.state),
            HopService(door, handlers.pipeline, self._meter, self._activation_bytes_max),
            ExchangeService(door, self.exchange),
            StateService(door, self._shelf, self._meter),
        )
        self._server = Server(services, self.tunnel.server_path)
        await self._server.start()
        await self.tunnel.serve()

    async def hello(self, peer: PeerId) -> dict[str, Any]:
        return await self._node.hello(peer)

    async def offer(self, peer: PeerId, offer: Offer) -> OfferAnswer:
        return await self._node.offer(peer, offer)

    async def status(self, peer: PeerId) -> dict[str, Any]:
        """The peer's own status, as it shows it."""
        return await self._node.status(peer)

    async def run_hop(self, peer: PeerId, batch: MicroBatch, admitted: Callable[[], None]) -> HopAnswer:
        return await self._hops.run_hop(peer, batch, admitted)

    async def fetch_state(
        self,
        peer: PeerId,
        into: Path,
        seat: Seat | None = None,
        parts: StateParts = StateParts.WHOLE,
        bytes_max: int = limits.TENSOR_BYTES_MAX,
    ) -> FetchedState:
        return await self._states.fetch_state(peer, into, seat, parts, bytes_max)

    async def close(self) -> None:
        """End every call, both ways, and remove the sockets. A second close does nothing."""
        if not self._started:
            return
        self._started = False
        await self.exchange.close()
        await self.channels.close()
        if self._server is not None:
            await self._server.close()
        if self._shelf is not None:
            self._shelf.close()
        await self.tunnel.close()
        LoopGuard.leave()
