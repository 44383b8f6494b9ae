"""What SIGTERM and Ctrl-C do to a node, from its first moment to its last.

First signal: a clean stop within the grace time; before the driver runs there is nothing to save, so the start is
cancelled. Second signal: the process ends at once; the libp2p daemon dies with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator

from noloco_node.core import limits
from noloco_node.driver.driver import Driver
from noloco_node.errors import ExitCode

NUMBERS = (signal.SIGTERM, signal.SIGINT)


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
        if self.driver is None:
            assert self._life is not None
            self._life.cancel()
            return
        self.driver.stop(name)
        grace_s = max(1.0, self._grace_s - limits.STOP_MARGIN_S)
        asyncio.get_running_loop().call_later(grace_s, self.driver.give_up, name)
