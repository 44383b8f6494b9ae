"""Dashboards and metrics fit each other both ways: no query for what is not there, no metric that nobody sees."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import Histogram
from prometheus_client.metrics import MetricWrapperBase

from noloco_node.telemetry.instruments import Instruments

ROOT = Path(__file__).resolve().parents[2]
DASHBOARDS = sorted((ROOT / "dashboards").glob("*.json"))
NAME = re.compile(r"\bnoloco_[a-z0-9_]+")
SELECTION = re.compile(r"\b(noloco_[a-z0-9_]+)\{([^}]*)\}")
GROUPING = re.compile(r"\bby \(([^)]*)\)")


def instruments() -> dict[str, tuple[str, ...]]:
    """Series name -> its labels, for every series a node exports."""
    found: dict[str, tuple[str, ...]] = {}
    for metric in vars(Instruments()).values():
        if not isinstance(metric, MetricWrapperBase):
            continue
        name, labels = str(metric.describe()[0].name), tuple(metric._labelnames)
        match metric:
            case Histogram():
                found |= {f"{name}_bucket": (*labels, "le"), f"{name}_sum": labels, f"{name}_count": labels}
            case _:
                found[name + ("_total" if metric._type == "counter" else "")] = labels
    return found


def load(path: Path) -> dict[str, Any]:
    dashboard: dict[str, Any] = json.loads(path.read_text())
    return dashboard


def queries(path: Path) -> Iterator[str]:
    dashboard = load(path)
    for panel in dashboard["panels"]:
        yield from (target["expr"] for target in panel["targets"])
    yield from (variable["query"] for variable in dashboard["templating"]["list"])


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.name)
def test_every_query_names_a_metric_that_exists(path: Path) -> None:
    series = instruments()
    for query in queries(path):
        names = NAME.findall(query)
        assert names, query
        assert set(names) <= set(series), query


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.name)
def test_every_query_asks_for_labels_that_exist(path: Path) -> None:
    series = instruments()
    for query in queries(path):
        for name, selection in SELECTION.findall(query):
            asked = {part.split("=")[0].rstrip("~!").strip() for part in selection.split(",")}
            assert asked <= {*series[name], "instance"}, query
        known = {label for name in NAME.findall(query) for label in series[name]} | {"instance"}
        for group in GROUPING.findall(query):
            assert {label.strip() for label in group.split(",")} <= known, query


def test_every_metric_is_on_some_dashboard() -> None:
    shown = {name for path in DASHBOARDS for query in queries(path) for name in NAME.findall(query)}
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in instruments()}
    seen = {re.sub(r"_(bucket|sum|count)$", "", name) for name in shown}
    assert families - seen == set()


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.name)
def test_panels_are_whole_and_do_not_overlap(path: Path) -> None:
    dashboard = load(path)
    provisioned = yaml.safe_load((ROOT / "deploy/grafana/provisioning/datasources/prometheus.yaml").read_text())
    sources = {source["uid"] for source in provisioned["datasources"]}
    taken: set[tuple[int, int]] = set()
    assert dashboard["uid"] == path.stem
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        cells = {(x + place["x"], y + place["y"]) for x in range(place["w"]) for y in range(place["h"])}
        assert place["x"] + place["w"] <= 24
        assert not cells & taken
        taken |= cells
        assert panel["datasource"]["uid"] in sources
        assert all(query["expr"].count("(") == query["expr"].count(")") for query in panel["targets"])
