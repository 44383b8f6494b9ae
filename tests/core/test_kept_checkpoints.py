"""Checkpoints of seats held before, and stages that do not fit: which seat is taken, what is offered."""

from __future__ import annotations

from membership_board import Board, Node

from noloco_node.core import effects as do
from noloco_node.core.claiming import Claiming
from noloco_node.core.types import Seat, SeatState


def offers(node: Node) -> list[do.AnnounceCheckpoint]:
    return [e for _, e in node.effects if isinstance(e, do.AnnounceCheckpoint)]


def test_a_spare_offers_the_checkpoint_of_a_stage_where_nobody_works() -> None:
    board = Board()
    for name in "abcd":
        board.start(name)
    board.run(120.0)
    spare = board.start("e", checkpoint_seat=Seat(1, 0), checkpoint_step=7)
    board.run(200.0)
    assert spare.membership.step in (Claiming.SPARE, Claiming.LOOKING)
    assert {(e.seat, e.checkpoint_step) for e in offers(spare)} == {(Seat(1, 0), 7)}
    for node in board.nodes[:4]:
        node.membership.set_progress(SeatState.ACTIVE, 8, 0, 8)
        board.carry_out(node, node.membership.publish_now(board.now))
    board.run(240.0)
    before = len(offers(spare))
    board.run(300.0)
    assert len(offers(spare)) <= before + 1  # replicas at work have it


def test_a_holder_offers_the_checkpoint_of_the_dead_stage_that_it_left() -> None:
    board = Board()
    board.start("keeper", Seat(1, 1), peers=False)
    node = board.start("a", Seat(0, 0), kept=((Seat(1, 0), 5),))
    board.run(100.0)
    assert node.membership.seat == Seat(0, 0)
    assert {e.seat for e in offers(node)} == {Seat(1, 0)}


def test_a_node_with_a_checkpoint_of_a_dead_stage_takes_that_stage_up() -> None:
    for kept, expected in ((Seat(1, 0), Seat(1, 0)), (Seat(1, 1), Seat(1, 0))):
        board = Board()
        worker = board.start("a", Seat(0, 0), peers=False)
        waiting = board.start("b", Seat(1, 1))  # holds its seat without weights
        board.run(40.0)
        board.activate(worker)
        board.run(41.0)
        node = board.start("c", checkpoint_seat=Seat(0, 1), checkpoint_step=9, kept=((kept, 3),))
        board.run(90.0)
        assert waiting.membership.seat == Seat(1, 1)
        assert node.membership.seat == expected


def test_seats_of_stages_that_do_not_fit_the_device_are_never_taken() -> None:
    board = Board()
    board.start("keeper", Seat(1, 1), peers=False)
    fitting = board.start("a", stages=frozenset({1}), checkpoint_seat=Seat(0, 0), checkpoint_step=3)
    board.run(60.0)
    assert fitting.membership.seat == Seat(1, 0)
    late = board.start("b", stages=frozenset({1}))
    board.run(160.0)
    assert late.membership.step in (Claiming.SPARE, Claiming.LOOKING)
    looks = [t for t, e in late.effects if isinstance(e, do.ReadSeats)]
    assert len(looks) < 30  # vacant seats that do not fit do not make it look all the time
