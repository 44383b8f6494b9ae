"""Which checkpoint files a command means: folders given by name, checked against the run spec."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from noloco_node.config.run_spec import RunSpec
from noloco_node.errors import BadCheckpoint, WrongRun
from noloco_node.training.export import CheckpointSet, collect, find_checkpoints


def checkpoints_in(folders: Iterable[Path]) -> list[Path]:
    """The newest whole checkpoint of each seat below the folders. Raises BadCheckpoint when there is none."""
    folders = list(folders)
    found = [path for folder in folders for path in find_checkpoints(folder)]
    if not found:
        names = ", ".join(str(folder) for folder in folders)
        raise BadCheckpoint(
            f"no complete checkpoint below {names}", "name a node's --data-dir or its checkpoint folder"
        )
    return found


def of_run(paths: Iterable[Path], spec: RunSpec | None) -> CheckpointSet:
    """Raises WrongRun when the files are of another run than `spec`."""
    found = collect(paths)
    if spec is not None and found.meta.run != spec.run_id:
        raise WrongRun(
            f"the checkpoints are of run {found.meta.run}, the run spec is run {spec.run_id}", "name their own run spec"
        )
    return found
