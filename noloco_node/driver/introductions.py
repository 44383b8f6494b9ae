"""Hello to the peers this node works with: run, version and shapes are compared, seldom and few at once.

Owns when each peer was asked last. Must not know how a Hello travels. Only peers of our own stage (exchanges) and of
the next one (hops) are asked, so a swarm of N nodes does not make N * N calls.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from noloco_node.core import limits
from noloco_node.core.types import PeerId, Seat, SeatRecord
from noloco_node.errors import NolocoError, PeerLost, RemoteProtocolError
from noloco_node.ports import PeerNetwork


@dataclass(slots=True)
class Introductions:
    """`due` says whether a peer is to be greeted now, and notes that it is; `greet` then does it."""

    own: PeerId
    clock: Callable[[], float]
    strike: Callable[[PeerId, str], None]
    _asked_s: OrderedDict[PeerId, float] = field(default_factory=OrderedDict)
    _under_way: int = 0

    def due(self, record: SeatRecord, seat: Seat | None) -> bool:
        """At most once per peer in HELLO_INTERVAL_S, whether or not it answers; who finds no place comes again later.

        `seat` is our own, None before we hold one.
        """
        if seat is None or record.peer == self.own or record.seat.stage not in (seat.stage, seat.stage + 1):
            return False
        asked_s = self._asked_s.get(record.peer)
        lately = asked_s is not None and self.clock() - asked_s < limits.HELLO_INTERVAL_S
        if lately or self._under_way >= limits.HELLOS_AT_ONCE_MAX:
            return False
        self._note(record.peer)
        return True

    def _note(self, peer: PeerId) -> None:
        self._under_way += 1
        self._asked_s[peer] = self.clock()
        self._asked_s.move_to_end(peer)
        if len(self._asked_s) > limits.PEERS_REMEMBERED_MAX:
            self._asked_s.popitem(last=False)

    async def greet(self, peer: PeerId, network: PeerNetwork) -> None:
        """A peer that is away is no fault; one that does not fit gets a strike."""
        try:
            await network.hello(peer)
        except PeerLost:
            return
        except (RemoteProtocolError, NolocoError) as error:
            self.strike(peer, str(error))
        finally:
            self._under_way -= 1
