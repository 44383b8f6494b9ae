"""Codecs of the exchange: float32, bfloat16, int8, int4, lattice5, lattice4, behind one small port (`port.Codec`).

Sizes and names are the core's (`core/codec_sizes.py`); the bytes of each are held by tests/vectors/codecs.json.
"""

from __future__ import annotations

from collections.abc import Callable

from noloco_node.core import codec_sizes
from noloco_node.errors import BadSpec
from noloco_node.training.codec.bfloat16 import BFloat16
from noloco_node.training.codec.float32 import Float32
from noloco_node.training.codec.int4 import Int4
from noloco_node.training.codec.int8 import Int8
from noloco_node.training.codec.lattice import Lattice
from noloco_node.training.codec.port import NOTHING, VALUE_MAX, Codec, Correction, ValueCodec

__all__ = ["NAMES", "NOTHING", "VALUE_MAX", "Codec", "Correction", "ValueCodec", "codec", "value_codec"]

NAMES = tuple(codec_sizes.LAYOUTS)
_VALUE_CODECS: dict[str, Callable[[str], ValueCodec]] = {
    "float32": Float32,
    "bfloat16": BFloat16,
    "int8": Int8,
    "int4": Int4,
}
_LATTICE_BITS = {"lattice5": 5, "lattice4": 4}


def codec(name: str, seed: int = 0) -> Codec:
    """The codec of that name. `seed` (0 .. 2^64 - 1), the same on both sides, matters to lattices only.

    Raises BadSpec for an unknown name.
    """
    if name in _LATTICE_BITS:
        return Lattice(name, _LATTICE_BITS[name], seed)
    return value_codec(name)


def value_codec(name: str) -> ValueCodec:
    """One whose bytes tell x by themselves. Raises BadSpec for any other name."""
    codec_sizes.layout(name)
    if name not in _VALUE_CODECS:
        raise BadSpec(f"codec {name} tells differences only", f"one of {', '.join(_VALUE_CODECS)}")
    return _VALUE_CODECS[name](name)
