"""gRPC's bytes inside authenticated peer streams (DESIGN 6).

Owns the node's private socket directory: the unix socket the gRPC server listens on, a listening socket per outgoing
channel, and the pumps between those and peer streams. An incoming stream's local end is bound to a path that holds the
peer id, which is how `context.peer()` comes to tell who calls. Knows nothing of gRPC itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import re
import resource
import shutil
import socket
import tempfile
from collections import Counter
from collections.abc import Coroutine
from pathlib import Path

from noloco_node.core import limits
from noloco_node.core.types import PeerId
from noloco_node.errors import PeerLost
from noloco_node.ports import PeerStreams
from noloco_node.transport.pump import Duplex, pump, shut

PROTOCOL = "/noloco/grpc/1"  # of the tunnel; the node's own protocol version is told by Hello
SOCKET_PATH_BYTES_MAX = 107  # sun_path, less its closing zero
PEER_NAME_BYTES_MAX = 72  # "/" + peer id + "-" + number
PEER_NAME = re.compile(r"([1-9A-HJ-NP-Za-km-z]{1,62})-[0-9]{1,8}")
SERVER_SOCKET = "grpc.sock"
ELSEWHERE, ELSEWHERE_PREFIX = "elsewhere", "nl-"  # note in the wanted place, and what the other folder is called
FILES_PER_STREAM = 4  # daemon side, both ends of the local connection, and some air

log = logging.getLogger(__name__)


class Tunnel:
    """`open` it, give `server_path` to a gRPC server and the result of `listen` to channels; `close` removes all."""

    def __init__(self, streams: PeerStreams, directory: Path) -> None:
        self._streams = streams
        self._parent = directory
        self._numbers = itertools.count(1)
        self._pumps: set[asyncio.Task[None]] = set()
        self._inbound: Counter[PeerId] = Counter()
        self._serving = False
        self._streams_max = limits.TUNNEL_STREAMS_MAX
        self.directory = directory

    @property
    def server_path(self) -> Path:
        return self.directory / SERVER_SOCKET

    @property
    def stream_count(self) -> int:
        return len(self._pumps)

    def open(self) -> None:
        """Make the private directory; elsewhere when the wanted place is too deep for socket names."""
        self._streams_max = streams_max()
        self._parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.directory = Path(tempfile.mkdtemp(prefix="t-", dir=self._parent)).absolute()
        if len(bytes(self.directory)) + PEER_NAME_BYTES_MAX > SOCKET_PATH_BYTES_MAX:
            self.directory.rmdir()
            self.directory = Path(tempfile.mkdtemp(prefix=ELSEWHERE_PREFIX))
            (self._parent / ELSEWHERE).write_text(str(self.directory))  # for who cleans up after a kill

    async def serve(self) -> None:
        """From now on peers' streams reach the gRPC server's socket."""
        self._serving = True
        await self._streams.serve(PROTOCOL, self._accept)

    async def _accept(self, peer: PeerId, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._serving or self._full(peer):
            await shut(writer)
            return
        self._inbound[peer] += 1
        try:
            await self._own(self._pump_in(peer, Duplex(reader, writer)))
        finally:
            self._inbound -= Counter([peer])

    def _full(self, peer: PeerId) -> bool:
        too_many = self._inbound[peer] >= limits.STREAMS_PER_PEER_MAX or len(self._pumps) >= self._streams_max
        return too_many or PEER_NAME.fullmatch(f"{peer}-0") is None

    async def _pump_in(self, peer: PeerId, remote: Duplex) -> None:
        try:
            local = await self._connect_as(peer)
        except OSError as fault:
            log.warning("a peer's stream found no server: %s", fault)
            await shut(remote.writer)
            return
        await pump(remote, local)

    async def _connect_as(self, peer: PeerId) -> Duplex:
        """A connection to the gRPC server whose own end is named after the peer."""
        own = socket.socket(socket.AF_UNIX)
        own.setblocking(False)
        name = self.directory / f"{peer}-{next(self._numbers) % 10**8}"
        try:
            own.bind(bytes(name))
            name.unlink()
            await asyncio.get_running_loop().sock_connect(own, str(self.server_path))
            return Duplex(*await asyncio.open_unix_connection(sock=own, limit=limits.CHUNK_BYTES_MAX))
        except BaseException:
            own.close()
            raise

    async def listen(self, peer: PeerId) -> Listener:
        """A local socket each connection to which becomes a stream to `peer`. Raises PeerLost: no socket to be had."""
        path = self.directory / f"o{next(self._numbers)}"

        async def dial(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._own(self._pump_out(peer, Duplex(reader, writer)))

        try:
            server = await asyncio.start_unix_server(dial, path=str(path), limit=limits.CHUNK_BYTES_MAX)
        except OSError as fault:
            log.warning("no local socket for a call to %s: %s", peer, fault)
            raise PeerLost(f"no local socket for a call to {peer}: {fault.strerror or fault}") from fault
        return Listener(path, server)

    async def _pump_out(self, peer: PeerId, local: Duplex) -> None:
        try:
            async with asyncio.timeout(limits.DIAL_DEADLINE_S):
                remote = Duplex(*await self._streams.open(peer, PROTOCOL))
        except asyncio.CancelledError:
            local.writer.transport.abort()
            raise
        except Exception as fault:  # noqa: BLE001 - a task's boundary, and the port's owner fails in its own ways
            log.debug("no stream to %s: %s", peer, fault)
            await shut(local.writer)
            return
        await pump(local, remote)

    async def _own(self, pumping: Coroutine[None, None, None]) -> None:
        """Run one pump as a task that `close` can end."""
        task = asyncio.create_task(pumping)
        self._pumps.add(task)
        task.add_done_callback(self._pumps.discard)
        try:
            await asyncio.wait([task])
        finally:
            task.cancel()

    async def close(self) -> None:
        """End every pump and remove the directory with its sockets."""
        self._serving = False
        pumps = list(self._pumps)
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
        if self.directory != self._parent:
            await asyncio.to_thread(shutil.rmtree, self.directory, ignore_errors=True)


class Listener:
    """One outgoing local socket; the file goes when it is closed."""

    def __init__(self, path: Path, server: asyncio.Server) -> None:
        self.path = path
        self._server = server

    async def close(self) -> None:
        self._server.close()
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()


def streams_max() -> int:
    """TUNNEL_STREAMS_MAX, or fewer where the process may not open so many files."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return limits.TUNNEL_STREAMS_MAX
    return max(1, min(limits.TUNNEL_STREAMS_MAX, files // FILES_PER_STREAM))


def peer_named(address: str, directory: Path) -> PeerId | None:
    """Who is behind gRPC's `context.peer()`; None for any connection that no pump made."""
    scheme, _, path = address.partition(":")
    folder, _, name = path.rpartition("/")
    match = PEER_NAME.fullmatch(name)
    if scheme != "unix" or match is None or folder.rpartition("/")[2] != directory.name:
        return None
    return PeerId(match[1])
