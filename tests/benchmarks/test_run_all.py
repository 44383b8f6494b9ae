"""The page of figures: tables of what the scripts wrote, older sections kept, failures told."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import run_all
from run_all import BENCHES, Bench, merged, section, table


def test_table_has_a_column_for_every_scalar_of_any_row() -> None:
    assert table([{"a": 1, "runs": [1, 2]}, {"a": None, "b": "x"}]).splitlines() == [
        "| a | b |",
        "|---|---|",
        "| 1 |  |",
        "|  | x |",
    ]


def test_a_section_that_is_not_run_again_stays_and_the_order_is_that_of_the_list() -> None:
    first, second = BENCHES[0].name, BENCHES[1].name
    page = merged("", {second: f"## {second}\n\nFORMER\n", first: f"## {first}\n\nUNTOUCHED\n"})
    page = merged(page, {second: f"## {second}\n\nLATEST\n"})
    assert "FORMER" not in page
    assert page.index("UNTOUCHED") < page.index("LATEST")
    assert page.count("# Benchmarks\n") == 1


def test_a_script_that_fails_is_told_and_nothing_is_made_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "benchmarks" / "broken.py"
    script.parent.mkdir()
    script.write_text("import sys; sys.exit('no iperf3 here')")
    monkeypatch.setattr(run_all, "HERE", script.parent)
    monkeypatch.setattr(run_all, "BENCHES", (Bench("broken"),))
    monkeypatch.setattr(sys, "argv", ["run_all.py", "--out", str(tmp_path / "page.md")])
    assert run_all.main() == 1
    assert "It failed: `no iperf3 here`" in (tmp_path / "page.md").read_text()


def test_the_command_of_a_section_is_the_one_that_was_run() -> None:
    assert "`python benchmarks/codec_bench.py --quick`" in section(Bench("codec_bench"), [{"a": 1}], "", quick=True)
