"""The figures of a chaos run, from what the nodes left on disk and what the swarm's watch saw.

Owns the JSON, and what makes it a failure. Must not know how the runs were made.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from chaos_swarm import ChaosSwarm
from micro_batch_audit import Line, Tokens, audit, tokens

from noloco_node.errors import BadCheckpoint
from noloco_node.training import checkpoint
from noloco_node.training.evaluation import evaluate_initial, perplexity, whole_model
from noloco_node.training.export import average_stages, collect, find_checkpoints
from noloco_node.training.reader import held_out_rows

LOSS_RATIO_MAX = 1.05
ROWS = 256  # held-out rows, the same for both runs
EQUAL_TOKENS = (
    "the undisturbed run goes on until its first stage has trained at least as many tokens as that of the chaos run "
    "did, what restarts undid and did again counted each time; learning rate constant, averaged newest checkpoints"
)


@dataclass(frozen=True, slots=True)
class Trained:
    """What one run came to."""

    loss: float
    tokens: Tokens
    outcomes: dict[str, int]
    reasons: dict[str, int]
    network: str


def histories(swarm: ChaosSwarm) -> dict[str, list[Line]]:
    """Every node's history, the part that was rolled over first."""
    found: dict[str, list[Line]] = {}
    for name, node in swarm.nodes.items():
        path = node.folder / "runs" / swarm.spec.run_id / "history.jsonl"
        found[name] = [line for part in (path.with_suffix(".jsonl.1"), path) for line in read_lines(part)]
    return found


def read_lines(path: Path) -> list[Line]:
    """A killed process may have left half a line at the end, and its successor written on behind it."""
    found: list[Line] = []
    if path.exists():
        for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                found.append(json.loads(text))
            except ValueError:
                continue
    return found


def trained(swarm: ChaosSwarm) -> Trained:
    """Held-out loss of the averaged model, and how much went into it."""
    torch.set_num_threads(2)
    lines = histories(swarm)
    found = collect(checkpoint_files(swarm))
    rows = held_out_rows(swarm.spec.training_settings(), ROWS)
    loss = perplexity(whole_model(found.meta.model, average_stages(found), "cpu"), rows).loss
    closed = [line for node in lines.values() for line in node if line["kind"] == "outer"]
    outcomes = Counter(line["outcome"] for line in closed)
    reasons = Counter(line["reason"] for line in closed if line["outcome"] == "solo")
    return Trained(loss, tokens(lines), dict(outcomes), dict(reasons), swarm.network.words)


def checkpoint_files(swarm: ChaosSwarm) -> list[Path]:
    return [path for node in swarm.nodes.values() for path in find_checkpoints(node.folder)]


def corrupt_checkpoints(folders: Iterable[Path]) -> list[str]:
    """Files under a checkpoint's name that are not whole, finite and right by their digest, or were set aside."""
    bad = []
    for folder in folders:
        bad += [str(path) for path in folder.rglob(f"*{checkpoint.SET_ASIDE}")]
        for path in sorted(folder.rglob("step-*.safetensors")):
            try:
                tensors = checkpoint.read_tensors(path, checkpoint.read_meta(path))
            except BadCheckpoint as error:
                bad.append(f"{path}: {error}")
                continue
            if not checkpoint.is_finite(tensors):
                bad.append(f"{path}: not finite")
    return bad


def summary(
    chaos: ChaosSwarm, disturbed: Trained, undisturbed: Trained, vacant: list[str], orphans: list[str]
) -> dict[str, Any]:
    """The figures by their agreed names first, then what explains them."""
    books = audit(histories(chaos))
    corrupt = corrupt_checkpoints(node.folder for node in chaos.nodes.values())
    return {
        "loss_ratio": round(disturbed.loss / undisturbed.loss, 4),
        "hangs": len(chaos.watch.hangs),
        "corrupt_checkpoints": len(corrupt),
        "orphans": len(orphans),
        "micro_batches": asdict(books),
        "events": chaos.told(),
        "deaths": chaos.deaths,
        "seats_vacant_at_end": vacant,
        "network": {"chaos": chaos.network.words, "undisturbed": undisturbed.network},
        "equal_tokens": EQUAL_TOKENS,
        "loss": {
            "initial": round(evaluate_initial(chaos.spec.training_settings(), rows_max=ROWS).loss, 4),
            "chaos": round(disturbed.loss, 4),
            "undisturbed": round(undisturbed.loss, 4),
        },
        "tokens": {"chaos": asdict(disturbed.tokens), "undisturbed": asdict(undisturbed.tokens)},
        "outer_steps": {"chaos": disturbed.outcomes, "undisturbed": undisturbed.outcomes},
        "solo_reasons": {"chaos": disturbed.reasons, "undisturbed": undisturbed.reasons},
        "details": {
            "hangs": [asdict(hang) for hang in chaos.watch.hangs],
            "corrupt_checkpoints": corrupt,
            "orphans": orphans,
        },
    }


def faults(found: dict[str, Any]) -> list[str]:
    """Why the run failed, in words; empty when it did not."""
    books: dict[str, int] = found["micro_batches"]
    checks = {
        f"loss_ratio {found['loss_ratio']} is above {LOSS_RATIO_MAX}": not found["loss_ratio"] <= LOSS_RATIO_MAX,
        f"{found['hangs']} hangs": found["hangs"],
        f"{found['corrupt_checkpoints']} corrupt checkpoints": found["corrupt_checkpoints"],
        f"{found['orphans']} orphans": found["orphans"],
        f"{books['unaccounted']} micro-batches unaccounted for": books["unaccounted"],
        f"{len(found['deaths'])} nodes ended that should not": found["deaths"],
        f"seats vacant at the end: {found['seats_vacant_at_end']}": found["seats_vacant_at_end"],
    }
    return [words for words, is_fault in checks.items() if is_fault]
