"""What a micro-batch must be before a byte of it is taken (DESIGN 5, 9): from the stage before, of the run's shape.

Owns the comparison of a hop's header with the run. Must not know transport or the machine's plans.
"""

from __future__ import annotations

from dataclasses import dataclass

from noloco_node.core.types import Seat, SeatRecord, Settings
from noloco_node.errors import RemoteProtocolError
from noloco_node.ports import HopHeader

COUNT_MAX = 2**62  # numbers beyond it are no honest counts


@dataclass(frozen=True, slots=True)
class HopForm:
    """Every activation of the run: its dtype on the wire and (B, T, D)."""

    dtype: str
    shape: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class HopRules:
    """`form` None: any shape (runs on the bench)."""

    settings: Settings
    form: HopForm | None

    def refusal(self, caller: SeatRecord | None, seat: Seat | None) -> str:
        """Why this caller is not served here now, "" when it is. No fault of the caller's: seats change hands."""
        if seat is None or (caller is not None and caller.seat.stage == seat.stage - 1):
            return ""
        return "no lease" if caller is None else f"seat {caller.seat} is not of the stage before {seat}"

    def check(self, header: HopHeader) -> None:
        """Raises RemoteProtocolError: no honest node of this run sends such a header."""
        if not 0 <= header.id.origin < self.settings.num_replicas:
            raise RemoteProtocolError("the micro-batch's origin is outside the run")
        if not (0 <= header.id.n < COUNT_MAX and 0 <= header.position <= self._position_max):
            raise RemoteProtocolError("the micro-batch's number or position is outside the run")
        if self.form is not None and (header.dtype, header.shape) != (self.form.dtype, self.form.shape):
            raise RemoteProtocolError(f"shape {header.dtype} {header.shape}, the run's is {self.form.shape}")

    @property
    def _position_max(self) -> int:
        """H per outer step; a run without an end has none."""
        return self.settings.total_outer_steps * self.settings.inner_steps or COUNT_MAX
