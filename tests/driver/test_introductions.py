"""Whom a node greets: those it works with, seldom, few at once."""

import pytest
from driver_bench import ME, PEER, SEAT, THIRD, BenchNetwork, record_of

from noloco_node.core import limits
from noloco_node.core.types import PeerId, Seat
from noloco_node.driver.introductions import Introductions
from noloco_node.errors import PeerLost


class Book:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.struck: list[PeerId] = []
        self.made = Introductions(ME, lambda: self.now_s, lambda peer, reason: self.struck.append(peer))

    def due(self, peer: PeerId, seat: Seat = SEAT) -> bool:
        return self.made.due(record_of(peer, seat=seat), SEAT)


@pytest.mark.parametrize(
    ("stage", "due"), [(SEAT.stage - 1, False), (SEAT.stage, True), (SEAT.stage + 1, True), (9, False)]
)
def test_only_the_own_and_the_next_stage_are_greeted(stage: int, due: bool) -> None:
    assert Book().due(PEER, Seat(stage, 1)) is due


def test_nobody_is_greeted_before_a_seat_is_held_and_never_oneself() -> None:
    book = Book()
    assert not book.made.due(record_of(PEER), None)
    assert not book.due(ME)


async def test_peer_that_is_away_is_not_dialled_again_for_a_while() -> None:
    book, network = Book(), BenchNetwork(greetings={PEER: PeerLost("away")})
    assert book.due(PEER)
    await book.made.greet(PEER, network)  # type: ignore[arg-type]
    book.now_s = limits.HELLO_INTERVAL_S - 1
    assert not book.due(PEER)
    book.now_s = limits.HELLO_INTERVAL_S
    assert book.due(PEER)
    assert book.struck == []


async def test_few_are_greeted_at_once_and_the_next_ones_turn_comes() -> None:
    book = Book()
    crowd = [PeerId(f"peer-{n}") for n in range(limits.HELLOS_AT_ONCE_MAX)]
    assert all(book.due(peer) for peer in crowd)
    assert not book.due(THIRD)
    await book.made.greet(crowd[0], BenchNetwork())  # type: ignore[arg-type]
    assert book.due(THIRD)
