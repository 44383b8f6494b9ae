"""What a Hello compares."""

from __future__ import annotations

from dataclasses import dataclass

from noloco_node.core import limits


@dataclass(frozen=True, slots=True)
class RunIdentity:
    """`run` is the hash of the run spec, so model, shapes and seed are equal when it is."""

    run: str
    protocol: int = limits.PROTOCOL_VERSION
    version: str = ""

    def fits(self, run: str, protocol: int) -> bool:
        return (run, protocol) == (self.run, self.protocol)
