"""The node's clock counts the time a machine is suspended, where the system can tell."""

import time

import pytest

from noloco_node.driver.clock import running_s


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="the system has no such clock")
def test_clock_is_the_one_that_runs_through_a_suspend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "clock_gettime", lambda clock: {time.CLOCK_BOOTTIME: 5.0}[clock])
    assert running_s() == 5.0


def test_clock_is_monotonic_where_there_is_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(time, "CLOCK_BOOTTIME", raising=False)
    monkeypatch.setattr(time, "monotonic", lambda: 7.0)
    assert running_s() == 7.0
