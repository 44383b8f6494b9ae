"""When the demo ends with code 0, and when a swarm that hangs is given up."""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from noloco_node.cli import demo as demo_module
from noloco_node.cli.demo_report import Histories, plot
from noloco_node.cli.local_swarm import STALL_S, wait_for_end
from noloco_node.core.types import Seat
from noloco_node.errors import NolocoError, TargetMissed

GOOD = {
    "outer_steps": {"paired": 8, "solo": 0},
    "outer_steps_per_seat": 2,
    "nodes": 4,
    "unpaired": 0,
    "initial_perplexity": 250.0,
    "averaged_perplexity": 9.0,
}
PLAIN: dict[str, Any] = demo_module.demo.make_context("demo", []).params


def outer_steps(tmp_path: Path, replicas: int, solo: dict[Seat, tuple[int, ...]]) -> Histories:
    """Histories of two stages and four outer steps, closed solo where `solo` says so."""
    seats = [Seat(stage, replica) for stage in range(2) for replica in range(replicas)]
    folders = [(seat, tmp_path / str(seat)) for seat in seats]
    for seat, folder in folders:
        run_dir = folder / "runs" / "run"
        run_dir.mkdir(parents=True)
        outcomes = ["solo" if step in solo.get(seat, ()) else "paired" for step in range(4)]
        lines = [{"kind": "outer", "outer_step": step, "outcome": outcome} for step, outcome in enumerate(outcomes)]
        (run_dir / "history.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return Histories.read(folders, "run")


def test_every_solo_step_of_an_even_number_of_replicas_is_unpaired(tmp_path: Path) -> None:
    assert outer_steps(tmp_path / "none", 2, {}).unpaired() == 0
    assert outer_steps(tmp_path / "two", 2, {Seat(1, 0): (3,), Seat(1, 1): (3,)}).unpaired() == 2


def test_one_replica_of_each_stage_may_rest_when_their_number_is_odd(tmp_path: Path) -> None:
    resting = {Seat(0, 0): (0, 1), Seat(0, 1): (2,), Seat(0, 2): (3,), Seat(1, 2): (0, 1, 2, 3)}
    assert outer_steps(tmp_path / "rest", 3, resting).unpaired() == 0
    assert outer_steps(tmp_path / "more", 3, resting | {Seat(1, 1): (1,), Seat(1, 0): (1,)}).unpaired() == 2
    assert outer_steps(tmp_path / "alone", 1, dict.fromkeys((Seat(0, 0), Seat(1, 0)), (0, 1, 2, 3))).unpaired() == 0


@pytest.mark.parametrize(
    "change",
    [
        {"unpaired": 1},
        {"outer_steps": {"paired": 7, "solo": 0}},
        {"averaged_perplexity": 250.0},
        {"averaged_perplexity": float("nan")},
        {"averaged_perplexity": 10.5},
    ],
)
def test_run_that_did_not_do_what_was_asked_misses_its_target(change: dict[str, Any]) -> None:
    target = demo_module._target(PLAIN)
    demo_module._judge(GOOD, target)
    with pytest.raises(TargetMissed):
        demo_module._judge(GOOD | change, target)


@pytest.mark.parametrize(
    "changed", [{"outer_steps": 2}, {"inner_steps": 5}, {"preset": "tiny"}, {"stages": 1}, {"replicas": 3}]
)
def test_only_a_run_as_it_comes_must_reach_the_known_perplexity(changed: dict[str, Any]) -> None:
    assert demo_module._target(PLAIN) == 10.0
    assert demo_module._target(PLAIN | changed) is None
    assert demo_module._target(PLAIN | {"target_perplexity": 30.0} | changed) == 30.0


def test_help_says_what_code_0_means() -> None:
    shown = " ".join(CliRunner().invoke(demo_module.demo, ["--help"]).output.split())
    assert "held-out perplexity down to 10" in shown
    assert "three minutes" in shown


def test_spread_is_nowhere_called_the_distance_of_the_slow_weights() -> None:
    root = Path(__file__).parents[2]
    files = [p for f in ("noloco_node", "docs", "dashboards") for p in (root / f).rglob("*") if p.suffix in SHOWN]
    said = [file.name for file in files if re.search(r"phi_a - phi_b|difference of slow", file.read_text())]
    assert said == []


SHOWN = {".py", ".md", ".json"}


def test_partners_equal_curves_are_both_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    monkeypatch.setattr(pyplot, "close", lambda figure: None)
    spreads = [{"kind": "spread", "outer_step": step, "spread": 0.1} for step in range(3)]
    plot(Histories({Seat(0, replica): spreads for replica in range(2)}), tmp_path / "training.png")
    axes = pyplot.gcf().axes[1]
    below, above = axes.get_lines()
    assert below.get_linewidth() > above.get_linewidth()
    assert (below.get_linestyle(), above.get_linestyle()) == ("-", "--")
    assert all(float(tick).is_integer() for tick in axes.get_xticks())


# --- a swarm that hangs ---------------------------------------------------------------------------


@dataclass
class HangingSwarm:
    """Two nodes; `statuses` holds what they say one poll after the other, the last for ever."""

    statuses: list[dict[str, Any]]
    is_stopped: bool = False
    data_dir: Path = Path("demo")
    polls: int = 0
    nodes: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        process = SimpleNamespace(poll=lambda: 0 if self.is_stopped else None)
        self.nodes = [SimpleNamespace(seat=Seat(0, r), process=process, status={}) for r in range(2)]

    @property
    def running(self) -> list[Any]:
        return [] if self.is_stopped else self.nodes

    def failed(self) -> None:
        return None

    def poll(self) -> list[dict[str, Any]]:
        self.nodes[1].status = self.statuses[min(self.polls, len(self.statuses) - 1)]
        self.polls += 1
        return [node.status for node in self.nodes]

    def stop(self) -> None:
        self.is_stopped = True


def test_swarm_in_which_nothing_moves_is_stopped_and_said_to_stand() -> None:
    moving = [{"phase": "training", "outer_step": 1, "inner_step": step} for step in range(20)]
    swarm = HangingSwarm([*moving, moving[-1] | {"phase": "exchanging", "waits_for": "seat 1.0", "loss": 3.0}])
    with pytest.raises(NolocoError, match=r"node 0\.1 in phase exchanging at step 1\.19, waiting for seat 1\.0"):
        wait_for_end(swarm, lambda statuses: None, 0.0, clock=lambda: swarm.polls * STALL_S / 4)  # type: ignore[arg-type]
    assert swarm.is_stopped
    assert len(moving) + 4 <= swarm.polls <= len(moving) + 6
