"""SIGTERM and SIGINT answered for a while by a function of ours; whoever answered before does so again afterwards."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

STOPS = (signal.SIGTERM, signal.SIGINT)


@contextlib.contextmanager
def answered(act: Callable[[int], object], numbers: Sequence[signal.Signals] = STOPS) -> Iterator[None]:
    """`act(number)` is called for each of these signals."""

    def answer(number: int, frame: FrameType | None) -> None:
        act(number)

    before = {number: signal.signal(number, answer) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
