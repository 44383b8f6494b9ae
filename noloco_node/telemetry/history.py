"""One JSON line per inner and outer step in the data directory: what the demo plots and a volunteer can read later.

Owns `history.jsonl` and its size: when it reaches the limit it becomes `history.jsonl.1`, the one before is removed.
With each checkpoint a line of kind `micro_batches` says how own micro-batches ended; it is there before the file is.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from noloco_node.core import effects as do
from noloco_node.core import events as ev
from noloco_node.core import limits
from noloco_node.telemetry.sample_ledger import SampleLedger

INF = float("inf")


class HistoryLog:
    """`Observer` port. `clock` gives unix seconds; a disk that refuses a line costs the line, never the training."""

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        self._path = path
        self._clock = clock
        self._file: IO[str] | None = None
        self._tokens_total = 0
        self._step: do.RunInnerStep | None = None
        self._ledger = SampleLedger()
        self._is_loaded = False
        self.lines_lost = 0

    def event(self, event: object) -> None:
        self._ledger.event(event)
        match event:
            case ev.InnerStepDone() if self._step is not None:
                step, self._step = self._step, None
                self._tokens_total += step.tokens
                loss = step.loss_sum / step.tokens if step.tokens else None
                self._write(
                    kind="inner",
                    position=step.position,
                    loss=loss,
                    tokens=step.tokens,
                    tokens_total=self._tokens_total,
                    gradient_norm=event.gradient_norm,
                    learning_rate=event.learning_rate,
                    applied=event.applied,
                )
            case ev.TensorVerified():
                self._write(kind="spread", outer_step=event.outer_step, spread=event.spread, norm=event.norm)
            case ev.StateLoaded():
                self._write(
                    kind="loaded",
                    outer_step=event.outer_step,
                    data_next=event.data_next,
                    source=event.source,
                    seat=self._ledger.seat,
                )
                self._is_loaded = True
                self._flush()

    def effect(self, effect: object) -> None:
        if isinstance(effect, do.InitialiseState | do.LoadCheckpoint | do.FetchState):
            self._close_account(data_next=None)  # of the state before, if there was one
            self._is_loaded = False
        self._ledger.effect(effect)
        match effect:
            case do.RunInnerStep():
                self._step = effect
            case do.CloseExchange():
                partner = None if effect.partner is None else str(effect.partner)
                self._write(
                    kind="outer",
                    outer_step=effect.outer_step,
                    outcome=str(effect.outcome),
                    reason=effect.reason,
                    partner=partner,
                )
                self._flush()
            case do.SaveCheckpoint():
                self._close_account(data_next=effect.data_next)
            case do.Leave():
                self._close_account(data_next=None)

    def traffic(self, service: str, direction: str, size_bytes: int) -> None:
        return None

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _close_account(self, data_next: int | None) -> None:
        """`data_next`: where a restart from the checkpoint now written goes on; None: no checkpoint goes with it."""
        if self._is_loaded:
            self._write(kind="micro_batches", data_next=data_next, **self._ledger.close_account())
        self._flush()

    def _write(self, **fields: Any) -> None:
        finite = {name: None if _is_not_finite(value) else value for name, value in fields.items()}
        try:
            line = json.dumps({"unix_s": round(self._clock(), 3), **finite}, allow_nan=False)
            if self._file is None:
                self._file = self._path.open("a", encoding="utf-8")
            self._file.write(line + "\n")
            if self._file.tell() >= limits.HISTORY_BYTES_MAX:
                self._roll()
        except (OSError, ValueError):
            self.lines_lost += 1

    def _flush(self) -> None:
        try:
            if self._file is not None:
                self._file.flush()
        except OSError:
            self.lines_lost += 1

    def _roll(self) -> None:
        self.close()
        self._path.replace(self._path.with_suffix(".jsonl.1"))


def _is_not_finite(value: Any) -> bool:
    return isinstance(value, float) and (value != value or value in (INF, -INF))
