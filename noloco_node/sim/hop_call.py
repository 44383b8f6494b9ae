"""One hop of a simulated micro-batch: a call from a replica to the next stage, alive as long as the micro-batch there.

Owns both ends of the call and its breaking: peers of a dead process notice at once, of a silent one after three missed
KEEPs. Must not know what the ends do with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from noloco_node.core import events as ev
from noloco_node.core import limits
from noloco_node.core.types import Seat
from noloco_node.sim.ledger import Traffic

if TYPE_CHECKING:
    from noloco_node.sim.virtual_node import VirtualNode

SILENT_S = limits.KEEP_INTERVAL_S * limits.KEEPS_MISSED_MAX
ACTIVATION_BYTES = 1 << 16


class HopCall:
    """`call` is the caller's handle, `their_call` the receiver's once it has arrived."""

    def __init__(self, caller: VirtualNode, callee: VirtualNode, call: int, seat: Seat) -> None:
        self.caller, self.callee, self.call, self.seat = caller, callee, call, seat
        self.their_call: int | None = None
        self.is_open = True
        self._lives = caller.life, callee.life

    def carry(self, source: VirtualNode, target: VirtualNode, action: Callable[[], None]) -> None:
        """To the other end, unless the call breaks on the way."""
        weather, clock = source.weather, source.clock
        source.counts(Traffic.HOP, ACTIVATION_BYTES)
        if weather.loses():
            clock.after(SILENT_S if weather.random.random() < 0.5 else weather.delay_s(), self.break_off)
            return
        clock.after(weather.delay_s(), lambda: self._arrive(source, target, action))

    def _arrive(self, source: VirtualNode, target: VirtualNode, action: Callable[[], None]) -> None:
        if not self.is_open:
            return
        if (self.caller.life, self.callee.life) != self._lives:
            self.break_off()
        elif not source.weather.links(source.number, target.number):
            source.clock.after(SILENT_S, self.break_off)
        else:
            if target.is_paused:
                self.watch()
            target.receive(lambda: action() if self.is_open else None)

    def watch(self) -> None:
        """One end went silent or out of reach: break off if it stays so."""
        self.caller.clock.after(SILENT_S, self._break_if_silent)

    def _break_if_silent(self) -> None:
        now, ends = self.caller.clock.now, (self.caller, self.callee)
        silent = any(end.is_paused and now - (end.paused_since_s or 0.0) >= SILENT_S for end in ends)
        if silent or not self.caller.weather.links(self.caller.number, self.callee.number):
            self.break_off()

    def break_off(self) -> None:
        """Both ends that still live hear of it."""
        if not self.is_open:
            return
        self.is_open = False
        caller, callee, their_call = self.caller, self.callee, self.their_call
        if caller.life == self._lives[0]:
            caller.receive(lambda: caller.micro_batches.hop_lost(self, ev.HopBroken(self.call, self.seat, "lost")))
        if callee.life == self._lives[1] and their_call is not None:
            callee.receive(lambda: callee.micro_batches.caller_lost(their_call))
