"""What `swarm new` writes and prints is enough for two people to train together."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from node_commands import PROGRAM, RunningNode, environment

from noloco_node.errors import ExitCode


@pytest.mark.slow
@pytest.mark.parametrize(
    "clock",
    [["--start-seats", "2"], ["--clock", "time", "--interval", "10", "--start-in", "45"]],
    ids=["steps", "time"],
)
def test_two_nodes_train_what_swarm_new_wrote(tmp_path: Path, clock: list[str]) -> None:
    new = ["swarm", "new", "--preset", "tiny", "--stages", "1", "--replicas", "2", "--outer-steps", "3", *clock]
    subprocess.run([*PROGRAM, *new], cwd=tmp_path, env=environment(), check=True, timeout=60)
    spec = tmp_path / "swarm.toml"
    with RunningNode(spec, tmp_path / "a") as first:
        asked = [*PROGRAM, "status", "--data-dir", str(first.data_dir), "--address", "--wait", "120"]
        address = subprocess.run(asked, capture_output=True, text=True, env=environment(), check=True).stdout.strip()
        with RunningNode(spec, tmp_path / "b", ("--initial-peers", address)) as second:
            assert [node.ended().code for node in (first, second)] == [ExitCode.OK, ExitCode.OK]
    for node in (first, second):
        closed = [event for event in node.events if event["event"] == "outer_step_closed"]
        assert closed[-1]["outer_step"] == 2
        assert any(event["outcome"] == "paired" for event in closed), json.dumps(closed)
        assert node.said("run_over")
