"""A node killed and started again five times: same identity, same seat, and no sample lost or counted twice."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest
from node_swarm import Watched, tiny_spec, watched_swarm

from noloco_node.core.types import Seat

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # a busy machine takes minutes to start the processes
SEAT = Seat(0, 0)
CYCLES = 5


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """Killed five times in the midst of a phase; the sixth process is stopped well."""
    spec = tiny_spec(1, 1, micro_batches=1, inner_steps=20, total_outer_steps=1000)
    with watched_swarm(tmp_path_factory.mktemp("crashed"), spec) as watched:
        watched.start()
        node, reached = watched.node(0, 0), 0
        for _ in range(CYCLES):
            status = watched.wait_for_status(
                node, lambda s, least=reached + 1: s.get("outer_step", 0) >= least and s["inner_step"] > 2, "trains on"
            )
            reached = status["outer_step"]
            assert watched.stop(node, signal.SIGKILL) == -signal.SIGKILL
            node = watched.spawn(SEAT)
        watched.wait_for_status(node, lambda s: s.get("outer_step", 0) > reached, "trains on")
        assert watched.stop(node) == 0
        yield watched


def spread(ranges: list[list[int]]) -> list[int]:
    return [n for first, last in ranges for n in range(first, last + 1)]


def cut_back(lines: list[dict[str, Any]]) -> list[int]:
    """Sample numbers trained, in order; at each restart those after the checkpoint that was loaded are cut off."""
    kept: list[tuple[int, list[int]]] = []  # data_next of the checkpoint, samples of the account before it
    for line in lines:
        if line["kind"] == "loaded":
            kept = [(data_next, trained) for data_next, trained in kept if data_next <= line["data_next"]]
        elif line["data_next"] is not None:
            kept.append((line["data_next"], spread(line["trained"])))
    return [n for _, trained in kept for n in trained]


def test_sample_numbers_cut_back_at_each_restart_show_no_gap_and_no_repeat(crashed: Watched) -> None:
    lines = sorted(crashed.history(SEAT, "loaded") + crashed.history(SEAT, "micro_batches"), key=lambda e: e["unix_s"])
    assert [line["source"] for line in lines if line["kind"] == "loaded"] == ["seed"] + CYCLES * ["checkpoint"]
    trained = cut_back(lines)
    assert trained == list(range(len(trained)))
    assert len(trained) >= 20 * CYCLES


def test_what_was_drawn_again_is_counted(crashed: Watched) -> None:
    loaded = crashed.log(SEAT, "state_loaded")
    assert loaded[0]["drawn_again"] == 0
    assert all(3 <= entry["drawn_again"] <= 40 for entry in loaded[1:]), loaded
    assert crashed.swarm.nodes[-1].status["micro_batches"]["drawn_again"] == loaded[-1]["drawn_again"]


def test_identity_and_seat_stay_without_a_manual_step(crashed: Watched) -> None:
    statuses = [node.status for node in crashed.swarm.nodes]
    assert len({status["peer"] for status in statuses}) == 1
    assert {status["seat"] for status in statuses} == {str(SEAT)}


def test_the_next_start_removes_what_a_killed_process_left(crashed: Watched) -> None:
    assert crashed.left_over() == []
    assert crashed.sockets_left() == []
