"""What counts as a hang in a chaos run."""

from __future__ import annotations

from typing import Any

import pytest
from hang_watch import GETTING_READY_S, HangWatch

LIMIT_S = 20.0


def status(outer_step: int, phase: str = "training", waits_for: str = "") -> dict[str, Any]:
    return {"phase": phase, "outer_step": outer_step, "waits_for": waits_for}


@pytest.fixture
def watch() -> HangWatch:
    return HangWatch(LIMIT_S)


def test_a_node_whose_outer_step_stands_longer_than_the_limit_hangs_once(watch: HangWatch) -> None:
    for now_s in range(60):
        watch.heard("n0", status(3, "exchanging" if now_s % 2 else "training"), float(now_s))
    assert [(hang.node, hang.outer_step) for hang in watch.hangs] == [("n0", 3)]


def test_a_node_that_moves_on_does_not(watch: HangWatch) -> None:
    for now_s in range(100):
        watch.heard("n0", status(now_s // 15), float(now_s))
    assert watch.hangs == []


def test_a_node_that_falls_silent_hangs_too(watch: HangWatch) -> None:
    watch.heard("n0", status(1), 0.0)
    watch.look({"n0": status(1)}, LIMIT_S + 1)
    assert len(watch.hangs) == 1


def test_a_stopped_process_is_not_alive_until_it_goes_on(watch: HangWatch) -> None:
    watch.heard("n0", status(1), 0.0)
    watch.stopped("n0")
    watch.look({"n0": status(1)}, 50.0)
    watch.goes_on("n0", 50.0)
    watch.heard("n0", status(1), 51.0)
    watch.heard("n0", status(1), 69.0)
    assert watch.hangs == []
    watch.heard("n0", status(1), 72.0)
    assert len(watch.hangs) == 1


def test_a_spare_may_wait_but_a_node_that_never_gets_its_weights_hangs(watch: HangWatch) -> None:
    for now_s in (0.0, GETTING_READY_S + 1):
        watch.heard("spare", status(0, "joining", "every seat is taken: a spare"), now_s)
        watch.heard("lost", status(0, "syncing", "no donor"), now_s)
    assert [hang.node for hang in watch.hangs] == ["lost"]
