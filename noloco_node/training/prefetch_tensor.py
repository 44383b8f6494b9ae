"""The tensor of one outer step in mode prefetch: phi, then the outer gradient Delta (DESIGN 5a).

Owns the run of bytes that travels: the encoded phi^, which is known before the boundary, then the encoded Delta^, each
in its own codec (`codec_sizes.slow_codec`). Must not know partners, streams, when it is sent.
"""

from __future__ import annotations

from torch import Tensor

from noloco_node.core import codec_sizes, outer_update
from noloco_node.core.outer_update import Coefficients
from noloco_node.errors import LocalProtocolError
from noloco_node.training.codec import Codec, Correction, value_codec
from noloco_node.training.exchange_tensor import ExchangeTensor

PIECE_VALUES = 1 << 20


class PrefetchTensor:
    """`slow`: phi, flat float32 on the host; it is given away. Not for two threads at once."""

    needs_head = False  # no byte of ours depends on the partner's

    def __init__(self, codec: Codec, slow: Tensor, coefficients: Coefficients) -> None:
        self._codec = codec
        self._coefficients = coefficients
        self._slow = ExchangeTensor(value_codec(codec_sizes.slow_codec(codec.name)), slow)
        self._gradient: ExchangeTensor | None = None
        self.num_values = slow.numel()
        self.known_bytes = self.head_bytes = self._slow.size_bytes
        self._met: memoryview | None = None  # the partner's phi^
        self._half: Tensor | None = None  # half the difference to it
        self.size_bytes = self.known_bytes + codec.encoded_bytes(self.num_values)
        self.is_finite = self._slow.is_finite

    @property
    def is_complete(self) -> bool:
        return self._gradient is not None

    def complete(self, outer_gradient: Tensor) -> None:
        """The boundary is taken: Delta, flat float32 on the host; it is given away."""
        self._gradient = ExchangeTensor(self._codec, outer_gradient)
        self.is_finite = self.is_finite and self._gradient.is_finite

    def meet(self, their_head: memoryview) -> None:
        """The partner's phi^ is here: what it adds to c is computed at once. Raises RemoteProtocolError."""
        if self._met is None or self._met.obj is not their_head.obj:
            self._half = self._slow.correction(their_head).values
            self._met = their_head

    def read(self, start: int, stop: int) -> memoryview:
        """Bytes from `start` on, `stop` excluded; of phi^ or of Delta^, never of both."""
        if start < self.known_bytes:
            return self._slow.read(start, min(stop, self.known_bytes))
        return self._completed().read(start - self.known_bytes, stop - self.known_bytes)

    def correction(self, theirs: memoryview) -> Correction:
        """c from both tensors as they travelled. Raises RemoteProtocolError."""
        self.meet(theirs[: self.known_bytes])
        c, self._half, self._met = self._half, None, None
        assert c is not None
        gradient = self._completed().correction(theirs[self.known_bytes :]).values
        for part, other in zip(c.split(PIECE_VALUES), gradient.split(PIECE_VALUES), strict=True):
            part.copy_(outer_update.prefetched_correction(part, other, self._coefficients))
        return Correction(c)

    def _completed(self) -> ExchangeTensor:
        if self._gradient is None:
            raise LocalProtocolError("the outer gradient is not known before the boundary")
        return self._gradient
