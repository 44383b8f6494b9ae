"""A clock that is off is told, and refused at the start; one that is set in mid-run changes nothing at once."""

from __future__ import annotations

import logging

import pytest

from noloco_node.core import events as ev
from noloco_node.core import limits
from noloco_node.core.machine import Machine
from noloco_node.core.types import Clock, PeerId, Settings
from noloco_node.driver.clock import SteadyClock
from noloco_node.driver.clock_watch import ClockWatch
from noloco_node.driver.peer_clocks import PeerClocks
from noloco_node.errors import ClockOff, ExitCode, NolocoError

SKEW_MAX_S = 3.0
STEPS = {"micro_batches": 1, "inner_steps": 2, "total_outer_steps": 0}
TOLD = "set your clock"


class Watch:
    """A node's clocks, whose wall and running time the test sets. `hear` is one measured peer."""

    def __init__(self, known_peers: int = 3) -> None:
        self.wall_s, self.running_s = 1_800_000_000.0, 50.0
        self.starting = True
        self.ended: list[NolocoError] = []
        self.shown: list[float] = []
        self.followed: list[float] = []
        self.steady = SteadyClock(lambda: self.wall_s, lambda: self.running_s)
        self.clocks = PeerClocks(self.steady.now_s, lambda: self.running_s, SKEW_MAX_S / 4)
        self.made = ClockWatch(
            self.clocks,
            self.steady,
            SKEW_MAX_S,
            lambda: self.starting,
            self.ended.append,
            self.shown.append,
            known_peers,
            self.followed.append,
        )
        self.clocks.on_asked = self.made.peer_answered

    def hear(self, name: str, ahead_s: float, *, asked: bool = True, error_s: float = 0.01) -> None:
        self.clocks.measured(PeerId(name), ahead_s, error_s, asked=asked)

    def pass_time(self, seconds: float, *, wall_too: bool = True) -> None:
        self.running_s += seconds
        self.wall_s += seconds if wall_too else 0.0


# --- measuring ------------------------------------------------------------------------------------


def test_offset_is_the_median_of_the_peers_that_were_asked() -> None:
    watch = Watch()
    for name, ahead_s in (("a", 0.1), ("b", 9.0), ("c", 0.3)):
        watch.hear(name, ahead_s)
    assert watch.clocks.ahead_s == 0.3


def test_crowd_of_callers_does_not_move_the_median_of_the_asked() -> None:
    watch = Watch()
    watch.hear("a", 0.1)
    for number in range(2 * limits.CLOCK_PEERS_MAX):
        watch.hear(f"stranger {number}", 500.0, asked=False)
    watch.hear("a", 500.0, asked=False)
    assert watch.clocks.ahead_s == 0.1
    assert len(watch.clocks._found) <= limits.CLOCK_PEERS_MAX


def test_callers_count_where_nobody_was_asked() -> None:
    watch = Watch()
    watch.hear("a", 4.0, asked=False)
    assert watch.clocks.ahead_s == 4.0


def test_slow_answers_measure_nothing_and_old_ones_are_forgotten() -> None:
    watch = Watch()
    watch.hear("a", 60.0, error_s=SKEW_MAX_S)
    assert watch.clocks.ahead_s is None
    watch.hear("a", 0.5)
    watch.pass_time(limits.CLOCK_SAMPLE_S + 1)
    assert (watch.clocks.ahead_s, watch.clocks.asked) == (None, 0)


# --- at the start ---------------------------------------------------------------------------------


def test_two_peers_that_agree_end_a_start_with_the_offset_and_its_exit_code() -> None:
    watch = Watch()
    watch.hear("a", 10.0)
    assert watch.ended == []
    watch.hear("b", 10.2)
    (fault,) = watch.ended
    assert isinstance(fault, ClockOff)
    assert fault.code == ExitCode.CLOCK_OFF == 29
    assert "set your clock (offset = +10.0 s)" in fault.cause
    assert "ahead of the median of 2 peers" in fault.cause


def test_the_only_peer_there_is_is_believed_at_once() -> None:
    watch = Watch(known_peers=1)
    watch.hear("a", -3600.0)
    (fault,) = watch.ended
    assert "3600.0 s behind its only peer" in fault.cause


