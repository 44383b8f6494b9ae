"""Figures for people on stdout, the same figures for machines in a file."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from noloco_node.errors import DiskFailed


def write_json(path: Path, figures: Mapping[str, Any]) -> None:
    """Whole or not at all; `-` is stdout. Raises DiskFailed."""
    text = json.dumps(figures, indent=2) + "\n"
    if str(path) == "-":
        click.echo(text, nl=False)
        return
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside.write_text(text, encoding="utf-8")
        aside.replace(path)
    except OSError as error:
        raise DiskFailed(f"{path} cannot be written: {error.strerror}", "choose another path for --json") from error
