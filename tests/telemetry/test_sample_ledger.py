"""The account of own micro-batches in history.jsonl: each number begun ends once; no checkpoint runs ahead of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from noloco_node.core import effects as do
from noloco_node.core import events as ev
from noloco_node.core.types import Seat
from noloco_node.telemetry.history import HistoryLog
from noloco_node.telemetry.sample_ledger import ranges

SEAT = Seat(0, 3)


class Clock:
    def __call__(self) -> float:
        return 1.0


@pytest.fixture
def history(tmp_path: Path) -> HistoryLog:
    return HistoryLog(tmp_path / "history.jsonl", Clock())


def load(history: HistoryLog, data_next: int = 0, seat: Seat = SEAT) -> None:
    history.effect(do.LoadCheckpoint(seat))
    history.event(ev.StateLoaded(0, 0, data_next, "checkpoint"))


def begin(history: HistoryLog, call: int, n: int) -> None:
    history.event(ev.MicroBatchDrawn(call, n, tokens=8))
    history.effect(do.RunForward(call))


def train(history: HistoryLog, call: int) -> None:
    history.effect(do.RunBackward(call))
    history.event(ev.BackwardDone(call))
    history.effect(do.ForgetMicroBatch(call))


def accounts(tmp_path: Path) -> list[dict[str, Any]]:
    lines = map(json.loads, (tmp_path / "history.jsonl").read_text().splitlines())
    return [line for line in lines if line["kind"] == "micro_batches"]


def test_each_number_ends_once_trained_or_dropped_and_what_was_not_begun_is_neither(
    history: HistoryLog, tmp_path: Path
) -> None:
    load(history)
    for n in range(4):
        begin(history, 10 + n, n)
    history.event(ev.MicroBatchDrawn(14, 4, tokens=8))  # read ahead
    train(history, 10)
    train(history, 12)
    history.effect(do.ForgetMicroBatch(11))
    history.effect(do.SaveCheckpoint(1, 0, 3, None))
    history.effect(do.ForgetMicroBatch(14))
    history.effect(do.ForgetMicroBatch(13))
    history.effect(do.Leave("stop"))
    first, last = accounts(tmp_path)
    assert (first["trained"], first["dropped"], first["open"]) == ([[0, 0], [2, 2]], [[1, 1]], [[3, 3]])
    assert (first["seat"], first["data_next"]) == ("0.3", 3)
    assert (last["trained"], last["dropped"], last["open"], last["data_next"]) == ([], [[3, 3]], [], None)


def test_the_account_is_on_disk_before_the_checkpoint_is_begun(history: HistoryLog, tmp_path: Path) -> None:
    load(history)
    begin(history, 1, 0)
    train(history, 1)
    history.effect(do.SaveCheckpoint(1, 0, 1, None))  # the observer hears the effect before it is carried out
    assert accounts(tmp_path)[0]["trained"] == [[0, 0]]


def test_what_is_computed_without_counting_is_not_trained(history: HistoryLog, tmp_path: Path) -> None:
    load(history)
    begin(history, 1, 0)
    history.effect(do.RunBackward(1, count=False))
    history.event(ev.BackwardDone(1))
    history.effect(do.ForgetMicroBatch(1))
    history.effect(do.Leave("finished"))
    assert accounts(tmp_path)[0]["dropped"] == [[0, 0]]


def test_another_seat_begins_a_new_account(history: HistoryLog, tmp_path: Path) -> None:
    load(history)
    begin(history, 1, 0)
    train(history, 1)
    load(history, data_next=70, seat=Seat(0, 1))
    begin(history, 2, 70)
    train(history, 2)
    history.effect(do.Leave("stop"))
    before, after = accounts(tmp_path)
    assert (before["seat"], before["trained"]) == ("0.3", [[0, 0]])
    assert (after["seat"], after["trained"]) == ("0.1", [[70, 70]])


def test_strangers_micro_batches_and_late_graphs_are_only_counted(history: HistoryLog, tmp_path: Path) -> None:
    load(history)
    history.effect(do.RunForward(5))
    history.effect(do.DropGraph(5))
    history.event(ev.HopBroken(5, Seat(1, 0), "lost"))
    history.effect(do.ForgetMicroBatch(5, answer_dropped=True))
    history.effect(do.Leave("stop"))
    found = accounts(tmp_path)[0]
    assert (found["trained"], found["dropped"], found["late"], found["resent"]) == ([], [], 1, 1)


def test_ranges_are_unbroken_runs() -> None:
    assert ranges([3, 1, 2, 7, 9, 8]) == [[1, 3], [7, 9]]
    assert ranges([]) == []
