"""Names of the codecs that carry x, and how many bytes each makes of how many values.

Owns the layouts that both sides of an exchange and every version agree on; written with + - * // only, so that a size
announced in BEGIN can be judged before a byte of the tensor is here. Must not know tensors or how a codec works
(`training/codec`).

An encoded x is a row of blocks of equal size. The last block is sent whole, filled up with zeros, so that any run of
blocks is a run of bytes and can be encoded, sent and decoded by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from noloco_node.errors import BadSpec


@dataclass(frozen=True, slots=True)
class Layout:
    """Of one block: how many values, how many bytes in the encoded x, how many bytes in the sketch sent before it."""

    block_values: int
    block_bytes: int
    sketch_bytes: int = 0


_SCALE_BYTES: Final = 1  # exponent of a power of two
_CHECK_BYTES: Final = 4  # of a lattice block
_LATTICE_VALUES: Final = 8192
_SKETCH_BYTES: Final = 32 * 4  # 31 samples and the largest magnitude, float32

LAYOUTS: Final = {
    "float32": Layout(1, 4),
    "bfloat16": Layout(1, 2),
    "int8": Layout(256, _SCALE_BYTES + 256),
    "int4": Layout(64, _SCALE_BYTES + 64 // 2),
    "lattice5": Layout(_LATTICE_VALUES, _CHECK_BYTES + 5 * _LATTICE_VALUES // 8, _SKETCH_BYTES),
    "lattice4": Layout(_LATTICE_VALUES, _CHECK_BYTES + 4 * _LATTICE_VALUES // 8, _SKETCH_BYTES),
}


def layout(codec: str) -> Layout:
    """Raises BadSpec for a codec that this version does not know."""
    if codec not in LAYOUTS:
        raise BadSpec(f"codec {codec[:40]!r} is not known", f"one of {', '.join(LAYOUTS)}")
    return LAYOUTS[codec]


def slow_codec(codec: str) -> str:
    """Mode prefetch: the codec of phi beside that of Delta. Raises BadSpec for an unknown codec.

    phi is larger than Delta by orders of magnitude and does not shrink: quantised in blocks it would keep the replicas'
    spread above the blocks' steps, and its time is not the boundary's. So it is rounded to bfloat16 at most.
    """
    layout(codec)
    return "float32" if codec == "float32" else "bfloat16"


def encoded_bytes(codec: str, num_values: int) -> int:
    """Size of an encoded x of so many values. Raises BadSpec for an unknown codec."""
    return _blocks(layout(codec), num_values) * layout(codec).block_bytes


def sketch_bytes(codec: str, num_values: int) -> int:
    """Size of the sketch that both sides send before x; 0 for a codec without. Raises BadSpec for an unknown codec."""
    return _blocks(layout(codec), num_values) * layout(codec).sketch_bytes


def _blocks(layout: Layout, num_values: int) -> int:
    return (num_values + layout.block_values - 1) // layout.block_values
