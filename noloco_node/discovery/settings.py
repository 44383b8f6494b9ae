"""What discovery needs of the run spec and of the node's own configuration. Plain values; imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

PID_FILE = "p2pd.json"  # in the data directory while a node's libp2p daemon runs; stays when the node was killed


@dataclass(frozen=True, slots=True)
class ReachSettings:
    """How others may reach this node. Everything that talks to strangers on its own is off unless asked for."""

    relay: bool = False  # dial and be dialled through relays (and be one, once public)
    auto_relay: bool = False  # look for relays among the initial peers when not reachable directly
    auto_nat: bool = False  # ask peers whether we are reachable, and answer them
    port_map: bool = False  # UPnP / NAT-PMP
    force: str = ""  # "public" or "private" skips the question whether we are reachable
    client_mode: bool = False  # ask the DHT, keep nothing for others: for nodes that cannot be dialled
    allow_private: bool = False  # announce addresses of private networks beside public ones


@dataclass(frozen=True, slots=True)
class DiscoverySettings:
    """Everything `SwarmDiscovery` is built from.

    `listen` takes multiaddr text ("/ip4/0.0.0.0/tcp/4001") or host:port ("0.0.0.0:4001"); port 0 picks a free one.
    `announce` replaces what is told to others. `initial_peers` end in /p2p/<peer id>; none means alone on purpose.
    `p2pd_path` replaces the daemon that comes with hivemind.
    """

    run: str
    num_stages: int
    num_replicas: int
    identity_path: Path
    data_dir: Path
    lease_s: float = 60.0
    skew_max_s: float = 3.0
    listen: tuple[str, ...] = ("/ip4/0.0.0.0/tcp/0",)
    announce: tuple[str, ...] = ()
    initial_peers: tuple[str, ...] = ()
    start_timeout_s: float = 60.0
    reach: ReachSettings = field(default_factory=ReachSettings)
    p2pd_path: Path | None = None
