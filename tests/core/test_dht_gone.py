"""The DHT is gone for many leases: nodes that know one another train on, in pairs (DESIGN 4)."""

from __future__ import annotations

from dataclasses import replace

import pytest
import virtual_swarm
from virtual_swarm import VirtualNode, VirtualSwarm

from noloco_node.core import effects as do
from noloco_node.core import events as ev
from noloco_node.core import limits
from noloco_node.core.claiming import Claiming
from noloco_node.core.types import Clock, Outcome, Phase, Settings

INTERVAL_S = 300.0  # far longer than a lease: no call of the exchange confirms one in time
SETTINGS = Settings(
    run="r",
    seed=7,
    num_stages=2,
    num_replicas=4,
    micro_batches=2,
    inner_steps=5,
    total_outer_steps=0,
    start_seats=8,
    clock=Clock.TIME,
    outer_interval_s=INTERVAL_S,
    grace_s=20.0,
    settle_s=1.0,
)


class Outage:
    """While `is_on` no look-up finds anybody and no store reaches anybody; a record is shown on calls all the same."""

    def __init__(self) -> None:
        self.is_on = False

    def read(self, node: VirtualNode, effect: do.ReadSeats) -> None:
        node.later(limits.DHT_RPC_DEADLINE_S, ev.SeatsRead(effect.seats, reached=False))


@pytest.fixture
def outage(monkeypatch: pytest.MonkeyPatch) -> Outage:
    made, read, publish = Outage(), VirtualNode.do_ReadSeats, VirtualNode.do_PublishRecord

    def do_read(node: VirtualNode, effect: do.ReadSeats) -> None:
        made.read(node, effect) if made.is_on else read(node, effect)

    def do_publish(node: VirtualNode, effect: do.PublishRecord) -> None:
        known = dict(node.swarm.dht[effect.seat])
        publish(node, effect)
        if not made.is_on:
            return

        def undo() -> None:
            node.swarm.dht[effect.seat] = known

        node.swarm.at(node.swarm.now + virtual_swarm.DHT_S + 1e-6, undo)

    def do_show(node: VirtualNode, effect: do.ShowRecord) -> None:
        for peer in effect.peers:
            other = node.swarm.by_peer(peer)
            if other.alive and other.left is None:
                other.meet(node)
                node.later(virtual_swarm.HOP_S, ev.PeerAnswered(peer))

    feed = VirtualNode.feed

    def heard(node: VirtualNode, event: ev.Event) -> None:
        if made.is_on and isinstance(event, ev.RecordPublished):
            event = ev.RecordPublished(event.record, event.lives_s, confirmed=False)
        feed(node, event)

    monkeypatch.setattr(VirtualNode, "do_ReadSeats", do_read)
    monkeypatch.setattr(VirtualNode, "do_PublishRecord", do_publish)
    monkeypatch.setattr(VirtualNode, "do_ShowRecord", do_show, raising=False)
    monkeypatch.setattr(VirtualNode, "feed", heard)
    return made


def test_a_swarm_without_a_dht_trains_on_in_pairs_and_every_lease_is_kept(outage: Outage) -> None:
    swarm = VirtualSwarm(SETTINGS)
    for node in swarm.nodes:
        node.compute_s = 2.0
    swarm.run(60.0, until=lambda: all(n.machine.phase is Phase.TRAINING for n in swarm.nodes))
    claims = [node.machine.membership.claim for node in swarm.nodes]
    outage.is_on = True
    swarm.run(4 * INTERVAL_S)
    assert [node.machine.membership.step for node in swarm.nodes] == [Claiming.HOLDING] * 8
    assert [node.machine.membership.claim for node in swarm.nodes] == claims
    assert swarm.outcomes()[Outcome.SOLO] == 0
    assert all(len(node.closed) >= 3 for node in swarm.nodes)
    shown = [e for n in swarm.nodes for _, e in n.log if isinstance(e, do.ShowRecord)]
    assert max(len(e.peers) for e in shown) <= limits.SHOWN_MAX


def test_who_is_cut_off_from_everybody_trains_on_alone(outage: Outage) -> None:
    swarm = VirtualSwarm(replace(SETTINGS, num_stages=1, start_seats=0))
    node = swarm.nodes[1]
    node.compute_s = 1.0
    swarm.run(60.0, until=lambda: node.machine.phase is Phase.TRAINING)
    for other in swarm.nodes:
        other.alive = other is node
    outage.is_on = True
    swarm.run(10 * SETTINGS.lease_s)
    assert node.machine.membership.step is Claiming.RECHECKING
    steps = len(node.steps)
    swarm.run(60.0)
    assert len(node.steps) > steps
