"""Counts payload bytes by service and direction. Owns no metric: it tells a callback."""

from __future__ import annotations

from collections.abc import Callable

Traffic = Callable[[str, str, int], None]


class Meter:
    def __init__(self, traffic: Traffic | None) -> None:
        self._traffic = traffic

    def sent(self, service: str, size_bytes: int) -> None:
        if self._traffic is not None:
            self._traffic(service, "sent", size_bytes)

    def received(self, service: str, size_bytes: int) -> None:
        if self._traffic is not None:
            self._traffic(service, "received", size_bytes)
