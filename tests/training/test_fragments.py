"""The cut of a stage into fragments: every value in exactly one, borders where codecs' blocks end."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from noloco_node.errors import BadSpec
from noloco_node.training.fragments import ALIGNMENT, cut, parameter_slices


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=12), st.integers(1, 9))
def test_fragments_cover_the_vector_once_and_pieces_cover_the_fragments(sizes: list[int], count: int) -> None:
    parameters = {f"p{number:02}": nn.Parameter(torch.empty(size)) for number, size in enumerate(sizes)}
    slices = parameter_slices(parameters)
    total = sum(sizes)
    if total < count * ALIGNMENT:
        return
    fragments = cut(slices, count)
    covered = [fragment.of_vector for fragment in fragments]
    assert [part.start for part in covered] == [0, *(part.stop for part in covered[:-1])]
    assert covered[-1].stop == total
    assert max(fragment.size for fragment in fragments) - min(fragment.size for fragment in fragments) <= 2 * ALIGNMENT
    for fragment in fragments:
        assert fragment.of_vector.start % ALIGNMENT == 0
        assert sum(piece.of_fragment.stop - piece.of_fragment.start for piece in fragment.pieces) == fragment.size
        for piece in fragment.pieces:
            assert piece.of_vector.start - slices[piece.name].start == piece.of_parameter.start
            assert piece.of_vector.start - fragment.of_vector.start == piece.of_fragment.start


def test_more_fragments_than_blocks_are_refused() -> None:
    slices = parameter_slices({"p": nn.Parameter(torch.empty(3 * ALIGNMENT))})
    assert len(cut(slices, 3)) == 3
    with pytest.raises(BadSpec, match="cannot be cut into 4 fragments"):
        cut(slices, 4)
