"""The end of a process."""

from __future__ import annotations

import subprocess
import sys

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
