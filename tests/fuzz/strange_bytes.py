"""What strangers may send, as hypothesis strategies: junk, valid bytes with a few faults, messages of odd values."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

EXAMPLES = 150
few = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
PEAK_BYTES_MAX = 8 << 20

Edit = tuple[str, float, bytes]
EDITS = st.lists(
    st.tuples(st.sampled_from(["flip", "cut", "drop", "insert", "double"]), st.floats(0, 1), st.binary(max_size=9)),
    min_size=1,
    max_size=4,
)


def edited(data: bytes, edits: Sequence[Edit]) -> bytes:
    for kind, place, piece in edits:
        at = int(place * len(data))
        match kind:
            case "flip":
                mask = piece[0] if piece else 1
                data = data[:at] + bytes(byte ^ mask for byte in data[at : at + 1]) + data[at + 1 :]
            case "cut":
                data = data[:at]
            case "drop":
                data = data[:at] + data[at + len(piece) :]
            case "insert":
                data = data[:at] + piece + data[at:]
            case "double":
                data = data[:at] + data[at // 2 :]
    return data


def spoiled(*samples: bytes) -> st.SearchStrategy[bytes]:
    """Junk, or one of `samples` whole or with a few faults."""
    return st.one_of(
        st.binary(max_size=300),
        st.sampled_from(samples),
        st.builds(edited, st.sampled_from(samples), EDITS),
    )


NUMBERS = st.one_of(
    st.integers(0, 9), st.sampled_from([255, 1 << 31, (1 << 32) - 1, 1 << 40, (1 << 63) - 1, (1 << 64) - 1])
)
FLOATS = st.sampled_from([0.0, 1.0, -1.0, 1e308, float("nan"), float("inf"), -float("inf")])
TEXTS = st.one_of(st.text(max_size=20), st.sampled_from(["x" * 5000, "\x1b[2J", "{" * 5000, "[" * 50_000, "NaN", "[]"]))
BY_TYPE: dict[int, Callable[[], st.SearchStrategy[Any]]] = {
    FieldDescriptor.CPPTYPE_UINT64: lambda: NUMBERS,
    FieldDescriptor.CPPTYPE_UINT32: lambda: NUMBERS.map(lambda number: number & 0xFFFFFFFF),
    FieldDescriptor.CPPTYPE_DOUBLE: lambda: FLOATS,
    FieldDescriptor.CPPTYPE_BOOL: st.booleans,
    FieldDescriptor.CPPTYPE_ENUM: lambda: st.sampled_from([0, 1, 2, 3, 99]),
}


def messages(kind: type[Message]) -> st.SearchStrategy[Message]:
    """Any message of that kind: each field left out, or of a value ordinary or extreme."""
    fields = {field.name: st.none() | _values(field) for field in kind.DESCRIPTOR.fields}
    return st.fixed_dictionaries(fields).map(
        lambda values: kind(**{name: value for name, value in values.items() if value is not None})
    )


def _values(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        single: st.SearchStrategy[Any] = messages(field.message_type._concrete_class)
    elif field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        digests = st.sampled_from([bytes(32), b"", b"x" * 33]) | st.binary(max_size=40)
        single = digests if field.type == FieldDescriptor.TYPE_BYTES else TEXTS
    else:
        single = BY_TYPE[field.cpp_type]()
    return st.lists(single, max_size=10) if _is_repeated(field) else single


def _is_repeated(field: FieldDescriptor) -> bool:
    return bool(field.label == FieldDescriptor.LABEL_REPEATED)


@contextmanager
def bounded_memory() -> Iterator[None]:
    """Raises AssertionError when the block needs more than PEAK_BYTES_MAX at any moment."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] <= PEAK_BYTES_MAX
    finally:
        tracemalloc.stop()
