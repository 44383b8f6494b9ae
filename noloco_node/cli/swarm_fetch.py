"""The newest checkpoint of every seat, fetched from a live swarm into a folder, for `export --from-swarm`.

Owns a guest: a peer for the time of one command, with a key of its own or one that it is lent, that holds no seat,
keeps nothing for the DHT and answers no calls. Everything it made is closed and removed when it is done. Must not know
what a checkpoint is for.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from noloco_node import __version__
from noloco_node.config.run_spec import RunSpec
from noloco_node.core.types import PeerId, Seat, SeatRecord, SeatState
from noloco_node.discovery.addresses import parse_peer
from noloco_node.discovery.dht import SwarmDiscovery
from noloco_node.discovery.settings import DiscoverySettings, ReachSettings
from noloco_node.errors import (
    BadCheckpoint,
    BadConfig,
    NotAdmitted,
    PeerLost,
    PeerRefused,
    RemoteProtocolError,
    SwarmUnreachable,
)
from noloco_node.ports import EXCLUSIONS
from noloco_node.training import checkpoint
from noloco_node.transport.identity import RunIdentity
from noloco_node.transport.network import GrpcNetwork

READS_AT_ONCE_MAX = 16
FETCHES_AT_ONCE_MAX = 4
TRIES_MAX = 6  # per seat; a donor serves few newcomers at a time
TRY_PAUSE_S = 2.0
LOOK_PAUSE_S = 1.0
PATIENCE_S = 30.0  # for records of every stage to show up
FRESH_KEY_ADVICE = "show the key of a node on the owner's list, which must not run meanwhile: --data-dir DATA_DIR"
ADVICE = "is --peer the address of a running node of this run, and has every stage saved a checkpoint?"

log = logging.getLogger(__name__)


def fetch_checkpoints(
    spec: RunSpec,
    peers: Sequence[str],
    folder: Path,
    key_file: Path | None = None,
    *,
    patience_s: float = PATIENCE_S,
) -> list[Path]:
    """One file per seat that gave one, at least one of each stage. `peers` are addresses that end in /p2p/<peer id>.

    `key_file`: whose key to show; None: a fresh one, which a swarm with an allow list does not know. Raises BadConfig
    for an address that is none, BadIdentity and IdentityInUse for the key, NotAdmitted when the swarm excludes it,
    WrongRun and VersionMismatch when a peer is of another run or version, SwarmUnreachable naming the stage of which
    nothing was to be had, DiskFailed.
    """
    import uvloop

    return uvloop.run(_fetch_all(spec, tuple(peers), folder, key_file, patience_s))


async def _fetch_all(
    spec: RunSpec, peers: tuple[str, ...], folder: Path, key_file: Path | None, patience_s: float
) -> list[Path]:
    async with _guest(spec, peers, key_file) as guest:
        await guest.greet([_peer_of(address) for address in peers])
        seats = await guest.donors(patience_s)
        turn = asyncio.Semaphore(FETCHES_AT_ONCE_MAX)
        found = await asyncio.gather(*(guest.fetch(record, folder, turn) for record in seats))
    paths = {record.seat: path for record, path in zip(seats, found, strict=True) if path is not None}
    _check_stages(spec, {seat.stage for seat in paths}, "gave its checkpoint")
    return [paths[seat] for seat in sorted(paths)]


def _peer_of(address: str) -> PeerId:
    try:
        return PeerId(parse_peer(address).peer or "")
    except ValueError as error:
        raise BadConfig(f"--peer: {error}", "a running node logs its addresses, and node.json holds them") from error


def _check_stages(spec: RunSpec, seen: set[int], words: str) -> None:
    for stage in range(spec.swarm.num_stages):
        if stage not in seen:
            raise SwarmUnreachable(f"no replica of stage {stage} {words}", ADVICE)


class _Stranger:
    """`Gatekeeper` of one who holds no seat: shows no record, admits nobody, keeps no books."""

    def own_record(self) -> bytes:
        return b""

    def admit(self, peer: PeerId, record: bytes, *, needs_lease: bool) -> str:
        return "not a node"

    def learn(self, peer: PeerId, record: bytes) -> None:
        return None

    def strike(self, peer: PeerId, reason: str) -> None:
        log.warning("%s broke the protocol: %s", peer, reason)

    def leased_seat(self, peer: PeerId) -> Seat | None:
        return None


@contextlib.asynccontextmanager
async def _guest(spec: RunSpec, peers: tuple[str, ...], key_file: Path | None) -> AsyncIterator[Guest]:
    """A guest in a folder that is removed afterwards, with its key if it is a fresh one."""
    addresses = [address for address in peers if _peer_of(address)]
    with tempfile.TemporaryDirectory(prefix="noloco-guest-") as name:
        place = Path(name)
        async with contextlib.AsyncExitStack() as closing:
            discovery = SwarmDiscovery(_settings(spec, tuple(addresses), place, key_file or place / "identity.key"))
            await discovery.start()
            closing.push_async_callback(discovery.close)
            network = GrpcNetwork(
                discovery.streams, _Stranger(), RunIdentity(spec.run_id, version=__version__), place / "sockets"
            )
            await network.start(None)
            closing.push_async_callback(network.close)
            yield Guest(spec, discovery, network, is_fresh=key_file is None)


def _settings(spec: RunSpec, peers: tuple[str, ...], place: Path, key_file: Path) -> DiscoverySettings:
    timing = spec.timing
    ips = [parse_peer(address).ip for address in peers]
    local = any(ip is not None and ip.is_loopback for ip in ips)  # loopback addresses count only for who listens there
    return DiscoverySettings(
        run=spec.run_id,
        num_stages=spec.swarm.num_stages,
        num_replicas=spec.swarm.num_replicas,
        identity_path=key_file,
        data_dir=place,
        lease_s=timing.lease_s,
        skew_max_s=timing.skew_max_s,
        listen=("/ip4/127.0.0.1/tcp/0",) if local else ("/ip4/0.0.0.0/tcp/0",),
        initial_peers=peers,
        reach=ReachSettings(relay=True, force="private", client_mode=True),
    )


@dataclass(slots=True)
class Guest:
    """Asks a swarm; a part of it no longer than `_guest` lasts."""

    spec: RunSpec
    discovery: SwarmDiscovery
    network: GrpcNetwork
    is_fresh: bool = True  # its key is known to nobody
    _reads: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(READS_AT_ONCE_MAX))

    async def greet(self, peers: Sequence[PeerId]) -> None:
        """At least one of the named peers must serve us, and be of this run and version."""
        answers = await asyncio.gather(*(self.network.hello(peer) for peer in peers), return_exceptions=True)
        if any(not isinstance(answer, BaseException) for answer in answers):
            return
        faults = [answer for answer in answers if isinstance(answer, BaseException)]
        for fault in faults:
            if not isinstance(fault, PeerLost | RemoteProtocolError):
                raise fault
            if isinstance(fault, PeerRefused) and fault.reason in EXCLUSIONS:
                advice = FRESH_KEY_ADVICE if self.is_fresh else "tell the owner of the run that peer id"
                raise NotAdmitted(f"the run does not admit {self.discovery.peer_id}: {fault.reason}", advice)
        raise SwarmUnreachable(f"no peer answers: {faults[0]}", ADVICE)

    async def donors(self, patience_s: float) -> list[SeatRecord]:
        """The holders of all seats that announce a checkpoint, at least one of each stage.

        A checkpoint is announced with the next renewal of the record: holders that have none yet are waited for so
        long.
        """
        begun_s = time.monotonic()
        while True:
            holders = await self._holders()
            found = [record for record in holders if record.checkpoint_step >= 1]
            stages = {record.seat.stage for record in found}
            waited_s = time.monotonic() - begun_s
            is_covered = len(stages) == self.spec.swarm.num_stages
            if is_covered and (len(found) == len(holders) or waited_s >= self.spec.timing.renew_s + LOOK_PAUSE_S):
                return found
            if not is_covered and waited_s >= patience_s:
                _check_stages(self.spec, stages, "announces a checkpoint")
            await asyncio.sleep(LOOK_PAUSE_S)

    async def _holders(self) -> list[SeatRecord]:
        """The live holder of every seat that has one, with a checkpoint or not."""
        swarm = self.spec.swarm
        seats = [Seat(stage, replica) for replica in range(swarm.num_replicas) for stage in range(swarm.num_stages)]
        found = await asyncio.gather(*(self._holder(seat) for seat in seats))
        return [record for record in found if record is not None]

    async def _holder(self, seat: Seat) -> SeatRecord | None:
        """Of those who announce a checkpoint of the seat (or of all, if none does) the one with the oldest claim."""
        async with self._reads:
            try:
                records = await self.discovery.read(seat)
            except PeerLost:
                return None
        live = [record for record in records if record.state is not SeatState.LEAVING]
        return min(live, key=lambda record: (record.checkpoint_step < 1, record.claim), default=None)

    async def fetch(self, record: SeatRecord, folder: Path, turn: asyncio.Semaphore) -> Path | None:
        """The seat's file, or None when its holder gave none after TRIES_MAX tries."""
        path = folder / f"seat-{record.seat}.safetensors"
        faults: Counter[str] = Counter()
        for attempt in range(TRIES_MAX):
            try:
                async with turn:
                    await self.network.fetch_state(record.peer, path)
                return await asyncio.to_thread(_checked, path, self.spec.run_id, record.seat)
            except (PeerLost, RemoteProtocolError, BadCheckpoint) as error:
                faults[str(error)] += 1
            await asyncio.sleep(TRY_PAUSE_S * (attempt + 1))
        log.warning("seat %s gave no checkpoint: %s", record.seat, faults.most_common(1)[0][0])
        return None


def _checked(path: Path, run: str, seat: Seat) -> Path:
    """Raises BadCheckpoint unless the file is whole and of the seat that was asked for."""
    meta = checkpoint.read_meta(path)
    if meta.run != run or meta.place != seat:
        path.unlink(missing_ok=True)
        raise BadCheckpoint(f"the holder of seat {seat} gave a checkpoint of run {meta.run}, seat {meta.place}")
    checkpoint.read_tensors(path, meta)
    return path
