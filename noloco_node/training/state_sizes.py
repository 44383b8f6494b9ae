"""Bytes per parameter of what a seat holds, on the device and on the host (docs/memory.md is made from it).

Owns what there is and when. Activations, which depend on the micro-batch, and the libraries themselves come on top.
Must not know a model or a device; imports nothing heavy.
"""

from __future__ import annotations

from noloco_node.core.codec_sizes import encoded_bytes, sketch_bytes, slow_codec

FLOAT_BYTES = 4
CHECKPOINT_PARTS = 5  # theta, phi, delta and the two moments, copied before they are written
DEVICE_PARTS = (
    ("fast weights theta", "always"),
    ("gradient sums", "from the first backward of an inner step to its end"),
    ("Adam's first moment", "always"),
    ("Adam's second moment", "always"),
    ("slow weights phi", "always"),
    ("momentum delta", "always"),
)
DEVICE_BYTES_PER_PARAMETER = len(DEVICE_PARTS) * FLOAT_BYTES
_LARGE = 1 << 20  # values, so many that a last block filled up with zeros does not count


def exchange_parts(codec: str, fragments: int) -> tuple[tuple[str, float], ...]:
    """What an exchange holds on the host, each with its bytes per parameter of the stage."""
    sent = (encoded_bytes(codec, _LARGE) + sketch_bytes(codec, _LARGE)) / _LARGE
    each = {"frozen x": FLOAT_BYTES, "x as it is sent": sent, "the partner's x": sent, "correction c": FLOAT_BYTES}
    return tuple((what, size / fragments) for what, size in each.items())


def prefetch_parts(codec: str) -> tuple[tuple[str, float], ...]:
    """The same in mode prefetch, where phi and Delta travel one after the other."""
    slow = encoded_bytes(slow_codec(codec), _LARGE) / _LARGE
    sent = slow + encoded_bytes(codec, _LARGE) / _LARGE
    return (
        ("frozen x", 2 * FLOAT_BYTES),
        ("x as it is sent", sent),
        ("the partner's x", sent),
        ("correction c", 2 * FLOAT_BYTES),
    )


def host_bytes_per_parameter(codec: str, fragments: int, *, prefetch: bool = False) -> float:
    """Of a seat on the CPU at most: the state, an open exchange, and a checkpoint on its way to the disk."""
    parts = prefetch_parts(codec) if prefetch else exchange_parts(codec, fragments)
    exchange = sum(size for _, size in parts)
    return DEVICE_BYTES_PER_PARAMETER + exchange + CHECKPOINT_PARTS * FLOAT_BYTES


HOST_BYTES_PER_PARAMETER = int(host_bytes_per_parameter("float32", 1))  # of the codec that takes most
PREFETCH_HOST_BYTES_PER_PARAMETER = int(host_bytes_per_parameter("float32", 1, prefetch=True))
