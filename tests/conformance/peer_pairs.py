"""Two peers that can reach one another, over each implementation of PeerStreams."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from loopback_streams import LoopbackStreams, Wires
from loopback_swarm import ALICE, BOB

from noloco_node.core.types import PeerId
from noloco_node.ports import PeerStreams


@dataclass(frozen=True)
class Peer:
    id: PeerId
    streams: PeerStreams


Pair = tuple[Peer, Peer]


async def loopback_pair(folder: Path) -> AsyncIterator[Pair]:
    wires = Wires()
    streams = [LoopbackStreams(peer, wires) for peer in (ALICE, BOB)]
    yield Peer(ALICE, streams[0]), Peer(BOB, streams[1])
    for stream in streams:
        await stream.close()


async def libp2p_pair(folder: Path) -> AsyncIterator[Pair]:
    from noloco_node.discovery.dht import SwarmDiscovery
    from noloco_node.discovery.settings import DiscoverySettings

    def settings(name: str, initial_peers: tuple[str, ...] = ()) -> DiscoverySettings:
        return DiscoverySettings(
            run="conformance",
            num_stages=1,
            num_replicas=2,
            identity_path=folder / name / "identity.key",
            data_dir=folder / name,
            listen=("/ip4/127.0.0.1/tcp/0",),
            initial_peers=initial_peers,
        )

    first = SwarmDiscovery(settings("first"))
    await first.start()
    second = SwarmDiscovery(settings("second", tuple(first.addresses)))
    await second.start()
    yield Peer(first.peer_id, first.streams), Peer(second.peer_id, second.streams)
    await second.close()
    await first.close()
