"""A stop ends the process within its grace time, whatever hangs."""

import subprocess
import sys

import pytest

from noloco_node.errors import ExitCode

HANGS = """
import asyncio, logging, os, signal, sys, time
from types import SimpleNamespace
from noloco_node.driver.stop_signals import StopSignals

async def main():
    stop = StopSignals(1.0)
    stop.driver = SimpleNamespace(is_saved=sys.argv[1] == "saved", stop=print, give_up=print)
    with stop.caught():
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.1)
        time.sleep(60)  # not even the event loop runs

logging.basicConfig()
asyncio.run(main())
"""


@pytest.mark.parametrize(("disk", "code"), [("saved", ExitCode.OK), ("unsaved", ExitCode.INTERRUPTED)])
def test_process_that_hangs_ends_when_the_grace_time_is_over(disk: str, code: ExitCode) -> None:
    ended = subprocess.run([sys.executable, "-c", HANGS, disk], capture_output=True, text=True, timeout=30)
    assert ended.returncode == code
    assert "the grace time of SIGTERM is over" in ended.stderr
