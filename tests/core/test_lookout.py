"""Looking for seats costs a bounded number of look-ups, whatever the size of the table."""

from dataclasses import replace

from noloco_node.core import effects as do
from noloco_node.core import limits
from noloco_node.core.exchange_desk import ExchangeDesk
from noloco_node.core.flow import MicroBatchFlow
from noloco_node.core.lookout import Lookout
from noloco_node.core.types import PeerId, Seat, Settings

SETTINGS = Settings(
    run="r", seed=1, num_stages=1, num_replicas=300, micro_batches=1, inner_steps=1, total_outer_steps=0
)


def looked(lookout: Lookout, now: float) -> list[Seat]:
    effects = lookout.look(lookout.replicas_of(0), now)
    return [seat for effect in effects if isinstance(effect, do.ReadSeats) for seat in effect.seats]


def test_a_second_has_as_many_look_ups_as_a_sweep() -> None:
    lookout = Lookout(SETTINGS, lambda seat: None)
    first = [looked(lookout, now) for now in (0.0, 0.1, 0.9)]
    assert [len(seats) for seats in first] == [limits.SWEEP_SEATS_PER_RENEWAL, 0, 0]


def test_all_seats_of_a_large_stage_are_read_in_turn() -> None:
    lookout = Lookout(SETTINGS, lambda seat: None)
    seats = [seat for second in range(5) for seat in looked(lookout, float(second))]
    assert set(seats) == set(lookout.replicas_of(0))


def vacant_ones_read(num_replicas: int, seconds: int) -> list[Seat]:
    """By a node of stage 0 that knows one replica of the next stage, each second."""
    settings, known = replace(SETTINGS, num_stages=2, num_replicas=num_replicas), Seat(1, num_replicas - 1)
    lookout = Lookout(settings, lambda seat: PeerId("other") if seat == known else None)
    flow, desk = MicroBatchFlow(settings, Seat(0, 0), data_next=0), ExchangeDesk(settings, Seat(0, 0), 1)
    effects = [effect for now in range(seconds) for effect in lookout.look_around(flow, desk, [], float(now))]
    return [seat for effect in effects if isinstance(effect, do.ReadSeats) for seat in effect.seats]


def test_vacant_seats_of_the_next_stage_are_read_one_sweep_a_renewal() -> None:
    renewal_s = int(SETTINGS.renew_s)
    assert len(vacant_ones_read(300, renewal_s)) <= limits.SWEEP_SEATS_PER_RENEWAL
    assert len(set(vacant_ones_read(300, 5 * renewal_s))) == 299
    assert len(vacant_ones_read(3000, 5 * renewal_s)) <= 5 * limits.SWEEP_SEATS_PER_RENEWAL
    assert len(vacant_ones_read(40, renewal_s)) == 39


def test_a_node_that_knows_none_of_the_next_stage_reads_all_of_it() -> None:
    settings = replace(SETTINGS, num_stages=2)
    lookout = Lookout(settings, lambda seat: None)
    flow, desk = MicroBatchFlow(settings, Seat(0, 0), data_next=0), ExchangeDesk(settings, Seat(0, 0), 1)
    effects = [effect for now in range(5) for effect in lookout.look_around(flow, desk, [], float(now))]
    read = {seat for effect in effects if isinstance(effect, do.ReadSeats) for seat in effect.seats}
    assert read == set(lookout.replicas_of(1))
    assert lookout.waits_for == "no replica of stage 1 is known"


def silent_ones_read(num_replicas: int, seconds: int, known: Seat | None) -> list[Seat]:
    """By a node of the last stage to which nothing comes, each second."""
    settings = replace(SETTINGS, num_stages=2, num_replicas=num_replicas, idle_close_s=0.0)
    lookout = Lookout(settings, lambda seat: PeerId("other") if seat == known else None)
    flow, desk = MicroBatchFlow(settings, Seat(1, 0), data_next=0), ExchangeDesk(settings, Seat(1, 0), 1)
    effects = [effect for now in range(1, seconds + 1) for effect in lookout.look_around(flow, desk, [], float(now))]
    return [seat for effect in effects if isinstance(effect, do.ReadSeats) for seat in effect.seats]


def test_a_starved_replica_reads_the_stage_before_it_once_a_renewal_while_it_knows_one_there() -> None:
    renewal_s = int(SETTINGS.renew_s)
    assert len(silent_ones_read(40, renewal_s, Seat(0, 3))) == 40
    assert len(silent_ones_read(300, renewal_s, Seat(0, 3))) <= limits.SWEEP_SEATS_PER_RENEWAL
    assert len(silent_ones_read(40, renewal_s, None)) == 40 * renewal_s
