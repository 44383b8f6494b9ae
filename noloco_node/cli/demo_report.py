"""What the demo leaves behind: figures, plot and the exported model, all from what the nodes wrote themselves."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from noloco_node.config.run_spec import RunSpec
from noloco_node.core.types import Seat

Line = dict[str, Any]
STROKES: tuple[dict[str, Any], ...] = (
    {"linestyle": "-", "linewidth": 4.0, "marker": "o", "markersize": 8.0},
    {"linestyle": "--", "linewidth": 1.5, "marker": "o", "markersize": 4.0},
    {"linestyle": "-", "linewidth": 4.0, "marker": "s", "markersize": 8.0},
    {"linestyle": "--", "linewidth": 1.5, "marker": "s", "markersize": 4.0},
)
"""Partners measure the same spread: thin broken lines upon broad ones, so that both are seen."""


@dataclass(frozen=True, slots=True)
class Histories:
    """`history.jsonl` of every node, by seat."""

    lines: dict[Seat, list[Line]]

    @classmethod
    def read(cls, folders: Iterable[tuple[Seat, Path]], run_id: str) -> Histories:
        return cls({seat: _read_lines(folder / "runs" / run_id / "history.jsonl") for seat, folder in folders})

    def of_kind(self, kind: str) -> dict[Seat, list[Line]]:
        return {seat: [line for line in lines if line["kind"] == kind] for seat, lines in self.lines.items()}

    def outcomes(self) -> dict[str, int]:
        """Closed outer steps of all seats together, by outcome."""
        found = [line["outcome"] for lines in self.of_kind("outer").values() for line in lines]
        return {name: found.count(name) for name in ("paired", "solo")}

    def unpaired(self) -> int:
        """Outer steps closed solo by a replica that had a partner drawn: with an odd number one of a stage rests."""
        replicas = Counter(seat.stage for seat in self.lines)
        solo = Counter(
            (seat.stage, line["outer_step"])
            for seat, lines in self.of_kind("outer").items()
            for line in lines
            if line["outcome"] == "solo"
        )
        return sum(max(0, count - replicas[stage] % 2) for (stage, _), count in solo.items())

    def tokens_total(self) -> int:
        """Tokens trained on: those of stage 0, where each is counted once."""
        first = {seat: lines for seat, lines in self.of_kind("inner").items() if seat.stage == 0}
        return sum(line["tokens"] for lines in first.values() for line in lines)

    def training_s(self) -> float:
        """From the weights being in place everywhere to the last closed outer step."""
        begun = [line["unix_s"] for lines in self.of_kind("loaded").values() for line in lines]
        ended = [line["unix_s"] for kind in ("inner", "outer") for x in self.of_kind(kind).values() for line in x]
        return max(0.0, max(ended, default=0.0) - max(begun, default=0.0))


def _read_lines(path: Path) -> list[Line]:
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, ValueError):
        return []


def summary(spec: RunSpec, histories: Histories, folders: list[Path], out_dir: Path) -> dict[str, Any]:
    """Evaluate, export and collect. Raises NolocoError when a stage left no checkpoint."""
    from noloco_node.cli.progress import measuring, say
    from noloco_node.training.device import use_idle_cores
    from noloco_node.training.evaluation import evaluate_checkpoints, evaluate_initial
    from noloco_node.training.export import export_model, find_checkpoints

    checkpoints = [path for folder in folders for path in find_checkpoints(folder / "runs" / spec.run_id)]
    settings = spec.training_settings()
    use_idle_cores()
    with measuring() as watch:
        before = evaluate_initial(settings, watch=watch)
        report = evaluate_checkpoints(checkpoints, settings, watch=watch)
    say(f"exporting the averaged model to {out_dir}")
    export_model(checkpoints, out_dir)
    seconds = histories.training_s()
    tokens = histories.tokens_total()
    return {
        "run": spec.run_id,
        "nodes": spec.swarm.num_stages * spec.swarm.num_replicas,
        "stages": spec.swarm.num_stages,
        "replicas": spec.swarm.num_replicas,
        "initial_perplexity": before.perplexity,
        "averaged_perplexity": report.average.perplexity,
        "replica_perplexities": {str(replica): found.perplexity for replica, found in report.paths.items()},
        "held_out_tokens": report.average.tokens,
        "outer_steps": histories.outcomes(),
        "unpaired": histories.unpaired(),
        "outer_steps_per_seat": spec.outer.total_outer_steps,
        "tokens_total": tokens,
        "training_s": round(seconds, 3),
        "tokens_per_s": round(tokens / seconds, 1) if seconds else 0.0,
        "export_dir": str(out_dir),
    }


def plot(histories: Histories, path: Path) -> None:
    """Loss per node over the inner steps and the spread at each exchange: rms(x_b - x_a) / gamma.

    With gamma = beta, as in the presets, that is the distance of the partners' fast weights at the boundary.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker

    figure, (losses, spreads) = pyplot.subplots(1, 2, figsize=(11, 4), constrained_layout=True)
    for seat, lines in sorted(histories.of_kind("inner").items()):
        points = [(line["position"], line["loss"]) for line in lines if line["loss"] is not None]
        losses.plot(*_columns(points), label=str(seat), linewidth=1)
    for number, (seat, lines) in enumerate(sorted(histories.of_kind("spread").items())):
        points = [(line["outer_step"], line["spread"]) for line in lines]
        spreads.plot(*_columns(points), label=str(seat), **STROKES[number % len(STROKES)])
    spreads.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
    losses.set(title="training loss", xlabel="inner step", ylabel="nats per token")
    spreads.set(
        title="spread between replicas", xlabel="outer step", ylabel="rms difference of fast weights at the boundary"
    )
    for axes in (losses, spreads):
        axes.grid(alpha=0.3)
        axes.legend(title="stage.replica", fontsize="small")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _columns(points: list[tuple[Any, Any]]) -> tuple[list[Any], list[Any]]:
    return [x for x, _ in points], [y for _, y in points]
