"""The end of a process."""

from __future__ import annotations

import signal
import subprocess
import sys

from noloco_node.cli.run import stops_that_end_the_start

SCRIPT = """
import atexit, time
from noloco_node.cli.ending import leave
atexit.register(time.sleep, 600)
print("saved")
leave(3)
"""


def test_a_node_that_has_left_does_not_wait_for_the_interpreters_own_end() -> None:
    ended = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (3, "saved\n")


STARTING = """
import time
from noloco_node.cli.run import stops_that_end_the_start
with stops_that_end_the_start():
    print("starting", flush=True)
    while True:
        try:
            time.sleep(0.1)
        except BaseException:  # as some module does while it is imported
            pass
"""


def test_a_stop_while_a_node_starts_ends_it_whatever_swallows_exceptions() -> None:
    with subprocess.Popen([sys.executable, "-c", STARTING], stdout=subprocess.PIPE, text=True) as starting:
        assert starting.stdout is not None
        assert starting.stdout.readline() == "starting\n"
        starting.send_signal(signal.SIGTERM)
        try:
            assert starting.wait(30) == 0
        finally:
            starting.kill()


def test_a_start_that_fails_leaves_the_signals_as_they_were() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with stops_that_end_the_start():
        assert signal.getsignal(signal.SIGTERM) != before[0]
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
