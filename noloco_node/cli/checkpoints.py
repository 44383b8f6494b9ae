"""Which checkpoint files a command means: folders given by name, checked against the run spec."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from noloco_node.cli.progress import say
from noloco_node.config.run_spec import RunSpec
from noloco_node.errors import BadCheckpoint, WrongRun

if TYPE_CHECKING:
    from noloco_node.training.export import CheckpointSet

ADVICE = "name a node's --data-dir or its checkpoint folder"


def checkpoints_in(folders: Iterable[Path]) -> list[Path]:
    """The newest whole checkpoint of each seat below the folders. Raises BadCheckpoint when there is none."""
    folders = list(folders)
    missing = [folder for folder in folders if not folder.is_dir()]
    if missing:
        raise BadCheckpoint(f"there is no folder {missing[0]}", ADVICE)
    say(f"reading the checkpoints below {', '.join(map(str, folders))}")
    from noloco_node.training.export import find_checkpoints

    found = [path for folder in folders for path in find_checkpoints(folder)]
    if not found:
        names = ", ".join(str(folder) for folder in folders)
        raise BadCheckpoint(f"no complete checkpoint below {names}", ADVICE)
    return found


def of_run(paths: Iterable[Path], spec: RunSpec | None) -> CheckpointSet:
    """Raises WrongRun when the files are of another run than `spec`."""
    from noloco_node.training.export import collect

    found = collect(paths)
    if spec is not None and found.meta.run != spec.run_id:
        raise WrongRun(
            f"the checkpoints are of run {found.meta.run}, the run spec is run {spec.run_id}", "name their own run spec"
        )
    return found
