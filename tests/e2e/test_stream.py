"""Mode stream with real nodes: fragments travel as lattice indices while training runs on."""

import time
from collections.abc import Iterator

import pytest
from node_swarm import Watched, tiny_spec, watched_swarm

from noloco_node.core.types import Admit, Outcome, Seat

pytestmark = pytest.mark.slow
FRAGMENTS, OUTER_STEPS, INTERVAL_S = 3, 12, 2.5
START_S = 25.0  # until when two nodes are up on a busy machine
SETTLED = FRAGMENTS  # outer steps after which nobody is starting any more


@pytest.fixture(scope="module")
def streamed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    spec = tiny_spec(
        1,
        2,
        admit=Admit.ARRIVAL,
        micro_batches=1,
        mode="stream",
        codec="lattice4",
        fragments=FRAGMENTS,
        clock="time",
        outer_interval_s=INTERVAL_S,
        start_unix_s=time.time() + START_S,
        inner_steps=20,
        total_outer_steps=OUTER_STEPS,
    )
    with watched_swarm(tmp_path_factory.mktemp("streamed"), spec) as watched:
        watched.start()
        watched.wait_for_end()
        yield watched


@pytest.mark.parametrize("seat", [Seat(0, 0), Seat(0, 1)], ids=str)
def test_outer_steps_are_paired_while_training_runs_on(streamed: Watched, seat: Seat) -> None:
    closed = {entry["outer_step"]: entry for entry in streamed.history(seat, "outer")}
    outcomes = {step: entry["outcome"] for step, entry in closed.items() if step >= SETTLED}
    assert outcomes == dict.fromkeys(range(SETTLED, OUTER_STEPS), Outcome.PAIRED), closed
    assert all(entry["applied"] for entry in streamed.history(seat, "inner"))


@pytest.mark.parametrize("seat", [Seat(0, 0), Seat(0, 1)], ids=str)
def test_checkpoints_are_whole_and_of_whole_rounds(streamed: Watched, seat: Seat) -> None:
    found = streamed.newest_checkpoint(seat)
    assert found is not None
    assert found[0].outer_step == OUTER_STEPS
