"""Carries out the effects about seats: look-ups in the DHT, signing and storing our record."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from noloco_node.core import effects as do
from noloco_node.core import events as ev
from noloco_node.core import limits
from noloco_node.core.types import Seat, SeatRecord, SeatState
from noloco_node.sim.ledger import Traffic
from noloco_node.sim.seat_shelf import EVERYWHERE

if TYPE_CHECKING:
    from noloco_node.sim.virtual_node import VirtualNode

RECORD_BYTES = 400
LOOK_UP_BYTES = 100


class SeatLane:
    """`seq` and `expires` only grow, also over restarts."""

    def __init__(self, node: VirtualNode) -> None:
        self._node = node
        self._seq = 0
        self._expires: dict[Seat, int] = {}
        self._published_s = 0.0  # when the newest record will be stored: one at a time

    def executors(self) -> dict[type, Callable[[Any], None]]:
        return {
            do.ReadSeats: self._read,
            do.PublishRecord: self._publish,
            do.AnnounceCheckpoint: self._announce,
            do.ShowRecord: self._show,
        }

    def forget_all(self) -> None:
        self._published_s = 0.0

    @property
    def _reaches_somebody(self) -> bool:
        return self._node.weather.is_dht_up and self._node.swarm.has_company(self._node)

    def _read(self, effect: do.ReadSeats) -> None:
        node = self._node
        node.counts(Traffic.LOOK_UP, LOOK_UP_BYTES * len(effect.seats), len(effect.seats))
        if self._reaches_somebody:
            node.after(node.weather.dht_delay_s(), lambda: self._found(effect.seats))
        else:
            node.after(limits.DHT_RPC_DEADLINE_S, lambda: node.feed(ev.SeatsRead(effect.seats, reached=False)))

    def _found(self, seats: tuple[Seat, ...]) -> None:
        node = self._node
        island, shelf = node.weather.dht_island(node.number), node.swarm.shelf
        for seat in seats:
            for record in shelf.read(seat, island, node.clock.now):
                if not node.weather.loses():
                    node.learn(record)
        node.feed(ev.SeatsRead(seats, reached=True))

    def _publish(self, effect: do.PublishRecord) -> None:
        node = self._node
        node.counts(Traffic.STORE, RECORD_BYTES * limits.DHT_COPIES, limits.DHT_COPIES)
        record = self._signed(effect)
        confirmed = self._reaches_somebody
        delay_s = node.weather.dht_delay_s() if confirmed else limits.DHT_RPC_DEADLINE_S
        self._published_s = max(self._published_s, node.clock.now + delay_s)
        node.after(self._published_s - node.clock.now, lambda: self._stored(record, confirmed))

    def _announce(self, effect: do.AnnounceCheckpoint) -> None:
        """A `leaving` record of a former seat; it is not the one shown on calls."""
        node = self._node
        told = do.PublishRecord(effect.seat, SeatState.LEAVING, None, 0, effect.data_next, effect.checkpoint_step)
        node.counts(Traffic.STORE, RECORD_BYTES * limits.DHT_COPIES, limits.DHT_COPIES)
        if self._reaches_somebody:
            record = self._signed(told)
            node.after(node.weather.dht_delay_s(), lambda: self._store(record))

    def _show(self, effect: do.ShowRecord) -> None:
        for peer in effect.peers:
            self._greet(self._node.swarm.by_peer[peer])

    def _greet(self, far: VirtualNode) -> None:
        """A short call: it has our record, we get its."""
        node, weather, record = self._node, self._node.weather, self._node.record
        node.counts(Traffic.CALL, RECORD_BYTES)

        def answered(theirs: SeatRecord | None) -> None:
            node.meet(far, theirs)
            node.feed(ev.PeerAnswered(far.peer))

        def heard() -> None:
            far.counts(Traffic.CALL, RECORD_BYTES)
            far.meet(node, record)
            theirs = far.record
            if weather.links(node.number, far.number) and not weather.loses():
                node.after(weather.delay_s(), lambda: answered(theirs))

        def arrive() -> None:
            if weather.links(node.number, far.number):
                far.receive(heard)

        if not weather.loses():
            node.clock.after(weather.delay_s(), arrive)

    def _signed(self, effect: do.PublishRecord) -> SeatRecord:
        node = self._node
        assert node.machine is not None
        settings, now_ms = node.swarm.settings, node.wall_ms
        self._seq = max(self._seq + 1, now_ms)
        above_last = min(self._expires.get(effect.seat, 0) + 1, now_ms + int(1000 * settings.lease_s + 1000))
        self._expires[effect.seat] = expires = max(now_ms + int(1000 * settings.lease_s), above_last)
        return SeatRecord(
            run=settings.run,
            seat=effect.seat,
            peer=node.peer,
            incarnation=node.machine.incarnation,
            seq=self._seq,
            claim=now_ms if effect.claim is None else effect.claim,
            expires=expires,
            state=effect.state,
            outer_step=effect.outer_step,
            data_next=effect.data_next,
            checkpoint_step=effect.checkpoint_step,
        )

    def _store(self, record: SeatRecord) -> None:
        node, weather = self._node, self._node.weather
        is_split = bool(weather.islands or weather.dht_islands)
        node.swarm.shelf.store(record, weather.dht_island(node.number) if is_split else EVERYWHERE)

    def _stored(self, record: SeatRecord, confirmed: bool) -> None:
        node = self._node
        if confirmed:
            self._store(record)
        node.record = record
        node.feed(ev.RecordPublished(record, node.swarm.settings.lease_s, confirmed))
