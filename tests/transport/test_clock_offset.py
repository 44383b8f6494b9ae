"""A Hello measures the peers' clocks both ways, through the real network layer."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import pytest
from loopback_swarm import ALICE, BOB, CAROL, Swarm

from noloco_node.core import limits
from noloco_node.core.types import PeerId
from noloco_node.errors import WrongRun


@dataclass
class Book:
    """`ClockBook` port of a machine whose wall clock is `ahead_s` off the true one."""

    ahead_s: float = 0.0
    found: list[tuple[PeerId, float, float, bool]] = field(default_factory=list)

    def wall_s(self) -> float:
        return time.time() + self.ahead_s

    def measured(self, peer: PeerId, ahead_s: float, error_s: float, *, asked: bool) -> None:
        self.found.append((peer, ahead_s, error_s, asked))


@pytest.mark.parametrize("ahead_s", [0.0, 12.5, -3600.0])
async def test_both_sides_of_a_hello_learn_how_far_their_clocks_differ(peers: Swarm, ahead_s: float) -> None:
    mine, theirs = Book(ahead_s), Book()
    alice, bob = await peers.add(ALICE, clocks=mine), await peers.add(BOB, clocks=theirs)
    await alice.network.hello(bob.peer)
    (peer, found_s, error_s, asked) = mine.found[-1]
    assert (peer, asked) == (bob.peer, True)
    assert abs(found_s - ahead_s) <= error_s + 0.01
    (peer, found_s, _, asked) = theirs.found[-1]
    assert (peer, asked) == (alice.peer, False)
    assert abs(found_s + ahead_s) < 2.0


async def test_slow_first_answer_is_not_what_is_measured(peers: Swarm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CLOCK_HELLO_S", -1.0)
    mine, theirs = Book(), Book()
    alice, bob = await peers.add(ALICE, clocks=mine), await peers.add(BOB, clocks=theirs)
    await alice.network.hello(bob.peer)
    assert (len(mine.found), len(theirs.found)) == (1, 2)


async def test_peer_of_another_run_measures_nothing(peers: Swarm) -> None:
    mine, theirs = Book(), Book()
    alice = await peers.add(ALICE, clocks=mine)
    other = await peers.add(CAROL, clocks=theirs, run="another-run")
    with pytest.raises(WrongRun):
        await alice.network.hello(other.peer)
    assert mine.found == theirs.found == []
