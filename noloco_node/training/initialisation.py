"""Initial weights that are the same bits on every processor, drawn per parameter from (run seed, parameter name).

No replica sends weights to another at the start (DESIGN section 2): each draws its own stage. A floating-point
generator such as torch's `normal_` differs between processors, so everything here is integer arithmetic, followed by
one correctly rounded float32 product. Golden vectors: tests/vectors/initialisation.json.

The draw of element i: splitmix64 at step i + 1 from the key (core.seed, word `init`), its four 16-bit quarters added
up. The sum of four uniform integers is nearly normal (bounded at 3.46 standard deviations), is below 2^18 and thus
exact in float32.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from noloco_node.core.seed import key64
from noloco_node.training.stage import Stage

CHUNK_ELEMENTS = 1 << 16  # fits a second-level cache
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_LANES = np.uint64(0x0000FFFF0000FFFF)
_LOW = np.uint64(0x00000000FFFFFFFF)
_SUM_MEAN = 2 * 65535  # of four draws from 0..65535
_SUM_STD = math.sqrt(4 * (65536**2 - 1) / 12)


def normal_draws(seed: int, name: str, count: int, std: float) -> Iterator[NDArray[np.float32]]:
    """`count` draws of mean 0 and standard deviation `std`, in chunks."""
    key, scale = key64(seed, "init", name), np.float32(std / _SUM_STD)
    for start in range(0, count, CHUNK_ELEMENTS):
        mixed = _splitmix64(key, start, min(CHUNK_ELEMENTS, count - start))
        yield _quarter_sums(mixed).astype(np.float32) * scale


def _splitmix64(key: int, start: int, count: int) -> NDArray[np.uint64]:
    """Outputs start .. start + count of the splitmix64 sequence of `key` (arithmetic modulo 2^64)."""
    z = np.arange(start + 1, start + count + 1, dtype=np.uint64)
    z *= _GOLDEN
    z += np.uint64(key)
    shifted = np.empty_like(z)
    for shift, factor in ((30, _MIX_1), (27, _MIX_2), (31, None)):
        np.right_shift(z, np.uint64(shift), out=shifted)
        np.bitwise_xor(z, shifted, out=z)
        if factor is not None:
            np.multiply(z, factor, out=z)
    return z


def _quarter_sums(z: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Sum of the four 16-bit quarters of each number, less its mean: two lanes at once, then the lanes."""
    upper = (z >> np.uint64(16)) & _LANES
    z &= _LANES
    z += upper
    sums = (z & _LOW) + (z >> np.uint64(32))
    return sums.astype(np.int64) - _SUM_MEAN


@torch.no_grad()
def draw_weights(stage: Stage, seed: int) -> None:
    """Fill a materialised stage: matrices with std = `initializer_range`, norms as the family sets them, biases 0."""
    names = {id(parameter): name for name, parameter in stage.named_parameters()}
    for module in stage.modules():
        own = list(module.parameters(recurse=False))
        if own and all(parameter.dim() < 2 for parameter in own):
            stage.reset_module(module)
            continue
        for parameter in own:
            _fill(parameter, seed, names[id(parameter)], stage.config.initializer_range)


def _fill(parameter: nn.Parameter, seed: int, name: str, std: float) -> None:
    if parameter.dim() < 2:
        parameter.zero_()
        return
    flat, start = parameter.view(-1), 0
    for chunk in normal_draws(seed, name, parameter.numel(), std):
        flat[start : start + chunk.size].copy_(torch.from_numpy(chunk))
        start += chunk.size


def stage_hash(stage: Stage) -> str:
    """Digest of names, shapes and every bit of the weights: equal stages have equal hashes on every machine."""
    digest = hashlib.blake2b(digest_size=16)
    for name, parameter in sorted(stage.named_parameters()):
        digest.update(_shape_line(name, parameter))
        digest.update(memoryview(parameter.detach().cpu().contiguous().numpy()).cast("B"))
    return digest.hexdigest()


def shape_hash(stage: Stage) -> str:
    """Digest of names and shapes only: what two partners of an exchange must have in common."""
    digest = hashlib.blake2b(digest_size=16)
    for name, parameter in sorted(stage.named_parameters()):
        digest.update(_shape_line(name, parameter))
    return digest.hexdigest()


def _shape_line(name: str, parameter: nn.Parameter) -> bytes:
    return f"{name} {tuple(parameter.shape)}\n".encode()
