"""A replica of the last stage is killed in mid-run: the others finish the run without it."""

import signal
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from node_swarm import Watched, tiny_spec, watched_swarm

from noloco_node.core.types import Admit, Outcome, Phase, Seat

pytestmark = pytest.mark.slow
LOST, PARTNER = Seat(1, 1), Seat(1, 0)
OUTER_STEPS = 5


@pytest.fixture(scope="module")
def bereft(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """A 2 x 2 swarm at its end, in which 1.1 was killed after its first outer step."""
    # the lost one's partner waits for it grace_s long and is busy meanwhile: nothing is late before that
    timing = {"lease_s": 10.0, "renew_s": 2.5, "grace_s": 10.0, "exchange_max_s": 20.0, "late_s": 40.0}
    spec = tiny_spec(2, 2, admit=Admit.ARRIVAL, inner_steps=20, total_outer_steps=OUTER_STEPS, timing=timing)
    with watched_swarm(tmp_path_factory.mktemp("bereft"), spec) as watched:
        watched.start()
        lost = watched.node(LOST.stage, LOST.replica)
        watched.wait_for_status(lost, is_inside_second_phase, "is inside its second phase")
        assert watched.stop(lost, signal.SIGKILL) == -signal.SIGKILL
        watched.wait_for_end(lost)
        yield watched


def is_inside_second_phase(status: dict[str, Any]) -> bool:
    return status["phase"] == Phase.TRAINING and status["outer_step"] >= 1 and status["inner_step"] >= 2


def survivors(bereft: Watched) -> list[Seat]:
    return [seat for seat in bereft.swarm.seats if seat != LOST]


def test_the_partner_pairs_before_and_goes_on_alone_after(bereft: Watched) -> None:
    closed = bereft.history(PARTNER, "outer")
    outcomes = [entry["outcome"] for entry in closed]
    assert outcomes[0] == Outcome.PAIRED
    assert outcomes[-1] == Outcome.SOLO
    assert Counter(outcomes)[Outcome.SOLO] >= OUTER_STEPS - 2 - 1


def test_the_loss_costs_the_other_stage_one_step_at_most(bereft: Watched) -> None:
    """The only replica left to take its micro-batches waits grace_s for the lost one: as long as the partners of the
    first stage wait for each other. That wait falls into their same step or, when they had ended it, into the next."""
    loss = next(e["outer_step"] for e in bereft.history(PARTNER, "outer") if e["outcome"] == Outcome.SOLO)
    for seat in (Seat(0, 0), Seat(0, 1)):
        closed = bereft.history(seat, "outer")
        assert len(closed) == OUTER_STEPS
        alone = [entry["outer_step"] for entry in closed if entry["outcome"] != Outcome.PAIRED]
        assert alone in ([], [loss], [loss + 1]), (seat, closed, bereft.history(PARTNER, "outer"))


def test_every_survivor_ends_the_run_with_its_last_checkpoint(bereft: Watched) -> None:
    for seat in survivors(bereft):
        found = bereft.newest_checkpoint(seat)
        assert found is not None, seat
        assert found[0].outer_step == OUTER_STEPS, seat


def test_no_inner_step_of_the_survivors_is_void(bereft: Watched) -> None:
    """What the lost replica had, and what was meant for it, goes to the next candidate instead of being given up."""
    for seat in survivors(bereft):
        void = [entry["position"] for entry in bereft.history(seat, "inner") if not entry["applied"]]
        assert void == [], seat


def test_nothing_of_the_killed_node_runs_on(bereft: Watched) -> None:
    assert bereft.left_over() == []
