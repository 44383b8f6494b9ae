"""How far a long command is, on stderr: a bar on a terminal, elsewhere one line as each part begins."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from noloco_node.training.evaluation import Watch


def say(text: str) -> None:
    """One line of what is done now. stdout is for results."""
    click.echo(text, err=True)


@contextmanager
def measuring() -> Iterator[Watch]:
    """Yields what an evaluation tells of its parts."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _one_line_a_part
        return
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        bars: dict[str, TaskID] = {}

        def watch(part: str, done: int, total: int) -> None:
            if part not in bars:
                bars[part] = progress.add_task(f"evaluating {part}")
            progress.update(bars[part], completed=done, total=total)

        yield watch


def _one_line_a_part(part: str, done: int, total: int) -> None:
    if done == 0:
        say(f"evaluating {part}")
