"""The table the demo and `status` draw: one row per node."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from noloco_node.cli.local_swarm import FINISHED

PLAIN_INTERVAL_S = 15.0
PLAIN_WIDTH = 120
COLUMNS = (
    "seat",
    "phase",
    "outer\nstep",
    "inner\nstep",
    "loss",
    "tokens\n/s",
    "partner",
    "paired\n/solo",
    "sent",
    "received",
)
SHOWN = frozenset(
    {"seat", "phase", "outer_step", "inner_step", "loss", "tokens_per_s", "partner", "outer_steps"}
    | {"bytes_sent", "bytes_received"}
)
"""Names in /status.json that a row shows."""


def node_table(statuses: Iterable[dict[str, Any]], title: str = "") -> Table:
    """Rows from the nodes' /status.json, whole in 80 columns; what a node has not said yet is a dash."""
    table = Table(title=title or None, header_style="bold", box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for name in COLUMNS:
        table.add_column(name, justify="left" if name in ("seat", "phase", "partner") else "right", no_wrap=True)
    for status in statuses:
        table.add_row(*_row(status))
    return table


@contextmanager
def live_screen(quiet: bool) -> Iterator[Callable[[Table], None]]:
    """Shows the newest table: in place on a terminal, now and then elsewhere, never if `quiet`."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield _PlainScreen(Console(stderr=True, width=PLAIN_WIDTH, quiet=quiet)).show
        return
    with Live(console=console, refresh_per_second=4, transient=False) as live:
        yield live.update


class _PlainScreen:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown_s = float("-inf")

    def show(self, table: Table) -> None:
        if time.monotonic() >= self._shown_s + PLAIN_INTERVAL_S:
            self._shown_s = time.monotonic()
            self._console.print(table)


def _row(status: dict[str, Any]) -> tuple[str, ...]:
    closed = status.get("outer_steps") or {}
    is_over = status.get("phase") == FINISHED
    return (
        str(status.get("seat") or "-"),
        str(status.get("phase") or "starting"),
        str(status.get("outer_step", "-")),
        "-" if is_over else str(status.get("inner_step", "-")),
        _number(status.get("loss"), "{:.3f}"),
        _number(status.get("tokens_per_s"), "{:,.0f}"),
        str(status.get("partner") or "-"),
        f"{closed.get('paired', 0)}/{closed.get('solo', 0)}",
        size(status.get("bytes_sent")),
        size(status.get("bytes_received")),
    )


def _number(value: Any, form: str) -> str:
    return form.format(value) if isinstance(value, int | float) and value else "-"


def size(value: Any) -> str:
    """Bytes in the unit a person reads: 12.3 MiB."""
    if not isinstance(value, int | float):
        return "-"
    amount, units = float(value), ["B", "KiB", "MiB", "GiB", "TiB"]
    while amount >= 1024 and len(units) > 1:
        amount /= 1024
        units.pop(0)
    return f"{amount:.0f} {units[0]}" if units[0] == "B" else f"{amount:.1f} {units[0]}"