def test_the_only_peer_that_answers_is_believed_at_the_next_look() -> None:
    watch = Watch(known_peers=3)
    watch.hear("a", 10.0)
    assert watch.ended == []
    watch.made.look()
    assert len(watch.ended) == 1


def test_one_liar_among_honest_peers_ends_nobody() -> None:
    watch = Watch()
    for name, ahead_s in (("liar", 1e9), ("a", 0.1), ("b", -0.1)):
        watch.hear(name, ahead_s)
    watch.made.look()
    assert [str(fault) for fault in watch.ended] == []


def test_callers_end_no_start_whatever_they_say() -> None:
    watch = Watch()
    for name in "abc":
        watch.hear(name, 1e6, asked=False)
    watch.made.look()
    assert watch.ended == []


@pytest.mark.parametrize(("ahead_s", "told"), [(0.0, 0), (1.4, 0), (-1.6, 1), (2.9, 1)])
def test_clock_near_the_limit_is_told_once(ahead_s: float, told: int, caplog: pytest.LogCaptureFixture) -> None:
    watch = Watch()
    with caplog.at_level(logging.WARNING):
        for name in "aabbcc":
            watch.hear(name, ahead_s)
            watch.made.look()
    assert sum(TOLD in line for line in caplog.messages) == told
    assert watch.ended == []
    assert watch.shown[-1] == ahead_s


# --- in mid-run -----------------------------------------------------------------------------------


def test_clock_that_drifts_too_far_in_mid_run_is_told_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    watch = Watch()
    watch.starting = False
    with caplog.at_level(logging.INFO):
        for ahead_s in (5.0, 5.0, 0.0):
            for name in "ab":
                watch.hear(name, ahead_s)
    assert watch.ended == []
    assert sum(TOLD in line for line in caplog.messages) == 1
    assert "agrees with the peers' again" in caplog.messages[-1]


def test_wall_clock_set_in_mid_run_moves_neither_records_nor_leases(caplog: pytest.LogCaptureFixture) -> None:
    watch = Watch()
    watch.starting = False
    before_ms = watch.steady.now_ms()
    for jump_s in (90.0, -3600.0):
        watch.wall_s += jump_s
        watch.pass_time(1.0)
        watch.hear("a", 0.0)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            watch.made.look()
            watch.made.look()
        assert [line for line in caplog.messages if "was set by" in line] == caplog.messages[:1]
    assert watch.steady.now_ms() == before_ms + 2000
    assert watch.ended == []


def test_wall_clock_that_is_put_right_is_followed_once_the_peers_agree_with_it() -> None:
    watch = Watch()
    watch.starting = False
    for name in "ab":
        watch.hear(name, 8.0)
    watch.made.look()
    watch.wall_s -= 8.0
    watch.made.look()
    assert watch.steady.now_s() == watch.wall_s
    assert watch.clocks.ahead_s is None


def test_outer_steps_are_due_by_the_wall_clock_that_is_followed() -> None:
    """Off by 8 s at the start, so the boundaries were taken 8 s early; with the clock put right they are not."""
    watch = Watch()
    watch.starting = False
    settings = Settings(run="r", seed=1, num_stages=1, num_replicas=2, **STEPS, clock=Clock.TIME, outer_interval_s=60.0)
    began_unix_s = watch.wall_s - 30.0
    machine = Machine(settings, PeerId("me"), 1, start_s=watch.running_s + began_unix_s - watch.steady.now_s())
    for name in "ab":
        watch.hear(name, 8.0)
    watch.wall_s -= 8.0
    watch.made.look()
    assert watch.followed == [pytest.approx(-8.0)]
    machine.handle(ev.ClockFollowed(watch.followed[0]), watch.running_s)
    due_s = machine.clock.due_s
    assert due_s is not None
    assert due_s - watch.running_s == pytest.approx(began_unix_s + 60.0 - watch.wall_s)


def test_wall_clock_that_is_put_wrong_is_not_followed() -> None:
    watch = Watch()
    watch.starting = False
    for name in "ab":
        watch.hear(name, 0.2)
    watch.wall_s += 90.0
    watch.made.look()
    assert watch.steady.jump_s == pytest.approx(90.0)


def test_time_asleep_is_no_jump() -> None:
    watch = Watch()
    watch.pass_time(7200.0)
    assert watch.steady.jump_s == 0.0
