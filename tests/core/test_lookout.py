"""Looking for seats costs a bounded number of look-ups, whatever the size of the table."""

from noloco_node.core import effects as do
from noloco_node.core import limits
from noloco_node.core.lookout import Lookout
from noloco_node.core.types import Seat, Settings

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
