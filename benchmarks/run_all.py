"""Runs the benchmarks one after the other and writes docs/benchmarks.md: tables, machine, commands.

    python benchmarks/run_all.py [--quick] [--only NAME ...] [--out FILE]

Each script runs in a process of its own with `--json`. One that fails is told in its section and makes the exit code 1.
What an earlier page says about scripts that are not run now is kept.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "benchmarks.md"
HEAD = """# Benchmarks

Written by `make bench` (`benchmarks/run_all.py`). What each script asks is told in
[benchmarks/README.md](../benchmarks/README.md).
Ratios compare contenders of the same call; seconds are those of a shared machine.
"""
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Bench:
    """`flags` without --quick, for a run of all within half an hour."""

    name: str
    flags: tuple[str, ...] = ()
    has_quick: bool = True


BENCHES = (
    Bench("demo_bench"),
    Bench("codec_bench"),
    Bench("exchange_bench", ("--params", "16000000", "--steps", "3")),
    Bench("utilisation_bench"),
    Bench("quality_bench", ("--runs", "3", "--steps", "480")),
    Bench("pipeline_bench", ("--runs", "1", "--steps", "5")),
    Bench("scale_bench"),
    Bench("memory_bench"),
    Bench("donor_bench", has_quick=False),
)


def command(bench: Bench, *, quick: bool) -> list[str]:
    flags = ("--quick",) if quick and bench.has_quick else bench.flags
    return [f"benchmarks/{bench.name}.py", *flags]


def run(bench: Bench, *, quick: bool) -> tuple[list[Row], str]:
    """Rows, or none and why."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "rows.json"
        script, *flags = command(bench, quick=quick)
        asked = [sys.executable, str(HERE.parent / script), *flags, "--json", str(found)]
        done = subprocess.run(asked, stdout=sys.stderr, stderr=subprocess.PIPE, text=True)
        sys.stderr.write(done.stderr)
        if done.returncode or not found.exists():
            return [], (done.stderr.strip().splitlines() or ["no word"])[-1]
        rows = json.loads(found.read_text())
        return (rows if isinstance(rows, list) else [rows]), ""


def section(bench: Bench, rows: Sequence[Row], fault: str, *, quick: bool) -> str:
    words = " ".join(command(bench, quick=quick))
    told = table(rows) if rows else f"It failed: `{fault}`\n"
    return f"## {bench.name}\n\n`python {words}`, {machine()}\n\n{told}"


def machine() -> str:
    now = datetime.now(UTC).strftime("%Y-%m-%d")
    return f"{now}, {os.cpu_count()} cores ({platform.machine()}), load {os.getloadavg()[0]:.1f} at the end"


def table(rows: Sequence[Row]) -> str:
    """Scalars only, one column for each key that any row has."""
    keys = list(dict.fromkeys(key for row in rows for key, value in row.items() if not isinstance(value, list | dict)))
    lines = [f"| {' | '.join(keys)} |", f"|{'---|' * len(keys)}"]
    lines += [f"| {' | '.join(_cell(row.get(key)) for key in keys)} |" for row in rows]
    return "\n".join(lines) + "\n"


def _cell(value: Any) -> str:
    return "" if value is None or isinstance(value, list | dict) else str(value)


def merged(page: str, sections: Mapping[str, str]) -> str:
    """The page with these sections new and all others as they were, in the order of BENCHES."""
    parts = re.split(r"^## ", page, flags=re.MULTILINE)[1:]
    kept = {part.split("\n", 1)[0]: f"## {part}" for part in parts}
    found = {name: text.rstrip() + "\n" for name, text in {**kept, **sections}.items()}
    return "\n".join([HEAD, *(found[bench.name] for bench in BENCHES if bench.name in found)])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="each within 90 s or so; such figures prove little")
    parser.add_argument("--only", nargs="+", choices=[bench.name for bench in BENCHES])
    parser.add_argument("--out", type=Path, default=PAGE)
    asked = parser.parse_args()
    sections, code = {}, 0
    for bench in BENCHES:
        if asked.only and bench.name not in asked.only:
            continue
        rows, fault = run(bench, quick=asked.quick)
        code = code or int(bool(fault))
        sections[bench.name] = section(bench, rows, fault, quick=asked.quick)
        page = asked.out.read_text() if asked.out.exists() else ""
        asked.out.write_text(merged(page, sections))
    return code


if __name__ == "__main__":
    sys.exit(main())
