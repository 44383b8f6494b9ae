"""How far one of two that send to each other at once may get ahead of the other.

Both directions share one libp2p connection, and the word that makes room for more bytes of one stands in its queue
behind the bytes of the other (HTTP/2's and yamux's window updates). So whoever began first, or was given the larger
window, fills the queue, and the other starves: at 100 Mb/s, both ways at once, it kept a quarter to a half of its rate.
Here the partner's bytes are the word that ours arrived: who has less left to send by more than a lead waits for the
partner, and what is under way both ways together is never more than two leads.

Owns the rate at which the partner's bytes come. Must not know streams or frames.
"""

from __future__ import annotations

from noloco_node.core import limits

CHUNKS_PER_LEAD = 8
SETTLED_S = 0.03  # of bytes: a shorter burst tells no rate


class Lead:
    """`round_trip_s`: of a small message, 0 where it is not known. Times are seconds of one monotonic clock."""

    def __init__(self, round_trip_s: float = 0.0) -> None:
        self._span_s = max(limits.LEAD_S, round_trip_s)
        self._begun_s: float | None = None
        self._lasted_s = 0.0
        self._arrived_bytes = 0

    def arrived(self, size_bytes: int, now_s: float) -> None:
        """Bytes of the partner's tensor came; the first only begin the measurement."""
        if self._begun_s is None:
            self._begun_s = now_s
            return
        self._lasted_s = now_s - self._begun_s
        self._arrived_bytes += size_bytes

    @property
    def size_bytes(self) -> int:
        """What comes in LEAD_S, or in a round trip where that is longer: less would leave a long way half empty."""
        rate = self._arrived_bytes / max(SETTLED_S, self._lasted_s)
        return min(limits.LEAD_BYTES_MAX, max(limits.LEAD_BYTES_MIN, int(rate * self._span_s)))

    @property
    def chunk_bytes(self) -> int:
        """A piece to send: small enough that a lead is several of them, large where that saves work."""
        return min(limits.CHUNK_BYTES_MAX, self.size_bytes // CHUNKS_PER_LEAD)

    def is_spent(self, left_bytes: int, partners_left_bytes: int) -> bool:
        """Of our tensor so many bytes less are unsent than of the partner's are outstanding."""
        return 0 < left_bytes < partners_left_bytes - self.size_bytes
