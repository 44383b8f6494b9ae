"""x of one outer step on its way: frozen at the boundary, encoded as far as it was asked for.

Owns the run of bytes that travels: the codec's sketch (nothing for most codecs), then the encoded x, which depends on
the partner's sketch if there is one. Must not know partners, streams, when it is sent.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from noloco_node.core import codec_sizes
from noloco_node.errors import LocalProtocolError
from noloco_node.training.codec import VALUE_MAX, Codec, Correction
from noloco_node.training.codec.blocks import PIECE_VALUES
from noloco_node.training.tensors import host_bytes


class ExchangeTensor:
    """`frozen`: flat float32 on the host; it is given away. Not for two threads at once."""

    def __init__(self, codec: Codec, frozen: Tensor) -> None:
        self._codec = codec
        self._layout = codec_sizes.layout(codec.name)
        self._frozen = frozen
        self._prepared: Tensor | None = None
        self._sketch: Tensor | None = None
        self._scales: Tensor | None = None
        self._met = b""  # the partner's sketch that the scales are from
        self._encoded: Tensor | None = None
        self._done = 0  # values encoded
        self.num_values = frozen.numel()
        self.head_bytes = self.known_bytes = codec.sketch_bytes(self.num_values)
        self.needs_head = self.head_bytes > 0  # of the partner's tensor, for what follows our own known bytes
        self.size_bytes = self.head_bytes + codec.encoded_bytes(self.num_values)

    @property
    def is_finite(self) -> bool:
        """Fit to be sent."""
        least, most = torch.aminmax(self._frozen)
        return bool(least >= -VALUE_MAX) and bool(most <= VALUE_MAX)

    def meet(self, their_head: memoryview) -> None:
        """The partner's sketch is known: what follows our own is encoded (anew). Raises RemoteProtocolError."""
        self._scales = self._codec.scales(self._own_sketch(), _bytes(their_head))
        self._met, self._encoded, self._done = bytes(their_head), None, 0

    def read(self, start: int, stop: int) -> memoryview:
        """Bytes from `start` on, `stop` excluded; of the sketch or of what follows it, never of both."""
        if start < self.head_bytes:
            return host_bytes(self._own_sketch())[start : min(stop, self.head_bytes)]
        first, last = start - self.head_bytes, stop - self.head_bytes
        return host_bytes(self._encode(last))[first:last]

    def correction(self, theirs: memoryview) -> Correction:
        """c from both tensors as they travelled. Raises RemoteProtocolError."""
        head, body = theirs[: self.head_bytes], theirs[self.head_bytes :]
        if self._scales is None or head != self._met:
            self.meet(head)
        assert self._scales is not None
        own = self._encode(self.size_bytes - self.head_bytes)
        return self._codec.correction(own, _bytes(body), self._scales, self.num_values)

    def _own_sketch(self) -> Tensor:
        if self._sketch is None:
            self._sketch = self._codec.sketch(self._ready())
        return self._sketch

    def _ready(self) -> Tensor:
        if self._prepared is None:
            self._prepared = self._codec.prepare(self._frozen)
            self._frozen = torch.empty(0)
        return self._prepared

    def _encode(self, stop: int) -> Tensor:
        """The encoded x, valid up to byte `stop` at least."""
        if self._scales is None:
            if self.head_bytes:
                raise LocalProtocolError("the partner's sketch is not known yet")
            self.meet(memoryview(b""))
        assert self._scales is not None
        if self._encoded is None:
            self._encoded = torch.empty(self.size_bytes - self.head_bytes, dtype=torch.uint8)
        prepared, block = self._ready(), self._layout
        while self._done // block.block_values * block.block_bytes < stop and self._done < self.num_values:
            values = slice(self._done, min(self._done + PIECE_VALUES, prepared.numel()))
            first, last = values.start // block.block_values, -(-values.stop // block.block_values)
            there = self._encoded[first * block.block_bytes : last * block.block_bytes]
            self._codec.encode(prepared[values], self._scales[first:last], there)
            self._done = values.stop
        return self._encoded


def _bytes(view: memoryview) -> Tensor:
    """uint8, flat; torch may not hold read-only memory, so that is copied."""
    if not len(view):
        return torch.empty(0, dtype=torch.uint8)
    return torch.from_numpy(np.frombuffer(view, np.uint8).copy() if view.readonly else np.frombuffer(view, np.uint8))
