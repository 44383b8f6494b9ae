"""Addresses of peers as their own signed records give them; bounded, the least recently heard of goes first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from noloco_node.core import limits
from noloco_node.core.types import PeerId, SeatRecord
from noloco_node.discovery.addresses import Address, parse_address


class AddressBook:
    """Peer -> addresses to dial. Loopback addresses of others count only where we listen on loopback ourselves."""

    def __init__(self, *, loopback: bool) -> None:
        self._loopback = loopback
        self._addresses: OrderedDict[PeerId, tuple[Address, ...]] = OrderedDict()

    def learn(self, record: SeatRecord) -> None:
        self.note(record.peer, (parse_address(text) for text in record.addresses))

    def note(self, peer: PeerId, addresses: Iterable[Address]) -> None:
        dialled = tuple(address for address in addresses if self._may_dial(address))
        if not dialled:
            return
        self._addresses[peer] = dialled
        self._addresses.move_to_end(peer)
        if len(self._addresses) > limits.ADDRESS_BOOK_MAX:
            self._addresses.popitem(last=False)

    def of(self, peer: PeerId) -> tuple[Address, ...]:
        return self._addresses.get(peer, ())

    def recent(self, count: int) -> list[PeerId]:
        """Peers heard of last, newest first."""
        return list(reversed(self._addresses))[:count]

    def _may_dial(self, address: Address) -> bool:
        return self._loopback or address.ip is None or not (address.ip.is_loopback or address.ip.is_unspecified)
