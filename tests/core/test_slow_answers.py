"""The answer to an OFFER may take longer than an inner phase: the boundary waits for it, not the pair for luck."""

from dataclasses import replace

import pytest
from virtual_swarm import HOP_S, VirtualNode, VirtualSwarm

from noloco_node.core import effects as do
from noloco_node.core import events as ev
from noloco_node.core import limits
from noloco_node.core.types import Clock, Outcome, Settings

SLOW_S = 8.0  # an inner phase takes 2.5 s
SETTINGS = Settings(
    run="r",
    seed=7,
    num_stages=1,
    num_replicas=2,
    micro_batches=4,
    inner_steps=5,
    total_outer_steps=3,
    start_seats=2,
    clock=Clock.STEPS,
    grace_s=20.0,
    settle_s=1.0,
)


def ask_slowly(node: VirtualNode, e: do.SendOffer) -> None:
    """As the virtual swarm does it, but the question is long under way."""
    target = node.swarm.by_peer(e.peer)

    def ask() -> None:
        if not target.alive or target.left is not None:
            node.later(HOP_S, ev.OfferAnswered(e.offer, None))
            return
        target.meet(node)
        ticket = next(node.swarm.calls)
        target.feed(ev.OfferReceived(ticket, e.offer, node.peer))
        node.later(HOP_S, ev.OfferAnswered(e.offer, target.answers.pop(ticket, None)))

    node.swarm.at(node.swarm.now + SLOW_S, ask)


@pytest.fixture
def slow_offers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(VirtualNode, "do_SendOffer", ask_slowly)


@pytest.mark.usefixtures("slow_offers")
def test_every_outer_step_is_paired_though_answers_outlast_the_phase() -> None:
    swarm = VirtualSwarm(SETTINGS)
    swarm.run_to_end()
    assert swarm.outcomes() == {Outcome.PAIRED: 6, Outcome.SOLO: 0}
    for node in swarm.nodes:
        assert len(node.steps) == 15  # nothing was trained beyond the boundary that waited
        assert set(node.in_flight_at_change) == {0}


@pytest.mark.usefixtures("slow_offers")
def test_partner_that_dies_under_way_costs_one_answer_and_no_more() -> None:
    swarm = VirtualSwarm(replace(SETTINGS, lease_s=10.0, renew_s=3.0))
    swarm.run(60.0, until=lambda: any(node.steps for node in swarm.nodes))
    swarm.nodes[1].alive = False
    swarm.run_to_end()
    assert swarm.nodes[0].left is not None
    assert swarm.nodes[0].left.reason == "finished"
    assert [closed.outcome for closed in swarm.nodes[0].closed] == [Outcome.SOLO] * 3


def break_first_offers(node: VirtualNode, e: do.SendOffer) -> None:
    """The call breaks at the end of the phase; the next one is answered at once."""
    first = (node.peer, e.offer.outer_step) not in BROKEN
    BROKEN.add((node.peer, e.offer.outer_step))
    if first:
        node.later(PHASE_S, ev.OfferAnswered(e.offer, None))
    else:
        VIRTUAL_OFFER(node, e)


BROKEN: set[tuple[str, int]] = set()
PHASE_S = 2.5
VIRTUAL_OFFER = VirtualNode.do_SendOffer


def test_a_boundary_waits_for_the_second_offer_when_the_first_broke(monkeypatch: pytest.MonkeyPatch) -> None:
    BROKEN.clear()
    monkeypatch.setattr(VirtualNode, "do_SendOffer", break_first_offers)
    swarm = VirtualSwarm(SETTINGS)
    swarm.run_to_end()
    assert swarm.outcomes() == {Outcome.PAIRED: 6, Outcome.SOLO: 0}


def test_offers_that_break_for_ever_hold_a_boundary_three_times_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    offers: list[tuple[str, int]] = []

    def broken(node: VirtualNode, e: do.SendOffer) -> None:
        offers.append((node.peer, e.offer.outer_step))
        node.later(PHASE_S, ev.OfferAnswered(e.offer, None))

    monkeypatch.setattr(VirtualNode, "do_SendOffer", broken)
    swarm = VirtualSwarm(SETTINGS)
    swarm.run_to_end()
    assert swarm.outcomes() == {Outcome.PAIRED: 0, Outcome.SOLO: 6}
    assert max(map(offers.count, offers)) == limits.OFFER_TRIES_MAX
