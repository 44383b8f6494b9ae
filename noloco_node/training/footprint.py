"""Which stages of a model fit a device: the memory that one seat's weights take, against what is free.

Activations come on top and depend on the micro-batch; they are not counted. Must not know who asks.
"""

from __future__ import annotations

from pathlib import Path

import torch

from noloco_node.core.types import Seat
from noloco_node.errors import DeviceFailed
from noloco_node.training.architecture import model_config
from noloco_node.training.settings import TrainingSettings
from noloco_node.training.stage import cut_stage
from noloco_node.training.state_sizes import (
    DEVICE_BYTES_PER_PARAMETER,
    HOST_BYTES_PER_PARAMETER,
    PREFETCH_HOST_BYTES_PER_PARAMETER,
)

GIB = 1 << 30
MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")


def stage_parameters(settings: TrainingSettings) -> list[int]:
    """Parameters of each stage. Stages between the first and the last are alike. Raises BadModel."""
    last = settings.num_stages - 1
    counted = {stage: _count(settings, stage) for stage in sorted({0, min(1, last), last})}
    return [counted.get(stage, counted[min(1, last)]) for stage in range(settings.num_stages)]


def stage_bytes(settings: TrainingSettings, device: torch.device) -> list[int]:
    """Memory of each stage's state on that device."""
    host = PREFETCH_HOST_BYTES_PER_PARAMETER if settings.prefetch else HOST_BYTES_PER_PARAMETER
    each = host if device.type == "cpu" else DEVICE_BYTES_PER_PARAMETER
    return [parameters * each for parameters in stage_parameters(settings)]


def free_bytes(device: torch.device) -> int | None:
    """What can be had of the device's memory now; None when the system does not tell."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    found = [bytes_free for bytes_free in (_free_of_host(), _free_of_cgroup(CGROUP)) if bytes_free is not None]
    return min(found, default=None)


def fitting_stages(
    settings: TrainingSettings, device: torch.device, limit_bytes: int, wanted: Seat | None
) -> frozenset[int] | None:
    """The stages whose state fits; None when nobody knows what is free. `limit_bytes` 0: what is free now counts.

    Raises DeviceFailed when the wanted seat's stage does not fit, or none does; BadModel.
    """
    room = limit_bytes or free_bytes(device)
    if room is None:
        return None
    needed = stage_bytes(settings, device)
    fitting = frozenset(stage for stage, size in enumerate(needed) if size <= room)
    if not fitting or (wanted is not None and wanted.stage not in fitting):
        least = min(needed) if wanted is None else needed[wanted.stage]
        what = "the smallest stage" if wanted is None else f"the stage of seat {wanted}"
        raise DeviceFailed(
            f"{what} takes {least / GIB:.2f} GiB for its weights and optimizer; {device} has {room / GIB:.2f} GiB",
            "free some memory, take a seat of a smaller stage, or set memory_max_gib if this is not so",
        )
    return fitting


def _count(settings: TrainingSettings, stage: int) -> int:
    cut = cut_stage(model_config(settings.model), settings.num_stages, stage)
    return sum(parameter.numel() for parameter in cut.parameters())


def _free_of_host() -> int | None:
    """Linux: what programs can have without swapping."""
    try:
        words = dict(line.split(":", 1) for line in MEMINFO.read_text().splitlines() if ":" in line)
        return int(words["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None


def _free_of_cgroup(folder: Path) -> int | None:
    """A container's limit, less what it uses."""
    try:
        limit = (folder / "memory.max").read_text().strip()
        return None if limit == "max" else max(0, int(limit) - int((folder / "memory.current").read_text()))
    except (OSError, ValueError):
        return None
