"""A node alone: interrupted, killed and started again, it ends with the bits of the uninterrupted reference."""

import signal
from collections.abc import Iterator

import pytest
import torch
from node_swarm import Watched, tiny_spec, watched_swarm

from noloco_node.cli.local_swarm import LocalNode
from noloco_node.core.types import Outcome, Phase, Seat
from noloco_node.errors import ExitCode
from noloco_node.lab.reference import build_reference

pytestmark = pytest.mark.slow
SEAT = Seat(0, 0)
INNER_STEPS, OUTER_STEPS = 30, 6


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """Three processes one after the other: Ctrl-C, SIGKILL, and the end of the run, where SIGTERM comes as well.

    One micro-batch makes an inner step, so that the step which a stop closes early is a whole one.
    """
    spec = tiny_spec(1, 1, micro_batches=1, inner_steps=INNER_STEPS, total_outer_steps=OUTER_STEPS)
    with watched_swarm(tmp_path_factory.mktemp("alone"), spec) as watched:
        watched.start()
        interrupted = watched.node(0, 0)
        wait_for_outer_step(watched, interrupted, 1)
        assert watched.stop(interrupted, signal.SIGINT) == ExitCode.OK
        killed = watched.spawn(SEAT)
        wait_for_outer_step(watched, killed, 3)
        assert watched.stop(killed, signal.SIGKILL) == -signal.SIGKILL
        last = watched.spawn(SEAT)
        watched.wait_for_phase(last, Phase.DRAINING)
        assert watched.stop(last, signal.SIGTERM) == ExitCode.OK
        yield watched


def wait_for_outer_step(watched: Watched, node: LocalNode, outer_step: int) -> None:
    watched.wait_for_status(node, lambda s: s.get("outer_step", 0) >= outer_step and s["inner_step"] > 2, "trains")


def test_it_came_back_in_the_same_seat_with_the_same_identity_from_its_checkpoint(alone: Watched) -> None:
    peers = {node.status["peer"] for node in alone.swarm.nodes}
    assert len(alone.swarm.nodes) == 3
    assert len(peers) == 1
    loaded = alone.history(SEAT, "loaded")
    assert [entry["source"] for entry in loaded] == ["seed", "checkpoint", "checkpoint"]
    assert loaded[1]["data_next"] > INNER_STEPS  # inside a phase: the interrupt saved where it was
    assert loaded[2]["data_next"] == loaded[2]["outer_step"] * INNER_STEPS  # the last boundary before the kill


def test_every_outer_step_is_taken_alone(alone: Watched) -> None:
    closed = {entry["outer_step"]: entry["outcome"] for entry in alone.history(SEAT, "outer")}
    assert closed == dict.fromkeys(range(OUTER_STEPS), Outcome.SOLO)


def test_weights_are_bit_equal_to_the_reference_that_was_never_interrupted(alone: Watched) -> None:
    torch.set_num_threads(1)
    reference = build_reference(alone.spec.training_settings())
    for outer_step in range(OUTER_STEPS):
        reference.run_outer_step(outer_step)
    replica, found = reference.seats[SEAT], alone.newest_checkpoint(SEAT)
    assert found is not None
    meta, tensors = found
    assert (meta.outer_step, meta.inner_step) == (OUTER_STEPS, 0)
    for part, expected in (("slow", replica.slow), ("momentum", replica.momentum), ("fast", replica.fast)):
        assert [name for name, value in expected.items() if not torch.equal(tensors[part][name], value)] == [], part


def test_only_the_killed_process_left_its_sockets(alone: Watched) -> None:
    assert alone.left_over() == []
    kinds = [name.rsplit("-", 1)[0] for name in alone.sockets_left()]
    assert len(kinds) == len(set(kinds))
