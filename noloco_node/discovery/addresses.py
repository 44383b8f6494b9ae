"""Multiaddrs: text to bytes and back, and which of them are worth telling others.

Owns the encoding of those protocols that p2pd dials. hivemind's own encoder gets /p2p/12D3... wrong, and records must
be checked without importing it. Source: multiformats multiaddr specification, protocol table.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import base58

ADDRESS_CHARACTERS_MAX: Final = 256


def _port_bytes(text: str) -> bytes:
    if not text.isascii() or not text.isdigit() or int(text) > 65535 or str(int(text)) != text:
        raise ValueError(f"{text!r} is no port")
    return int(text).to_bytes(2, "big")


def _host_bytes(text: str) -> bytes:
    if not text or not all(part and part.replace("-", "a").replace("_", "a").isalnum() for part in text.split(".")):
        raise ValueError(f"{text!r} is no host name")
    return text.encode("ascii")


def _peer_bytes(text: str) -> bytes:
    decoded = base58.b58decode(text)
    if len(decoded) not in (34, 38) or base58.b58encode(decoded).decode() != text:
        raise ValueError(f"{text!r} is no peer id")
    return decoded


@dataclass(frozen=True, slots=True)
class _Protocol:
    """One row of the table. `size_bytes`: of the value; 0 = none, -1 = length goes before it."""

    code: int
    size_bytes: int = 0
    encode: Callable[[str], bytes] = str.encode
    decode: Callable[[bytes], str] = bytes.decode


_HOST: Final = (-1, _host_bytes)
_PORT: Final = (2, _port_bytes, lambda value: str(int.from_bytes(value, "big")))
PROTOCOLS: Final[dict[str, _Protocol]] = {
    "ip4": _Protocol(4, 4, lambda text: ipaddress.IPv4Address(text).packed, lambda v: str(ipaddress.IPv4Address(v))),
    "ip6": _Protocol(41, 16, lambda text: ipaddress.IPv6Address(text).packed, lambda v: str(ipaddress.IPv6Address(v))),
    "dns": _Protocol(53, *_HOST),
    "dns4": _Protocol(54, *_HOST),
    "dns6": _Protocol(55, *_HOST),
    "dnsaddr": _Protocol(56, *_HOST),
    "tcp": _Protocol(6, *_PORT),
    "udp": _Protocol(273, *_PORT),
    "quic-v1": _Protocol(461),
    "ws": _Protocol(477),
    "wss": _Protocol(478),
    "p2p": _Protocol(421, -1, _peer_bytes, lambda value: base58.b58encode(value).decode()),
    "p2p-circuit": _Protocol(290),
}
NAMES: Final = {protocol.code: name for name, protocol in PROTOCOLS.items()}


@dataclass(frozen=True, slots=True)
class Address:
    """A multiaddr as (protocol, value) parts, e.g. (("ip4", "127.0.0.1"), ("tcp", "4001"))."""

    parts: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        return "".join(f"/{name}/{value}" if PROTOCOLS[name].size_bytes else f"/{name}" for name, value in self.parts)

    def to_bytes(self) -> bytes:
        return b"".join(_encode_part(name, value) for name, value in self.parts)

    @property
    def peer(self) -> str | None:
        """The peer this address leads to, if it says so."""
        name, value = self.parts[-1]
        return value if name == "p2p" else None

    @property
    def relayed(self) -> bool:
        return any(name == "p2p-circuit" for name, _ in self.parts)

    @property
    def ip(self) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
        name, value = self.parts[0]
        return ipaddress.ip_address(value) if name in ("ip4", "ip6") else None

    @property
    def tcp_port(self) -> int | None:
        return next((int(value) for name, value in self.parts if name == "tcp"), None)

    def without_peer(self) -> Address:
        return Address(self.parts[:-1]) if self.peer is not None and len(self.parts) > 1 else self

    def with_peer(self, peer: str) -> Address:
        return self if self.peer == peer else Address((*self.parts, ("p2p", peer)))

    def with_tcp_port(self, port: int) -> Address:
        return Address(tuple((name, str(port) if name == "tcp" else value) for name, value in self.parts))


def parse_address(text: str) -> Address:
    """Multiaddr text to `Address`. Raises ValueError, also when it leads nowhere (no transport)."""
    if not text.startswith("/") or len(text) > ADDRESS_CHARACTERS_MAX or not text.isascii():
        raise ValueError(f"{text[:80]!r} is no multiaddr")
    words, parts = text[1:].split("/"), []
    while words:
        name = words.pop(0)
        protocol = PROTOCOLS.get(name)
        if protocol is None or (protocol.size_bytes and not words):
            raise ValueError(f"{text!r} is no multiaddr that can be dialled: {name!r}")
        value = words.pop(0) if protocol.size_bytes else ""
        protocol.encode(value)
        parts.append((name, value))
    return _checked(Address(tuple(parts)))


def _checked(address: Address) -> Address:
    names = [name for name, _ in address.parts]
    if names[0] not in ("ip4", "ip6", "dns", "dns4", "dns6", "dnsaddr"):
        raise ValueError(f"{address} does not begin with a host")
    if names[0] != "dnsaddr" and names[1:2] not in (["tcp"], ["udp"]):
        raise ValueError(f"{address} names no port")
    return address


def address_from_bytes(encoded: bytes) -> Address:
    """The binary form to `Address`. Raises ValueError for protocols outside the table."""
    parts, rest = [], encoded
    while rest:
        code, rest = _take_varint(rest)
        if code not in NAMES:
            raise ValueError(f"multiaddr protocol {code} is not known")
        protocol = PROTOCOLS[NAMES[code]]
        size, rest = _take_varint(rest) if protocol.size_bytes < 0 else (protocol.size_bytes, rest)
        if size > len(rest):
            raise ValueError("multiaddr is cut short")
        parts.append((NAMES[code], protocol.decode(rest[:size]) if size else ""))
        rest = rest[size:]
    if not parts:
        raise ValueError("multiaddr is empty")
    return _checked(Address(tuple(parts)))


def parse_listen(text: str) -> Address:
    """Where to listen: multiaddr text or host:port. Raises ValueError."""
    if text.startswith("/"):
        return parse_address(text)
    host, _, port = text.rpartition(":")
    version = ipaddress.ip_address(host.strip("[]")).version
    return parse_address(f"/ip{version}/{host.strip('[]')}/tcp/{port}")


def parse_peer(text: str) -> Address:
    """An initial peer: multiaddr text that ends in /p2p/<peer id>. Raises ValueError."""
    address = parse_address(text)
    if address.peer is None or len(address.parts) < 3:
        raise ValueError(f"{text!r} does not end in /p2p/<peer id>")
    return address


def parse_announced(text: str) -> Address:
    """An address told to others in place of our own: multiaddr text with a port. Raises ValueError."""
    address = parse_address(text)
    if address.tcp_port == 0:
        raise ValueError(f"{text!r} names port 0, others need the real one")
    return address


def worth_announcing(addresses: Iterable[Address], *, loopback: bool, allow_private: bool) -> list[Address]:
    """Which of our own addresses others can use, public ones first.

    Link-local never; loopback only when we listen there on purpose; private ones unless a public one is known.
    """
    usable = [address for address in addresses if _usable(address, loopback)]
    public = [address for address in usable if is_public(address)]
    private = [address for address in usable if not is_public(address)]
    return public if public and not allow_private else public + private


def is_public(address: Address) -> bool:
    return address.ip is None or address.ip.is_global


def _usable(address: Address, loopback: bool) -> bool:
    ip = address.ip
    if ip is None:
        return True
    if ip.is_unspecified or ip.is_link_local or ip.is_multicast:
        return False
    return loopback or not ip.is_loopback


def _encode_part(name: str, value: str) -> bytes:
    protocol = PROTOCOLS[name]
    encoded = protocol.encode(value)
    length = _varint(len(encoded)) if protocol.size_bytes < 0 else b""
    return _varint(protocol.code) + length + encoded


def _varint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _take_varint(encoded: bytes) -> tuple[int, bytes]:
    number = 0
    for index, byte in enumerate(encoded[:5]):
        number |= (byte & 0x7F) << (7 * index)
        if not byte & 0x80:
            return number, encoded[index + 1 :]
    raise ValueError("multiaddr is cut short")
