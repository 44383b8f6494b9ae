"""What SIGTERM and Ctrl-C do to a node, from its first moment to its last.

First signal: a clean stop within the grace time; before the driver runs there is nothing to save, so the start is
cancelled. What still hangs when the grace time is over (a disk, a device, a thread) is not waited for: the process
ends. Second signal: the process ends at once. The libp2p daemon dies with it either way.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator

from noloco_node.core import limits
from noloco_node.driver.driver import Driver
from noloco_node.errors import ExitCode

NUMBERS = (signal.SIGTERM, signal.SIGINT)
GRACE_MIN_S = 1.0
LAST_WORDS_S = 0.5  # for the log line of a hard end, which may hang as well

log = logging.getLogger(__name__)


class StopSignals:
    """`with caught():` around the whole life of a node; `driver` is set as soon as it runs."""

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._life: asyncio.Task[object] | None = None
        self.driver: Driver | None = None
        self.asked = ""

    @contextlib.contextmanager
    def caught(self) -> Iterator[None]:
        loop, self._life = asyncio.get_running_loop(), asyncio.current_task()
        for number in NUMBERS:
            loop.add_signal_handler(number, self._on_signal, number.name)
        try:
            yield
        finally:
            for number in NUMBERS:
                loop.remove_signal_handler(number)

    def _on_signal(self, name: str) -> None:
        if self.asked:
            os._exit(int(ExitCode.INTERRUPTED))
        self.asked = name
        grace_s = max(GRACE_MIN_S, self._grace_s)
        _start_timer(grace_s, self._end_hard)
        if self.driver is None:
            assert self._life is not None
            self._life.cancel()
            return
        self.driver.stop(name)
        give_up_s = max(grace_s / 2, grace_s - limits.STOP_MARGIN_S)
        asyncio.get_running_loop().call_later(give_up_s, self.driver.give_up, name)

    def end_at_last(self, code: ExitCode) -> None:
        """Something hangs that will not be waited for: whatever the clean end does, it has the grace time."""
        _start_timer(max(GRACE_MIN_S, self._grace_s), os._exit, int(code))

    def _end_hard(self) -> None:
        """On a thread of its own: the event loop, or the interpreter's own end, may be what hangs."""
        is_saved = self.driver is None or self.driver.is_saved
        code = ExitCode.OK if is_saved else ExitCode.INTERRUPTED
        _start_timer(LAST_WORDS_S, os._exit, int(code))
        log.error(
            "the grace time of %s is over: ending with code %d, last checkpoint on disk: %s", self.asked, code, is_saved
        )
        os._exit(int(code))


def _start_timer(delay_s: float, act: Callable[..., object], *arguments: object) -> None:
    """A daemon thread: nobody waits for it, and it outlives the event loop."""
    timer = threading.Timer(delay_s, act, arguments)
    timer.daemon = True
    timer.start()
