"""A swarm of real processes ends with exactly the weights of the in-process reference: slow, momentum and fast.

The reference computes the same training from the equations, without network, protocol or state machine.
"""

from collections.abc import Iterator

import pytest
import torch
from node_swarm import Watched, tiny_spec, watched_swarm

from noloco_node.core.types import Outcome
from noloco_node.lab.reference import ReferenceSwarm, build_reference

pytestmark = pytest.mark.slow
SHAPES = [(2, 2), (1, 4), (3, 2)]  # stages x replicas


@pytest.fixture(scope="module", params=SHAPES, ids=lambda shape: f"{shape[0]}x{shape[1]}")
def finished(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """A swarm that ran to its end by itself."""
    stages, replicas = request.param
    with watched_swarm(tmp_path_factory.mktemp("swarm"), tiny_spec(stages, replicas)) as watched:
        watched.start()
        watched.wait_for_end()
        yield watched


@pytest.fixture(scope="module")
def reference(finished: Watched) -> ReferenceSwarm:
    torch.set_num_threads(1)
    swarm = build_reference(finished.spec.training_settings())
    for outer_step in range(finished.spec.outer.total_outer_steps):
        swarm.run_outer_step(outer_step)
    return swarm


def test_losses_equal_those_of_the_reference(finished: Watched, reference: ReferenceSwarm) -> None:
    for seat, replica in reference.seats.items():
        assert [entry["loss"] for entry in finished.history(seat, "inner")] == replica.losses, seat


def test_weights_and_momentum_are_bit_equal_to_the_reference(finished: Watched, reference: ReferenceSwarm) -> None:
    for seat, replica in reference.seats.items():
        found = finished.newest_checkpoint(seat)
        assert found is not None, seat
        meta, tensors = found
        assert meta.outer_step == finished.spec.outer.total_outer_steps
        for part, expected in (("slow", replica.slow), ("momentum", replica.momentum), ("fast", replica.fast)):
            assert tensors[part].keys() == expected.keys()
            unequal = [name for name, value in expected.items() if not torch.equal(tensors[part][name], value)]
            assert unequal == [], (seat, part)


def test_every_outer_step_is_paired_with_the_drawn_partner(finished: Watched, reference: ReferenceSwarm) -> None:
    for seat in reference.seats:
        history = finished.history(seat, "outer")
        closed = [(e["outer_step"], e["outcome"], e["partner"]) for e in history]
        steps = range(finished.spec.outer.total_outer_steps)
        assert closed == [(k, Outcome.PAIRED, str(reference.partner(seat, k))) for k in steps], (seat, history)


def test_nothing_stays_behind(finished: Watched) -> None:
    finished.assert_nothing_left()
    assert len(finished.pids) == 2 * len(finished.swarm.nodes)  # each node had one child
