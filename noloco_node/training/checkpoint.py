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
from noloco_node.ports import StateParts

FORMAT = 2
METADATA_KEY = "noloco"
LENGTH_BYTES = 8  # of a safetensors header, before it
PARTS = ("fast", "slow", "momentum", "exp_avg", "exp_avg_sq")
SLOW_PARTS = ("slow", "momentum")
MOMENT_PARTS = ("exp_avg", "exp_avg_sq")
GIVEN = {StateParts.SLOW: SLOW_PARTS, StateParts.SLOW_AND_MOMENTS: SLOW_PARTS + MOMENT_PARTS, StateParts.WHOLE: PARTS}
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
    digests: dict[str, str] = field(default_factory=dict)  # by part: BLAKE2b-128 of its tensors' bytes in name order
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


def load(
    path: Path, *, run: str, shape_hash: str, parts: tuple[str, ...] = PARTS
) -> tuple[Meta, dict[str, dict[str, Tensor]]]:
    """Tensors by part and parameter name. Raises WrongRun, and BadCheckpoint when damaged or of other shapes.

    `parts` must be there whole; what else is in the file is not read.
    """
    meta = read_meta(path)
    if meta.run != run:
        raise WrongRun(f"checkpoint {path.name} belongs to run {meta.run}", "use another data directory for this run")
    if meta.shape_hash != shape_hash:
        raise BadCheckpoint(f"checkpoint {path.name} is of another stage or model shape")
    return meta, read_tensors(path, meta, parts)


def read_tensors(path: Path, meta: Meta, parts: tuple[str, ...] = PARTS) -> dict[str, dict[str, Tensor]]:
    """The tensors of `parts`, each part by its digest. Raises BadCheckpoint."""
    with _reading(path), safe_open(path, framework="pt") as file:
        named = {name: file.get_tensor(name) for name in file.keys() if name.split("/", 1)[0] in parts}  # noqa: SIM118
    found = {part: _part(named, part) for part in parts}
    for part, tensors in found.items():
        if part not in meta.digests:
            raise BadCheckpoint(f"checkpoint {path.name} has no {part} tensors")
        if _digest(tensors) != meta.digests[part]:
            raise BadCheckpoint(f"checkpoint {path.name} is damaged: the digest of its {part} tensors is wrong")
    return found


def excerpt(path: Path, wanted: StateParts) -> tuple[bytes, tuple[tuple[int, int], ...]]:
    """A head, and (offset, size) of this file: put together, a checkpoint file of these parts only.

    Nothing is copied: it is sent from the file as it lies there. Raises BadCheckpoint.
    """
    parts = GIVEN[wanted]
    with _reading(path), path.open("rb") as file:
        size_bytes = int.from_bytes(file.read(LENGTH_BYTES), "little")
        if size_bytes > os.fstat(file.fileno()).st_size:
            raise BadCheckpoint(f"{path.name} is cut short")
        header = json.loads(file.read(size_bytes))
    start = LENGTH_BYTES + size_bytes
    meta = json.loads(header.pop("__metadata__", {}).get(METADATA_KEY, "{}"))
    meta["digests"] = {part: digest for part, digest in meta.get("digests", {}).items() if part in parts}
    kept = {name: entry for name, entry in header.items() if name.split("/", 1)[0] in parts}
    spans, at = [], 0
    for entry in sorted(kept.values(), key=lambda entry: entry["data_offsets"]):
        first, end = entry["data_offsets"]
        spans.append((start + first, end - first))
        entry["data_offsets"] = [at, at + end - first]
        at += end - first
    head = json.dumps({"__metadata__": {METADATA_KEY: json.dumps(meta)}, **kept}).encode()
    head += b" " * (-len(head) % LENGTH_BYTES)
    return len(head).to_bytes(LENGTH_BYTES, "little") + head, _joined(spans)


def _joined(spans: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Neighbours as one."""
    joined: list[tuple[int, int]] = []
    for offset, size in spans:
        if joined and sum(joined[-1]) == offset:
            joined[-1] = joined[-1][0], joined[-1][1] + size
        elif size:
            joined.append((offset, size))
    return tuple(joined)


def save(folder: Path, meta: Meta, tensors: dict[str, dict[str, Tensor]]) -> Path:
    """Write the checkpoint of `meta.outer_step` whole, then remove what is no longer kept. Raises DiskFailed.

    `tensors` are host copies that nobody changes meanwhile. Files of higher steps belong to a history given up.
    """
    named = {f"{part}/{name}": tensor for part, named in tensors.items() for name, tensor in named.items()}
    header = asdict(meta) | {"digests": {part: _digest(tensors[part]) for part in tensors}}
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
        meta = Meta(**fields | {"seat": tuple(fields["seat"])})
        _check_kinds(meta)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise BadCheckpoint(f"{path.name} is not a checkpoint of noloco-node") from error
    return meta


def _check_kinds(meta: Meta) -> None:
    """A stranger's header may hold anything. Raises TypeError, ValueError."""
    stage, replica = meta.seat
    numbers = (stage, replica, meta.num_stages, meta.outer_step, meta.inner_step, meta.data_next, meta.adam_steps)
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise TypeError("a number is none")
    if not all(isinstance(word, str) for word in (meta.run, meta.shape_hash)):
        raise TypeError("a word is none")
    if not all(isinstance(table, dict) for table in (meta.model, meta.tokenizer, meta.notes, meta.digests)):
        raise TypeError("a table is none")
    if not isinstance(meta.reader, dict | None):
        raise TypeError("a table is none")


def _digest(named: dict[str, Tensor]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(named):
        if named[name].dtype is not torch.float32:
            raise BadCheckpoint(f"tensor {name[:80]} is {named[name].dtype}, a checkpoint holds float32")
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
    except (SafetensorError, OSError, ValueError) as error:
        raise BadCheckpoint(f"checkpoint {path.name} cannot be read: {error}") from error


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except (SafetensorError, OSError) as error:
        raise DiskFailed(
            f"no checkpoint can be written to {folder}: {error}", "free space, check permissions"
        ) from error
