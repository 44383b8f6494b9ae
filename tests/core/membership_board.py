"""Several memberships on one virtual board and a virtual clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

from noloco_node.core import effects as do
from noloco_node.core import events as ev
from noloco_node.core.effects import Effect
from noloco_node.core.events import Event
from noloco_node.core.membership import Membership
from noloco_node.core.types import PeerId, Seat, SeatRecord, SeatState, Settings

WALL_MS = 1_700_000_000_000
DELAY_S = 0.01
SETTINGS = Settings(run="r", seed=3, num_stages=2, num_replicas=2, micro_batches=4, inner_steps=5, total_outer_steps=0)


@dataclass
class Node:
    membership: Membership
    cut_off: bool = False
    left: do.Leave | None = None
    effects: list[tuple[float, Effect]] = field(default_factory=list)

    @property
    def published(self) -> list[do.PublishRecord]:
        return [e for _, e in self.effects if isinstance(e, do.PublishRecord)]


class Board:
    """A DHT that always agrees with itself, and the drivers of some nodes. Reads and stores take DELAY_S."""

    def __init__(self, settings: Settings = SETTINGS) -> None:
        self.settings = settings
        self.now = 0.0
        self.nodes: list[Node] = []
        self._records: dict[tuple[Seat, PeerId], SeatRecord] = {}
        self._queue: list[tuple[float, int, Node, Effect]] = []
        self._order = count()
        self._seq = count(WALL_MS)

    def start(self, peer: str, wanted: Seat | None = None, peers: bool = True, **options: object) -> Node:
        incarnation = int(options.pop("incarnation", 1))  # type: ignore[call-overload]
        checkpoint_seat, kept = options.pop("checkpoint_seat", None), options.pop("kept", ())
        checkpoint_step = options.pop("checkpoint_step", None)
        membership = Membership(self.settings, PeerId(peer), incarnation, wanted, **options)  # type: ignore[arg-type]
        node = Node(membership)
        self.nodes.append(node)
        started = ev.Started(checkpoint_step, checkpoint_seat, has_initial_peers=peers, kept=kept)  # type: ignore[arg-type]
        self.tell(node, started)
        return node

    def tell(self, node: Node, event: Event) -> None:
        self.carry_out(node, node.membership.handle(event, self.now))

    def carry_out(self, node: Node, effects: list[Effect]) -> None:
        for effect in effects:
            node.effects.append((self.now, effect))
            if isinstance(effect, do.Leave):
                node.left = effect
            else:
                heappush(self._queue, (self.now + DELAY_S, next(self._order), node, effect))

    def _wall_ms(self) -> int:
        return WALL_MS + int(self.now * 1000)

    def _publish(self, node: Node, effect: do.PublishRecord) -> ev.RecordPublished:
        membership, now_ms = node.membership, self._wall_ms()
        record = SeatRecord(
            run="r",
            seat=effect.seat,
            peer=membership._peer,
            incarnation=membership._incarnation,
            seq=next(self._seq),
            claim=now_ms if effect.claim is None else effect.claim,
            expires=now_ms + int(self.settings.lease_s * 1000) + next(self._order) % 7,
            state=effect.state,
            data_next=effect.data_next,
            outer_step=effect.outer_step,
            checkpoint_step=effect.checkpoint_step,
        )
        if not node.cut_off:
            self._records[record.seat, record.peer] = record
        others = any(other is not node and other.left is None and not other.cut_off for other in self.nodes)
        return ev.RecordPublished(record, (record.expires - now_ms) / 1000, others and not node.cut_off)

    def _answer(self, node: Node, effect: Effect) -> None:
        if isinstance(effect, do.PublishRecord):
            self.tell(node, self._publish(node, effect))
        elif isinstance(effect, do.ReadSeats):
            now_ms = self._wall_ms()
            live = [r for (seat, _), r in self._records.items() if seat in effect.seats and r.expires > now_ms]
            for record in [] if node.cut_off else live:
                self.tell(node, ev.RecordLearnt(record, (record.expires - now_ms) / 1000))
            self.tell(node, ev.SeatsRead(effect.seats, reached=not node.cut_off and len(self.nodes) > 1))

    def run(self, until: float) -> None:
        while True:
            due = [(max(self.now, d), n) for n in self.nodes if (d := n.membership.next_deadline(self.now)) is not None]
            timer = min(due, key=lambda pair: pair[0], default=(until + 1, None))
            answer_s = self._queue[0][0] if self._queue else until + 1
            if min(timer[0], answer_s) > until:
                break
            self.now = max(self.now, min(timer[0], answer_s))
            if answer_s <= timer[0]:
                _, _, node, effect = heappop(self._queue)
                self._answer(node, effect)
            elif timer[1] is not None:
                self.tell(timer[1], ev.TimePassed())
        self.now = until

    def activate(self, *nodes: Node, data_next: int = 0) -> None:
        for node in nodes:
            node.membership.set_progress(SeatState.ACTIVE, 0, data_next, 0)
            self.carry_out(node, node.membership.publish_now(self.now))

    def stop(self, node: Node) -> None:
        """Killed: no farewell."""
        self.nodes.remove(node)
        self._queue = [entry for entry in self._queue if entry[2] is not node]

    def held(self) -> list[Seat | None]:
        return [node.membership.seat for node in self.nodes]


def seats_of(board: Board) -> list[Seat]:
    return sorted(seat for seat in board.held() if seat is not None)
