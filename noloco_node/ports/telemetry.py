"""The border to whoever watches the node."""

from __future__ import annotations

from typing import Protocol


class Observer(Protocol):
    """Told of every event and effect in order; makes metrics and log lines of them, decides nothing."""

    def event(self, event: object) -> None: ...
    def effect(self, effect: object) -> None: ...
    def traffic(self, service: str, direction: str, size_bytes: int) -> None: ...
