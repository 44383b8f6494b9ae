"""The few numbers a person watches: loss, tokens per second, partner, bytes. Shown by /status.json and the table."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from noloco_node.core import effects as do
from noloco_node.core import events as ev
from noloco_node.ports import Observer

WINDOW_S = 30.0
LOSS_KEEP = 0.9  # share of the old value in the smoothed loss


class Vitals:
    """`Observer` port. `clock` is monotonic seconds; the rate is over the last WINDOW_S of finished inner steps."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._done: deque[tuple[float, int]] = deque()
        self._step: do.RunInnerStep | None = None
        self.loss = 0.0
        self.tokens_total = 0
        self.partner = ""
        self.spread = 0.0
        self.bytes_sent = 0
        self.bytes_received = 0
        self.learning_rate = 0.0

    @property
    def tokens_per_s(self) -> float:
        self._forget()
        if len(self._done) < 2:
            return 0.0
        span_s = self._clock() - self._done[0][0]
        return sum(tokens for _, tokens in list(self._done)[1:]) / max(span_s, 1e-9)

    def event(self, event: object) -> None:
        match event:
            case ev.InnerStepDone() if self._step is not None:
                self._count(self._step)
                self.learning_rate, self._step = event.learning_rate, None
            case ev.TensorVerified():
                self.spread = event.spread

    def effect(self, effect: object) -> None:
        match effect:
            case do.RunInnerStep():
                self._step = effect
            case do.CloseExchange():
                self.partner = "" if effect.partner is None else str(effect.partner)

    def traffic(self, service: str, direction: str, size_bytes: int) -> None:
        if direction == "sent":
            self.bytes_sent += size_bytes
        else:
            self.bytes_received += size_bytes

    def shown(self) -> dict[str, Any]:
        return {
            "loss": round(self.loss, 4),
            "tokens_per_s": round(self.tokens_per_s, 1),
            "tokens_total": self.tokens_total,
            "partner": self.partner,
            "spread": self.spread,
            "learning_rate": self.learning_rate,
            "bytes_sent": self.bytes_sent,
            "bytes_received": self.bytes_received,
        }

    def _count(self, step: do.RunInnerStep) -> None:
        self.tokens_total += step.tokens
        self._done.append((self._clock(), step.tokens))
        self._forget()
        if step.tokens and math.isfinite(step.loss_sum):
            loss = step.loss_sum / step.tokens
            self.loss = loss if self.loss == 0.0 else LOSS_KEEP * self.loss + (1 - LOSS_KEEP) * loss

    def _forget(self) -> None:
        while self._done and self._done[0][0] < self._clock() - WINDOW_S:
            self._done.popleft()


class Observers:
    """Several observers as one, told in order."""

    def __init__(self, observers: Iterable[Observer]) -> None:
        self._observers = tuple(observers)

    def event(self, event: object) -> None:
        for observer in self._observers:
            observer.event(event)

    def effect(self, effect: object) -> None:
        for observer in self._observers:
            observer.effect(effect)

    def traffic(self, service: str, direction: str, size_bytes: int) -> None:
        for observer in self._observers:
            observer.traffic(service, direction, size_bytes)
