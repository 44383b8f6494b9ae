"""Whether the ports to listen on are free, asked before p2pd starts.

p2pd shares ports (SO_REUSEPORT): two of them start happily on one port, and calls reach the wrong one.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Iterable
from pathlib import Path

from noloco_node.core import limits
from noloco_node.discovery.addresses import Address
from noloco_node.errors import BadConfig, PortInUse

RETRY_S = 0.2
LISTEN_STATE = "0A"  # in /proc/net/tcp


async def wait_for_free_ports(addresses: Iterable[Address]) -> None:
    """Returns when every TCP port named can be bound. Raises PortInUse after PORT_WAIT_S, BadConfig for a bad host."""
    deadline = asyncio.get_running_loop().time() + limits.PORT_WAIT_S
    for address in addresses:
        while not _is_free(address):
            if asyncio.get_running_loop().time() >= deadline:
                raise _in_use(address.tcp_port or 0)
            await asyncio.sleep(RETRY_S)


def _is_free(address: Address) -> bool:
    port, ip = address.tcp_port, address.ip
    if not port or ip is None:
        return True
    family = socket.AF_INET if ip.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # closed connections do not count
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            probe.bind((str(ip), port))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return False
        raise BadConfig(
            f"cannot listen on {address}: {error.strerror}", "Choose an address of this machine and a port above 1023."
        ) from error
    return True


def _in_use(port: int) -> PortInUse:
    owner = port_owner(port)
    who = f"process {owner}" if owner else "another process"
    return PortInUse(f"TCP port {port} is in use by {who}", "Stop it, or choose another port to listen on (--listen).")


def port_owner(port: int) -> int | None:
    """Process that listens on a TCP port, if this user may know."""
    sockets = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if str(descriptor.readlink()) in sockets:
                return int(descriptor.parts[2])
        except OSError:
            continue
    return None


def _listening_inodes(port: int) -> list[str]:
    inodes = []
    for table in ("tcp", "tcp6"):
        try:
            lines = Path("/proc/net", table).read_text().splitlines()[1:]
        except OSError:
            continue
        rows = [line.split() for line in lines]
        inodes += [row[9] for row in rows if row[3] == LISTEN_STATE and int(row[1].rpartition(":")[2], 16) == port]
    return inodes
