"""What a list of peers does to seats: whoever is barred holds none in our view, and may come back."""

from dataclasses import replace

from driver_bench import ME, PEER, SETTINGS, THERE, THIRD, Bench, record_of

from noloco_node.core import effects as do
from noloco_node.core import events as ev
from noloco_node.core.seats import Roster
from noloco_node.core.types import PeerId
from noloco_node.driver.barring import departures
from noloco_node.errors import NotAdmitted, PeerRefused


def only(barred: PeerId) -> object:
    return lambda peer: "denied" if peer == barred else ""


def test_seat_of_a_barred_peer_is_vacant_and_the_next_claim_of_it_counts() -> None:
    roster = Roster(SETTINGS)
    for number, peer in enumerate((PEER, THIRD)):
        roster.learn(record_of(peer, claim=number), 60.0, 0.0)
    (gone,) = departures(roster, only(PEER), 0.0)  # type: ignore[arg-type]
    assert roster.learn(gone, 60.0, 0.0)
    assert roster.holder(THERE, 0.0) == record_of(THIRD, claim=1)


def test_peer_that_is_admitted_again_takes_its_seat_with_its_next_record() -> None:
    roster, record = Roster(SETTINGS), record_of(PEER)
    roster.learn(record, 60.0, 0.0)
    (gone,) = departures(roster, only(PEER), 0.0)  # type: ignore[arg-type]
    roster.learn(gone, 60.0, 0.0)
    assert not roster.learn(record, 60.0, 0.0)
    later = replace(record, seq=record.seq + 20_000, expires=record.expires + 20_000)
    assert roster.learn(later, 60.0, 0.0)
    assert roster.active_holder(THERE, 0.0) == later


async def test_record_of_a_barred_peer_never_reaches_the_machine(bench: Bench) -> None:
    bench.driver.doorkeeper.barred = only(PEER)  # type: ignore[assignment]
    bench.discovery.found[THERE] = [record_of(PEER), record_of(THIRD)]
    await bench.tell(do.ReadSeats((THERE,)))
    assert [event.record.peer for event in bench.machine.of(ev.RecordLearnt)] == [THIRD]


async def test_new_list_ends_the_seats_of_those_it_bars_and_of_nobody_else(bench: Bench) -> None:
    roster = bench.machine.membership.roster
    for peer in (ME, PEER, THIRD):
        roster.learn(record_of(peer), 60.0, 0.0)
    bench.driver.doorkeeper.barred = only(PEER)  # type: ignore[assignment]
    bench.driver.forget_barred()
    told = bench.machine.of(ev.RecordLearnt)
    assert [(event.record.peer, event.record.state) for event in told] == [(PEER, "leaving")]
    assert told[0].lives_s > 0


def test_refusal_keeps_the_peers_word_for_it() -> None:
    assert PeerRefused("peer: permission_denied: denied", "denied").reason == "denied"
    assert NotAdmitted("cause").code == 28
