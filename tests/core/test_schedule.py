"""Clocks of the outer step and the learning-rate schedule."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noloco_node.core import schedule
from noloco_node.core.schedule import StepsClock, TimeClock


def test_position_of_a_fast_replica_stops_before_the_next_outer_step() -> None:
    assert [schedule.position(2, j, 10) for j in (0, 3, 9, 10, 99)] == [20, 23, 29, 29, 29]


def test_outer_step_k_is_due_at_the_end_of_interval_k() -> None:
    clock = TimeClock(start_s=100.0, outer_interval_s=60.0)
    assert clock.due_s(0) == 160.0
    assert clock.due(0, 160.0)
    assert not clock.due(0, 159.9)


def test_running_interval_is_zero_before_the_start() -> None:
    clock = TimeClock(start_s=100.0, outer_interval_s=60.0)
    assert [clock.running(now) for now in (0.0, 100.0, 159.9, 160.0, 279.9)] == [0, 0, 0, 1, 2]


def test_missed_outer_steps_are_skipped_on_the_time_clock() -> None:
    clock = TimeClock(start_s=0.0, outer_interval_s=10.0)
    assert clock.after(3, now=40.0) == 4
    assert clock.after(3, now=40.0 + 25.0) == 6


@given(st.floats(-1e9, 1e9), st.floats(1e-3, 1e6), st.integers(0, 10**5))
def test_a_due_step_is_always_followed_by_a_later_one(start_s: float, interval_s: float, outer_step: int) -> None:
    clock = TimeClock(start_s, interval_s)
    assert clock.after(outer_step, clock.due_s(outer_step)) >= outer_step + 1


@given(st.floats(0, 1e4), st.integers(0, 2000))
def test_the_running_step_is_never_one_already_due(offset_s: float, outer_step: int) -> None:
    clock = TimeClock(17.3, 0.1)
    now = clock.due_s(outer_step) + offset_s
    assert not clock.due(clock.running(now), now)


def test_stage_zero_steps_after_its_own_inner_steps() -> None:
    clock = StepsClock(stage=0, inner_steps=50)
    assert not clock.due(0, 49, [10_000])
    assert clock.due(0, 50, [])


def test_later_stages_step_when_half_of_the_origins_are_at_the_end() -> None:
    clock = StepsClock(stage=1, inner_steps=50)
    assert not clock.due(1, 500, [97, 98, 99, 98])
    assert clock.due(1, 0, [99, 99, 99, 10])
    assert not clock.due(1, 0, [99, 99, 10, 10])
    assert clock.due(1, 0, [120, 130, 140])
    assert not clock.due(1, 500, [])


def test_a_replica_behind_its_stage_jumps_to_the_median() -> None:
    clock = StepsClock(stage=1, inner_steps=50)
    assert clock.after(3, []) == 4
    assert clock.after(3, [3, 3, 4]) == 4
    assert clock.after(3, [9, 9, 2]) == 9
    assert clock.after(9, [3, 3]) == 10


@given(st.lists(st.integers(-100, 100), min_size=1))
def test_more_than_half_reach_the_median(values: list[int]) -> None:
    middle = schedule.median(values)
    assert sum(value >= middle for value in values) * 2 > len(values)
    assert sum(value > middle for value in values) * 2 <= len(values)


def test_learning_rate_warms_up_linearly_and_ends_at_its_ratio() -> None:
    factor = [schedule.learning_rate_factor(p, 10, 110, 0.1) for p in range(200)]
    assert factor[0] == pytest.approx(0.1)
    assert factor[9] == 1.0
    assert factor[10] == 1.0
    assert factor[60] == pytest.approx(0.55)
    assert factor[110:] == [pytest.approx(0.1)] * 90
    assert all(a >= b for a, b in pairwise(factor[10:]))


def test_learning_rate_without_warm_up_begins_at_the_peak() -> None:
    assert schedule.learning_rate_factor(0, 0, 100, 0.0) == 1.0


@given(st.integers(0, 10**6), st.integers(0, 1000), st.integers(0, 10**6), st.floats(0, 1))
def test_learning_rate_factor_stays_between_zero_and_one(position: int, warmup: int, total: int, ratio: float) -> None:
    factor = schedule.learning_rate_factor(position, warmup, total, ratio)
    assert math.isfinite(factor)
    assert 0 <= factor <= 1
