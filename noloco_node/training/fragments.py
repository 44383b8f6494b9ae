"""The stage's parameters as one flat vector, and its cut into the fragments that outer steps exchange in turn.

Owns the order (by name), where each parameter lies, and the borders of the fragments. All replicas of a stage compute
the same. A replica that keeps missing the same outer steps of a round never exchanges the same fragments: an outer step
should last several inner steps. Must not know what the numbers are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from torch import nn

from noloco_node.errors import BadSpec

ALIGNMENT = 256  # values: no fragment is smaller, and few blocks are filled up with zeros


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of one parameter that lies in a fragment: `of_parameter` in the flattened parameter, `of_vector` in the
    stage's flat vector, `of_fragment` in the fragment's."""

    name: str
    of_parameter: slice
    of_vector: slice
    of_fragment: slice


@dataclass(frozen=True, slots=True)
class Fragment:
    """A run of the flat vector."""

    number: int
    of_vector: slice
    pieces: tuple[Piece, ...]

    @property
    def size(self) -> int:
        """Values in it."""
        return self.of_vector.stop - self.of_vector.start


def parameter_slices(parameters: Mapping[str, nn.Parameter]) -> dict[str, slice]:
    """Where each parameter lies in the flat vector, in the order of the names."""
    slices, start = {}, 0
    for name, parameter in sorted(parameters.items()):
        slices[name] = slice(start, start + parameter.numel())
        start += parameter.numel()
    return slices


def cut(slices: Mapping[str, slice], count: int) -> tuple[Fragment, ...]:
    """`count` fragments of about equal size. Raises BadSpec when there is not a block of values for each."""
    size = max(part.stop for part in slices.values())
    borders = [size * number // count // ALIGNMENT * ALIGNMENT for number in range(count)] + [size]
    if any(first >= last for first, last in pairwise(borders)):
        raise BadSpec(
            f"a stage of {size} parameters cannot be cut into {count} fragments of {ALIGNMENT} at least",
            "lower [outer] fragments in the run spec",
        )
    return tuple(
        Fragment(number, slice(first, last), tuple(_pieces(slices, first, last)))
        for number, (first, last) in enumerate(pairwise(borders))
    )


def _pieces(slices: Mapping[str, slice], first: int, last: int) -> Iterator[Piece]:
    for name, part in slices.items():
        start, stop = max(part.start, first), min(part.stop, last)
        if start < stop:
            inside = slice(start - part.start, stop - part.start)
            yield Piece(name, inside, slice(start, stop), slice(start - first, stop - first))
