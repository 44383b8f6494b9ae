"""`noloco-node run --devices`: one command, a node for each device; here two CPUs stand for two GPUs."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from node_commands import PATIENCE_S, RunningNode, run_to_end, write_spec

from noloco_node.errors import ExitCode

pytestmark = pytest.mark.slow
FOLDERS = ("cpu", "cpu-1")


class Machine(RunningNode):
    """The process that watches over the nodes of one machine's devices."""

    def infos(self) -> list[dict[str, Any]]:
        """node.json of each node that is up."""
        files = [self.data_dir / name / "node.json" for name in FOLDERS]
        return [json.loads(file.read_text()) for file in files if file.exists()]

    def pids(self) -> list[int]:
        return [info["pid"] for info in self.infos()]

    def partners(self) -> set[str]:
        return {line["partner"] for line in self.events if line["event"] == "outer_step_closed"}


def machine(spec: Path, data_dir: Path) -> Machine:
    return Machine(spec, data_dir, ("--devices", "cpu,cpu"), changes={"device": "auto"})


def gone(pids: list[int], within_s: float = 40.0) -> bool:
    deadline = time.monotonic() + within_s
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


def test_each_device_has_a_seat_and_the_two_are_partners(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, outer={"total_outer_steps": 2, "start_seats": 2})
    with machine(spec, tmp_path / "data") as running:
        assert running.ended().code == ExitCode.OK
        closed = [line for line in running.events if line["event"] == "outer_step_closed"]
        assert [line["outcome"] for line in closed] == ["paired"] * 4, running.log
        assert {line["partner"] for line in closed} == {"0.0", "0.1"}
    keys = {(tmp_path / "data" / name / "identity.key").read_bytes() for name in FOLDERS}
    assert len(keys) == 2


def test_a_stop_saves_both_and_a_killed_node_is_started_again(tmp_path: Path) -> None:
    with machine(write_spec(tmp_path), tmp_path / "data") as running:
        running.until(lambda node: len(node.pids()) == 2)
        first, second = running.pids()
        os.kill(second, signal.SIGKILL)
        running.until(lambda node: node.said("device_failed"))
        running.until(lambda node: set(node.pids()) != {first, second} and len(node.pids()) == 2)
        running.until(lambda node: node.partners() >= {"0.0", "0.1"})
        pids = running.pids()
        assert first in pids
        assert running.stop() == ExitCode.OK, running.log
        assert gone(pids, 1.0)
        saved = [line for line in running.events if line["event"].startswith("the last checkpoint is on disk")]
        assert len(saved) == 2, running.log


def test_no_node_outlives_a_killed_watcher(tmp_path: Path) -> None:
    with machine(write_spec(tmp_path), tmp_path / "data") as running:
        running.until(lambda node: len(node.pids()) == 2)
        pids = running.pids()
        running.process.kill()
        running.process.wait(PATIENCE_S)
        assert gone(pids)


def test_what_only_one_node_can_have_is_refused(tmp_path: Path) -> None:
    base = ["run", "--spec", str(write_spec(tmp_path)), "--data-dir", str(tmp_path / "data"), "--devices", "cpu,cpu"]
    for more, words in (
        (["--seat", "0.0"], "--seat is one node's"),
        (["--device", "cpu"], "--device and --devices do not go together"),
        (["--identity-file", str(tmp_path / "key")], "--identity-file is one node's"),
    ):
        assert run_to_end([*base, *more]).is_fault(ExitCode.BAD_CONFIG, words)
    assert run_to_end([*base[:-1], "all"]).is_fault(ExitCode.DEVICE, "torch sees no GPU")
