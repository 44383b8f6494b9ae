"""Questions to p2pd over its control socket: who are we, connect, open a stream.

hivemind asks the same questions, but leaves the socket open when the answer is an error or the caller gives up, and
encodes peer ids inside addresses wrongly. Every failure here closes what it opened. Raises PeerLost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from noloco_node.core import limits
from noloco_node.discovery.addresses import Address, address_from_bytes
from noloco_node.discovery.hivemind_library import PeerID, p2pd_pb2, read_pbmsg_safe, write_pbmsg
from noloco_node.errors import PeerLost

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class DaemonControl:
    """Owns nothing but the path of the control socket; one connection per question."""

    def __init__(self, socket_path: str) -> None:
        self._socket_path = socket_path

    async def identify(self) -> list[Address]:
        """The addresses p2pd believes it can be reached at; those it cannot dial itself are left out."""
        answer, (_, writer) = await self._ask(p2pd_pb2.Request(type=p2pd_pb2.Request.IDENTIFY))
        writer.close()
        return _known(answer.identify.addrs)

    async def connect(self, peer: str, addresses: Iterable[Address]) -> None:
        """Be connected to `peer`, at one of these addresses if it is not so already."""
        request = p2pd_pb2.ConnectRequest(
            peer=_peer_bytes(peer),
            addrs=[address.without_peer().to_bytes() for address in addresses],
            timeout=int(limits.DIAL_DEADLINE_S),
        )
        _, (_, writer) = await self._ask(p2pd_pb2.Request(type=p2pd_pb2.Request.CONNECT, connect=request))
        writer.close()

    async def open_stream(self, peer: str, protocol: str) -> Stream:
        request = p2pd_pb2.StreamOpenRequest(
            peer=_peer_bytes(peer), proto=[protocol], timeout=int(limits.DIAL_DEADLINE_S)
        )
        _, stream = await self._ask(p2pd_pb2.Request(type=p2pd_pb2.Request.STREAM_OPEN, streamOpen=request))
        return stream

    async def _ask(self, request: p2pd_pb2.Request) -> tuple[p2pd_pb2.Response, Stream]:
        try:
            reader, writer = await asyncio.open_unix_connection(self._socket_path, limit=limits.CHUNK_BYTES_MAX)
        except OSError as error:
            raise PeerLost("the libp2p daemon is not running") from error
        try:
            answer = p2pd_pb2.Response()
            await write_pbmsg(writer, request)
            await read_pbmsg_safe(reader, answer)
            if answer.type == p2pd_pb2.Response.ERROR:
                raise PeerLost(answer.error.msg)
        except (OSError, asyncio.IncompleteReadError) as error:
            writer.close()
            raise PeerLost("the libp2p daemon hung up") from error
        except BaseException:  # the caller gave up, too: nobody else would close it
            writer.close()
            raise
        return answer, (reader, writer)


def _peer_bytes(peer: str) -> bytes:
    return bytes(PeerID.from_base58(peer).to_bytes())


def _known(encoded: Iterable[bytes]) -> list[Address]:
    addresses = []
    for item in encoded:
        try:
            addresses.append(address_from_bytes(item))
        except ValueError:
            continue
    return addresses
