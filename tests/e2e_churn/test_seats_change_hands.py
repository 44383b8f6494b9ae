"""One stage, two seats, and nodes that come late, vanish, return and lose their disks: real processes, one swarm.

The scenario runs once; each test states one thing about it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from node_swarm import Watched, tiny_spec, wait_until, watched_swarm

from noloco_node.cli.local_swarm import LocalNode, end_with_parent
from noloco_node.core import limits
from noloco_node.core.types import Admit, Clock, Outcome, Phase, Seat

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # a busy machine takes minutes to start the processes
START_MAX_S = 240.0
FIRST, SECOND = Seat(0, 0), Seat(0, 1)
INTERVAL_S, LEASE_S, RENEW_S = 4.0, 9.0, 3.0
TIMING = {"lease_s": LEASE_S, "renew_s": RENEW_S, "settle_s": 0.5, "skew_max_s": 1.0, "grace_s": 3.0}


@dataclass
class Story:
    """What each node said when it trained, by name. `drawn`: of a killed node, the number it would have drawn next."""

    watched: Watched
    nodes: dict[str, LocalNode] = field(default_factory=dict)
    statuses: dict[str, dict[str, Any]] = field(default_factory=dict)
    drawn: dict[str, int] = field(default_factory=dict)
    pace: dict[str, float] = field(default_factory=dict)  # micro-batches per second

    def join(self, name: str, folder: str | None = None) -> LocalNode:
        """A node that takes any seat. `folder`: of a node that was here before."""
        swarm = self.watched.swarm
        place = swarm.data_dir / (folder or name)
        place.mkdir(exist_ok=True)
        peers = [address for node in swarm.running for address in node.info.get("addresses", ())]
        log = (place / "node.log").open("ab")
        process = subprocess.Popen(
            [*swarm.command(SECOND, peers), "--seat", "auto", "--data-dir", str(place)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
            preexec_fn=end_with_parent,
        )
        node = self.nodes[name] = LocalNode(SECOND, place, process, log)
        swarm.nodes.append(node)
        wait_until(lambda: bool(node.info), START_MAX_S, f"{name} is up", node.last_words)
        self.watched.note_processes()
        return node

    def trains(self, name: str, steps: int = 1) -> None:
        """It has closed so many outer steps."""
        node = self.nodes[name]
        self.statuses[name] = self.watched.wait_for_status(
            node, lambda s: sum(s.get("outer_steps", {}).values()) >= steps, "trains"
        )

    def kill(self, name: str) -> None:
        node = self.nodes[name]
        before, since_s = self.drawn_by(name), time.monotonic()
        time.sleep(1.0)
        self.pace[name] = (self.drawn_by(name) - before) / (time.monotonic() - since_s)
        self.watched.stop(node, signal.SIGKILL)
        self.drawn[name] = self.drawn_by(name)

    def drawn_by(self, name: str) -> int:
        seat = self.statuses[name]["seat"]
        return int.from_bytes((self.run_dir(name) / "checkpoints" / seat / "drawn-next").read_bytes(), "little")

    def run_dir(self, name: str) -> Path:
        return self.nodes[name].folder / "runs" / self.watched.spec.run_id

    def said(self, name: str, event: str) -> list[dict[str, Any]]:
        return self.watched.log_of(self.nodes[name].folder, event)

    def first_drawn(self, name: str) -> int:
        """The first number that its newest life drew."""
        lines = self.watched.history_of(self.run_dir(name))
        begun = max(i for i, line in enumerate(lines) if line["kind"] == "loaded")
        named = [line["trained"] + line["dropped"] for line in lines[begun:] if line["kind"] == "micro_batches"]
        return min(first for ranges in named for first, _ in ranges)


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    spec = tiny_spec(
        1,
        2,
        admit=Admit.ARRIVAL,
        timing=TIMING,
        clock=str(Clock.TIME),
        outer_interval_s=INTERVAL_S,
        start_unix_s=time.time(),
        total_outer_steps=0,
        start_seats=1,
    )
    with watched_swarm(tmp_path_factory.mktemp("churn"), spec, [FIRST]) as watched:
        watched.start()
        told = Story(watched, {"first": watched.node(0, 0)})
        told.trains("first", 2)
        told.join("newcomer")
        told.trains("newcomer", 2)
        spare = told.join("spare")
        watched.wait_for_status(spare, lambda s: "spare" in s.get("waits_for", ""), "waits")
        told.kill("newcomer")
        told.trains("spare")
        told.join("returned", folder="newcomer")
        watched.wait_for_status(told.nodes["returned"], lambda s: "spare" in s.get("waits_for", ""), "waits")
        told.kill("spare")
        told.trains("returned", 2)
        told.kill("first")
        for file in (told.run_dir("first") / "checkpoints" / str(FIRST)).glob("step-*.safetensors"):
            file.write_bytes(file.read_bytes()[:-100])
        told.nodes["bereft"] = watched.spawn(FIRST)
        told.trains("bereft")
        assert [watched.stop(told.nodes[name]) for name in ("bereft", "returned")] == [0, 0]
        yield told


def test_a_newcomer_fetches_the_state_and_its_first_exchange_is_a_normal_one(story: Story) -> None:
    loaded = story.said("newcomer", "state_loaded")[0]
    assert (loaded["source"], story.statuses["newcomer"]["seat"]) == ("peer", str(SECOND))
    assert loaded["outer_step"] >= 1
    closed = story.said("newcomer", "outer_step_closed")
    assert closed[0]["outcome"] == Outcome.PAIRED


def test_a_spare_takes_over_the_lapsed_seat_and_its_place_in_the_data(story: Story) -> None:
    assert story.statuses["spare"]["seat"] == str(SECOND)
    assert story.said("spare", "state_loaded")[0]["source"] == "peer"
    gap = story.first_drawn("spare") - story.drawn["newcomer"]
    assert 0 <= gap <= max(limits.DATA_PROMISE_MIN, 2 * story.pace["newcomer"] * RENEW_S)


def test_who_lost_its_seat_waits_as_a_spare_and_goes_on_behind_its_successor(story: Story) -> None:
    assert story.statuses["returned"]["peer"] == story.statuses["newcomer"]["peer"]
    assert story.statuses["returned"]["seat"] == str(SECOND)
    gap = story.first_drawn("returned") - story.drawn["spare"]
    assert 0 <= gap <= max(limits.DATA_PROMISE_MIN, 2 * story.pace["spare"] * RENEW_S)


def test_a_node_whose_checkpoints_are_all_damaged_fetches_the_state_from_its_peer(story: Story) -> None:
    assert story.statuses["bereft"]["peer"] == story.statuses["first"]["peer"]
    assert story.statuses["bereft"]["seat"] == str(FIRST)
    assert [entry["source"] for entry in story.said("first", "state_loaded")] == ["seed", "peer"]


def test_nothing_of_the_killed_nodes_runs_on(story: Story) -> None:
    wait_until(lambda: story.watched.left_over() == [], 8.0, "all processes are gone")
    assert story.statuses["bereft"]["phase"] in (Phase.TRAINING, Phase.EXCHANGING)
