"""What a lane of the driver needs of it: events in, tasks out, and the two ports it drives."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from noloco_node.core.events import Event
from noloco_node.ports import PeerNetwork, Trainer


class Host(Protocol):
    """The driver, seen by its lanes."""

    trainer: Trainer | None  # None before the seat's trainer is made

    @property
    def device(self) -> Trainer:
        """The trainer; a job before there is one is a fault of ours."""
        ...

    @property
    def peers(self) -> PeerNetwork: ...
    def feed(self, event: Event) -> None: ...
    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]: ...
    def as_task(self, execute: Callable[[Any], Coroutine[Any, Any, None]]) -> Callable[[Any], None]:
        """An executor that runs `execute(effect)` as a task."""
        ...
