"""Checkpoints: one safetensors file each, `step-000012.safetensors`, whole or not there at all.

Owns the file's form and the order of writing: aside, fsync, rename, fsync of the folder. The same file is what a
newcomer is sent. Tensors: `fast/NAME`, `slow/NAME`, `momentum/NAME`, `exp_avg/NAME`, `exp_avg_sq/NAME`, float32. The
header's metadata holds one JSON object (`Meta`). Must not know trainers, only named tensors.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from noloco_node.core import limits
from noloco_node.core.types import Seat
from noloco_node.errors import BadCheckpoint, DiskFailed, WrongRun

FORMAT = 1
METADATA_KEY = "noloco"
PARTS = ("fast", "slow", "momentum", "exp_avg", "exp_avg_sq")
SET_ASIDE = ".unusable"
_NAME = re.compile(r"^step-(\d+)\.safetensors$")


@dataclass(frozen=True, slots=True)
class Meta:
    """What a checkpoint says of itself. `model`, `tokenizer` make an export possible from files alone."""

    run: str
    seat: tuple[int, int]
    num_stages: int
    shape_hash: str
    outer_step: int
    inner_step: int
    data_next: int
    adam_steps: int
    reader: dict[str, Any] | None  # position in the data, stage 0 only
    model: dict[str, Any]
    tokenizer: dict[str, Any]
    notes: dict[str, Any] = field(default_factory=dict)  # last outcome, partner, versions
    digest: str = ""  # BLAKE2b-128 of all tensors' bytes in name order
    format: int = FORMAT

    @property
    def place(self) -> Seat:
        return Seat(*self.seat)


def file_name(outer_step: int) -> str:
    return f"step-{outer_step:06d}.safetensors"


def newest(folder: Path) -> Path | None:
    """The whole checkpoint with the highest outer step in `folder`; damaged ones are passed over."""
    return next((path for path in reversed(_listed(folder)) if _is_whole(path)), None)


def by_age(folder: Path) -> list[Path]:
    """Every checkpoint file of the folder, whole or not, the highest outer step first."""
    return _listed(folder)[::-1]


def set_aside(path: Path) -> Path:
    """Rename a file that cannot be used, so that it is neither read again nor removed as old. Raises DiskFailed."""
    aside = path.with_suffix(SET_ASIDE)
    with _writing(path.parent):
        path.replace(aside)
    return aside


def read_meta(path: Path) -> Meta:
    """The header alone: cheap, and enough to see that the file is not cut short. Raises BadCheckpoint."""
    with _reading(path), safe_open(path, framework="pt") as file:
        return _parse(file.metadata() or {}, path)


def load(path: Path, *, run: str, shape_hash: str) -> tuple[Meta, dict[str, dict[str, Tensor]]]:
    """Tensors by part and parameter name. Raises WrongRun, and BadCheckpoint when damaged or of other shapes."""
    meta = read_meta(path)
    if meta.run != run:
        raise WrongRun(f"checkpoint {path.name} belongs to run {meta.run}", "use another data directory for this run")
    if meta.shape_hash != shape_hash:
        raise BadCheckpoint(f"checkpoint {path.name} is of another stage or model shape")
    return meta, read_tensors(path, meta)


def read_tensors(path: Path, meta: Meta, parts: tuple[str, ...] = PARTS) -> dict[str, dict[str, Tensor]]:
    """The tensors of `parts`; when all are read the digest is checked as well. Raises BadCheckpoint."""
    with _reading(path), safe_open(path, framework="pt") as file:
        named = {name: file.get_tensor(name) for name in file.keys() if name.split("/", 1)[0] in parts}  # noqa: SIM118
    if parts == PARTS and _digest(named) != meta.digest:
        raise BadCheckpoint(f"checkpoint {path.name} is damaged: its digest is wrong")
    return {part: _part(named, part) for part in parts}


def save(folder: Path, meta: Meta, tensors: dict[str, dict[str, Tensor]]) -> Path:
    """Write the checkpoint of `meta.outer_step` whole, then remove what is no longer kept. Raises DiskFailed.

    `tensors` are host copies that nobody changes meanwhile. Files of higher steps belong to a history given up.
    """
    named = {f"{part}/{name}": tensor for part, named in tensors.items() for name, tensor in named.items()}
    header = asdict(meta) | {"digest": _digest(named)}
    path = folder / file_name(meta.outer_step)
    with _writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        _replace(path, named, {METADATA_KEY: json.dumps(header)})
        _prune(folder, meta.outer_step)
    return path


def is_finite(tensors: dict[str, dict[str, Tensor]]) -> bool:
    """Whether a state may be kept at all."""
    return all(bool(torch.isfinite(tensor).all()) for named in tensors.values() for tensor in named.values())


def _replace(path: Path, named: dict[str, Tensor], metadata: dict[str, str]) -> None:
    aside = path.with_suffix(".partial")
    try:
        save_file(named, aside, metadata)
        _sync(aside)
        aside.replace(path)
        _sync(path.parent)
    except BaseException:
        with suppress(OSError):
            aside.unlink(missing_ok=True)
        raise


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _prune(folder: Path, outer_step: int) -> None:
    """Keep this step and the newest before it."""
    past = [path for path in _listed(folder) if _step(path) <= outer_step]
    kept = set(past[-limits.CHECKPOINTS_KEPT :])
    for path in _listed(folder):
        if path not in kept:
            path.unlink(missing_ok=True)


def _listed(folder: Path) -> list[Path]:
    """Checkpoint files by rising outer step."""
    found = [path for path in folder.glob("step-*.safetensors") if _NAME.match(path.name)]
    return sorted(found, key=_step)


def _step(path: Path) -> int:
    match = _NAME.match(path.name)
    return int(match.group(1)) if match else -1


def _is_whole(path: Path) -> bool:
    try:
        read_meta(path)
    except BadCheckpoint:
        return False
    return True


def _parse(metadata: dict[str, str], path: Path) -> Meta:
    try:
        fields = json.loads(metadata[METADATA_KEY])
        if fields["format"] != FORMAT:
            raise BadCheckpoint(f"checkpoint {path.name} has format {fields['format']}, this version reads {FORMAT}")
        return Meta(**fields | {"seat": tuple(fields["seat"])})
    except (KeyError, TypeError, ValueError) as error:
        raise BadCheckpoint(f"{path.name} is not a checkpoint of noloco-node") from error


def _digest(named: dict[str, Tensor]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(named):
        digest.update(name.encode())
        digest.update(memoryview(named[name].contiguous().numpy()).cast("B"))
    return digest.hexdigest()


def _part(named: dict[str, Tensor], part: str) -> dict[str, Tensor]:
    prefix = f"{part}/"
    return {name.removeprefix(prefix): tensor for name, tensor in named.items() if name.startswith(prefix)}


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except (SafetensorError, OSError) as error:
        raise BadCheckpoint(f"checkpoint {path.name} cannot be read: {error}") from error


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except (SafetensorError, OSError) as error:
        raise DiskFailed(
            f"no checkpoint can be written to {folder}: {error}", "free space, check permissions"
        ) from error
