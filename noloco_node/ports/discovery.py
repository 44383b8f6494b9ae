"""The border to the DHT."""

from __future__ import annotations

from typing import Protocol

from noloco_node.core.types import (
    PeerId,
    Seat,
    SeatRecord,
)
from noloco_node.ports.transport import PeerStreams


class Discovery(Protocol):
    """Finds peers and publishes seats. Holds the node's key; the only door to hivemind and libp2p."""

    @property
    def peer_id(self) -> PeerId: ...
    @property
    def streams(self) -> PeerStreams: ...
    @property
    def addresses(self) -> tuple[str, ...]: ...

    async def read(self, seat: Seat) -> list[SeatRecord]:
        """Verified live records of the seat. Raises PeerLost when the DHT does not answer."""
        ...

    def kept(self, seat: Seat) -> list[SeatRecord]:
        """What this node's own part of the DHT holds of the seat: all there is when nobody else answers."""
        ...

    async def publish(self, record: SeatRecord, *, carried: bool = True) -> tuple[SeatRecord, bytes, bool]:
        """Fill seq, expires and addresses, sign, store. Returns (record, encoded, confirmed elsewhere).

        `carried`: shown on calls from now on.
        """
        ...

    def decode(self, encoded: bytes) -> SeatRecord:
        """Check size, signature and expiry of a record that came on a call. Raises RemoteProtocolError."""
        ...

    async def close(self) -> None: ...
