"""Ctrl-C in the middle of the demo, typed into a real terminal: every node says goodbye and nothing is left."""

import os
import pty
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from node_swarm import STATUS_MAX_S, is_running, wait_until

from noloco_node.core.limits import STOP_GRACE_S
from noloco_node.errors import ExitCode

pytestmark = pytest.mark.slow
ENDLESS = ["--preset", "tiny", "--stages", "1", "--outer-steps", "100000", "--inner-steps", "5"]
CTRL_C = b"\x03"
PAIRED_ONCE = re.compile(rb" [1-9][0-9]*/0 ")


class Terminal:
    """A demo in the foreground of a terminal of its own; `screen` is what it has shown."""

    def __init__(self, data_dir: Path, temporary: str) -> None:
        command = [sys.executable, "-m", "noloco_node", "demo", "--data-dir", str(data_dir), *ENDLESS]
        self.screen = b""
        self.pid, self._keyboard = pty.fork()
        if self.pid == 0:
            os.execve(command[0], command, os.environ | {"TMPDIR": temporary, "TERM": "xterm"})
        os.set_blocking(self._keyboard, False)

    def type(self, keys: bytes) -> None:
        os.write(self._keyboard, keys)

    def look(self) -> bytes:
        with suppress(OSError):  # nothing new, or the other side is closed
            while piece := os.read(self._keyboard, 65536):
                self.screen += piece
        return self.screen

    def has_ended(self) -> bool:
        self.look()
        ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return ended is not None

    def close(self) -> int:
        if not self.has_ended():
            os.kill(self.pid, signal.SIGKILL)
        _, status = os.waitpid(self.pid, 0)
        os.close(self._keyboard)
        return os.waitstatus_to_exitcode(status)


@pytest.fixture
def temporary() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="e2e-") as folder:  # a short name, for sockets
        yield folder


def test_ctrl_c_in_the_middle_of_the_demo_leaves_no_process_and_no_folder(tmp_path: Path, temporary: str) -> None:
    demo = Terminal(tmp_path / "demo", temporary)
    try:
        wait_until(lambda: PAIRED_ONCE.search(demo.look()), STATUS_MAX_S, "paired", demo_words(demo))
        processes = descendants(demo.pid)
        assert len(processes) == 4, "two nodes, each with its libp2p daemon"
        demo.type(CTRL_C)
        wait_until(demo.has_ended, STOP_GRACE_S + 5.0, "the demo ended", demo_words(demo))
    finally:
        code = demo.close()
    assert code == ExitCode.INTERRUPTED
    assert b"stopping the nodes" in demo.screen
    assert not any(map(is_running, processes))
    assert os.listdir(temporary) == []
    logs = [(tmp_path / f"demo/node-0.{replica}/node.log").read_text() for replica in range(2)]
    assert all('"event": "leaving"' in log for log in logs)


def demo_words(demo: Terminal) -> Callable[[], str]:
    return lambda: demo.look()[-2000:].decode(errors="replace")


def descendants(pid: int) -> set[int]:
    listed = subprocess.run(["ps", "--no-headers", "-o", "pid", "--ppid", str(pid)], capture_output=True, text=True)
    children = {int(word) for word in listed.stdout.split()}
    return children.union(*(descendants(child) for child in children))
