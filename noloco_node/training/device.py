"""Picks the device that a trainer owns, and says plainly when it is missing or full."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from noloco_node.errors import DeviceFailed

WORDS_MAX = 160  # of a library's own message


def resolve_device(name: str) -> torch.device:
    """`auto` (the first GPU, else the CPU), `cpu`, `cuda` or `cuda:N`. Raises DeviceFailed."""
    if name == "auto":
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise DeviceFailed(f"device {name!r} is unknown", "use auto, cpu or cuda:N") from error
    if device.type not in ("cpu", "cuda"):
        raise DeviceFailed(f"device {name!r} is not supported", "use auto, cpu or cuda:N")
    if device.type == "cuda":
        _check_cuda(device, name)
    return device


def check_compiler(device: torch.device) -> None:
    """Compile a sum for the device that was never compiled before, so that no cache answers. Raises DeviceFailed."""
    never_before = time.time()
    try:
        torch.compile(lambda x: (x * never_before).sum())(torch.ones(8, device=device))
    except Exception as error:
        cause = next(iter(str(error).splitlines()), "")[:WORDS_MAX]
        raise DeviceFailed(
            f"torch.compile does not work on {device} here: {type(error).__name__}: {cause}",
            "install a C++ compiler (for a GPU also Triton), or leave compile off",
        ) from error


def use_idle_cores() -> None:
    """For a command beside running nodes: torch's threads wait spinning for each other, and two of them on cores that
    others use are ten times slower than one. Linux's load average says how many cores are in use."""
    idle = (os.cpu_count() or 1) - round(os.getloadavg()[0])
    torch.set_num_threads(max(1, min(idle, torch.get_num_threads())))


@contextmanager
def memory_guard() -> Iterator[None]:
    """Turns torch's out-of-memory error into DeviceFailed."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise DeviceFailed("the device is out of memory", "lower micro_batch_size or use more stages") from error


def _check_cuda(device: torch.device, name: str) -> None:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if (device.index or 0) >= count:
        raise DeviceFailed(f"device {name} is not there: torch sees {count} CUDA devices", "use auto or cpu")
