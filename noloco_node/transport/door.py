"""Who calls, and whether they are served.

Owns the one way a handler learns its caller: the name the tunnel gave the connection, never metadata. Asks the
Gatekeeper about the record that came along, sends ours back, turns a peer's breach of the protocol into a strike.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc

from noloco_node.core.types import PeerId
from noloco_node.errors import RemoteProtocolError
from noloco_node.ports import Gatekeeper
from noloco_node.transport.calls import record_in, record_metadata
from noloco_node.transport.tunnel import peer_named

Context = Any  # grpc.aio.ServicerContext[request, response]; each handler has its own pair


class Door:
    """Every handler passes through `caller` or `admit` before it reads anything else."""

    def __init__(self, gatekeeper: Gatekeeper, directory: Path) -> None:
        self._gatekeeper = gatekeeper
        self._directory = directory

    async def caller(self, context: Context) -> PeerId:
        """The authenticated peer, admitted or not. Aborts with UNAUTHENTICATED."""
        peer = peer_named(context.peer(), self._directory)
        if peer is None:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "calls come through a peer's stream only")
        assert peer is not None
        return peer

    async def admit(self, context: Context, *, needs_lease: bool) -> PeerId:
        """The caller, if it is served. Our record goes out either way. Aborts with PERMISSION_DENIED and a reason."""
        peer = await self.caller(context)
        record = record_in(context.invocation_metadata())
        reason = self._gatekeeper.admit(peer, record, needs_lease=needs_lease)
        await context.send_initial_metadata(record_metadata(self._gatekeeper))
        if reason:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, reason)
        return peer

    def leased_stage(self, peer: PeerId) -> int | None:
        """The stage of which an admitted peer holds a live lease; None: of none."""
        seat = self._gatekeeper.leased_seat(peer)
        return None if seat is None else seat.stage

    @asynccontextmanager
    async def watch(self, context: Context, peer: PeerId) -> AsyncIterator[None]:
        """A RemoteProtocolError inside is a strike against `peer` and ends the call with INVALID_ARGUMENT."""
        try:
            yield
        except RemoteProtocolError as fault:
            self._gatekeeper.strike(peer, str(fault))
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(fault))
