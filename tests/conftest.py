"""Settings of the whole suite."""

from __future__ import annotations

import os
import signal

from hypothesis import settings

settings.register_profile("noloco", deadline=None)  # a busy machine is slow, not wrong
settings.load_profile("noloco")

signal.signal(signal.SIGINT, signal.default_int_handler)  # a suite in the background inherits "ignored"; tests send it

SUITE, END_AT_ONCE = os.getpid(), os._exit


def _end_children_only(code: int) -> None:
    """Code under test that ends its process at once must not end the suite: with code 0 nobody would notice."""
    if os.getpid() == SUITE:
        raise AssertionError(f"the suite's own process was to end with code {code}")
    END_AT_ONCE(code)


os._exit = _end_children_only  # type: ignore[assignment]
