"""The partner's tensor as one exchange sees it: announced, arriving, checked, verified (DESIGN 5a, What).

Owns how far the copy is and which verdicts still to come are void because the partner began anew. Must not know: the
bytes, the protocol's states.
"""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum

from noloco_node.core.effects import DropCorrection, Effect, ReceiveTensor, VerifyTensor
from noloco_node.core.types import Begin, PeerId


class Copy(StrEnum):
    """How much of the partner's tensor is here."""

    ABSENT = "absent"
    ARRIVING = "arriving"
    CHECKING = "checking"
    VERIFIED = "verified"  # and the correction c is computed


class PartnerTensor:
    """Verdicts come in the order of VerifyTensor, so those on a replaced tensor come before those on the new one."""

    def __init__(self, outer_step: int) -> None:
        self._outer_step = outer_step
        self._begin: Begin | None = None
        self._copy = Copy.ABSENT
        self._void_verdicts = 0

    @property
    def has_begun(self) -> bool:
        """The partner has taken its boundary."""
        return self._begin is not None and not self._begin.ahead

    @property
    def is_arriving(self) -> bool:
        return self._copy is Copy.ARRIVING

    @property
    def is_verified(self) -> bool:
        return self._copy is Copy.VERIFIED

    def is_known(self, begin: Begin) -> bool:
        """Is it the tensor announced before, of the same incarnation?"""
        known = self._begin
        if known is None:
            return False
        return (known.incarnation, known.tensor_id) == (begin.incarnation, begin.tensor_id)

    def announce(self, begin: Begin, peer: PeerId) -> list[Effect]:
        """Make room for the tensor of `begin`; one that came before it is void."""
        self._void_verdicts += self._copy is Copy.CHECKING
        dropped = self.drop()
        self._begin, self._copy = begin, Copy.ARRIVING
        return [*dropped, self._expected(begin, peer)]

    def reached(self, peer: PeerId) -> list[Effect]:
        """The partner has taken the boundary that its BEGIN ran ahead of: the rest of its tensor is due."""
        if self._begin is None or not self._begin.ahead:
            return []
        self._begin = replace(self._begin, ahead=False)
        return [self._expected(self._begin, peer)] if self.is_arriving else []

    def _expected(self, begin: Begin, peer: PeerId) -> ReceiveTensor:
        return ReceiveTensor(self._outer_step, peer, begin.tensor_bytes, begin.tensor_id, begin.ahead)

    def complete(self) -> list[Effect]:
        """All bytes are here (perhaps once more): check them, once."""
        if self._copy is not Copy.ARRIVING:
            return []
        self._copy = Copy.CHECKING
        return [VerifyTensor(self._outer_step)]

    def judge(self) -> bool:
        """A verdict came: does it concern the tensor now held? If so, that is no longer CHECKING."""
        if self._void_verdicts > 0:
            self._void_verdicts -= 1
            return False
        concerns = self._copy is Copy.CHECKING
        if concerns:
            self._copy = Copy.VERIFIED
        return concerns

    def drop(self) -> list[Effect]:
        """Forget c, if it was or is being computed. What a check still under way finds is void."""
        is_computed = self._copy in (Copy.CHECKING, Copy.VERIFIED)
        self._copy = Copy.ABSENT
        return [DropCorrection(self._outer_step)] if is_computed else []
