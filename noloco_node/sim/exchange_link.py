"""The stream of one pair for one outer step: up or down, what has arrived, who still wants it.

Owns dialling (again and again while an end wants it), order on the stream, tensors under way with resume at the
offset, and when it was up (what a checker needs to tell an excused split from a fault). A stream keeps order and loses
nothing but by breaking, as TCP does. Must not know the protocol.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from noloco_node.core import limits
from noloco_node.sim.ledger import Traffic

if TYPE_CHECKING:
    from noloco_node.sim.virtual_node import VirtualNode

TENSOR_S = 1.0  # a whole tensor on the wire
MESSAGE_BYTES = 200


@dataclass(slots=True)
class Inbox:
    digest: bytes
    size_bytes: int
    held_bytes: int = 0
    is_told: bool = False  # on this stream


@dataclass(slots=True)
class Transfer:
    """Our tensor on the live stream. `until_bytes`: what of it can be sent yet."""

    digest: bytes
    size_bytes: int
    offset: int
    began_s: float
    until_bytes: int


@dataclass(slots=True)
class End:
    """One side of the link."""

    node: VirtualNode
    life: int
    wanted: bool = False
    pause_s: float = limits.LINK_REOPEN_S
    is_dialling: bool = False
    inbox: Inbox | None = None
    transfer: Transfer | None = None
    last_arrival_s: float = 0.0

    @property
    def lives(self) -> bool:
        return self.node.life == self.life


@dataclass(slots=True)
class Link:
    """`ends` by node number. `up_spans`: when a stream was up, the last one open-ended (None)."""

    outer_step: int
    ends: dict[int, End]
    stream: int = 0  # number of the live stream; 0 = down
    streams: int = 0
    up_spans: list[tuple[float, float | None]] = field(default_factory=list)

    def far(self, node: VirtualNode) -> End:
        return next(end for number, end in self.ends.items() if number != node.number)

    def near(self, node: VirtualNode) -> End:
        return self.ends[node.number]

    @property
    def is_wanted(self) -> bool:
        return any(end.wanted and end.lives for end in self.ends.values())

    # --- the stream -------------------------------------------------------------------------------

    def want(self, node: VirtualNode) -> None:
        end = self.near(node)
        end.wanted, end.pause_s = True, limits.LINK_REOPEN_S
        if self.stream:
            stream = self.stream
            node.after(0.0, lambda: self._announce(end, stream))
        else:
            self._dial(end)

    def release(self, node: VirtualNode) -> None:
        end = self.near(node)
        end.wanted, end.inbox, end.transfer = False, None, None

    def _dial(self, end: End) -> None:
        if self.stream or end.is_dialling or not (end.wanted and end.lives):
            return
        end.is_dialling = True
        end.node.clock.after(end.node.weather.delay_s(), lambda: self._dialled(end))

    def _dialled(self, end: End) -> None:
        """The far side answers, refuses, or is silent until the deadline."""
        end.is_dialling = False
        if self.stream or not (end.wanted and end.lives):
            return
        caller, callee, weather = end.node, self.far(end.node).node, end.node.weather
        linked = weather.links(caller.number, callee.number)
        both_run = callee.is_up and not callee.is_paused and not caller.is_paused
        if linked and both_run and not weather.loses() and callee.admits(caller, caller.record):
            self._comes_up(caller, callee)
            return
        silent = callee.is_paused or not linked
        self._dial_later(end, limits.DIAL_DEADLINE_S if silent else end.pause_s)
        end.pause_s = min(2 * end.pause_s, limits.LINK_REOPEN_MAX_S)

    def _dial_later(self, end: End, delay_s: float) -> None:
        if end.wanted and end.lives:
            end.node.clock.after(delay_s, lambda: self._dial(end))

    def _comes_up(self, caller: VirtualNode, callee: VirtualNode) -> None:
        clock, weather = caller.clock, caller.weather
        self.streams += 1
        self.stream = stream = self.streams
        self.up_spans.append((clock.now, None))
        for number, node in ((caller.number, caller), (callee.number, callee)):
            end = self.ends[number]
            if not end.lives:
                self.ends[number] = end = End(node, node.life)
            node.exchanges.links[self.outer_step, self.far(node).node.peer] = self
            end.transfer, end.pause_s = None, limits.LINK_REOPEN_S
            if end.inbox is not None:
                end.inbox.is_told = False
        caller.meet(callee, callee.record)
        self._announce(self.near(callee), stream)
        clock.after(weather.delay_s(), lambda: self._announce(self.near(caller), stream))

    def _announce(self, end: End, stream: int) -> None:
        if stream == self.stream and end.lives:
            inbox = end.inbox or Inbox(b"", 0)
            held, digest = inbox.held_bytes, inbox.digest
            far = self.far(end.node).node.peer
            end.node.receive(lambda: end.node.exchanges.opened(self.outer_step, far, held, digest))

    def goes_down(self) -> None:
        """What was under way is lost; what is held of a tensor stays held."""
        if not self.stream:
            return
        clock = next(iter(self.ends.values())).node.clock
        for end in self.ends.values():
            self._keep_part(end, self.far(end.node), clock.now)
        self.stream = 0
        self.up_spans[-1] = (self.up_spans[-1][0], clock.now)
        for end in self.ends.values():
            end.transfer = None
            self._dial_later(end, end.pause_s)

    @staticmethod
    def _keep_part(sender: End, receiver: End, now: float) -> None:
        sent, inbox = sender.transfer, receiver.inbox
        if sent is None or inbox is None or inbox.digest != sent.digest:
            return
        share = max(0.0, now - sent.began_s - sender.node.weather.rates.delay_s) / TENSOR_S
        inbox.held_bytes = max(inbox.held_bytes, min(sent.until_bytes, sent.offset + int(share * sent.size_bytes)))

    # --- on the stream ----------------------------------------------------------------------------

    def send(self, node: VirtualNode, deliver: Callable[[], None]) -> None:
        """One message, after those sent before. Lost: the stream breaks."""
        if not self.stream:
            return
        node.counts(Traffic.CALL, MESSAGE_BYTES)
        if node.weather.loses():
            self.goes_down()
            return
        self._arrive(node, deliver, 1 + node.weather.doubles())

    def _arrive(self, node: VirtualNode, deliver: Callable[[], None], copies: int, extra_s: float = 0.0) -> None:
        near, far, stream, weather = self.near(node), self.far(node), self.stream, node.weather
        arrives = max(near.last_arrival_s, node.clock.now + weather.delay_s()) if not extra_s else 0.0
        near.last_arrival_s = max(near.last_arrival_s, arrives)

        def here() -> None:
            if stream == self.stream and far.lives:
                for _ in range(copies):
                    far.node.receive(deliver)

        node.clock.at(arrives or node.clock.now + extra_s + weather.delay_s(), here)

    def expect(self, node: VirtualNode, digest: bytes, size_bytes: int) -> None:
        end = self.near(node)
        if end.inbox is None or end.inbox.digest != digest:
            end.inbox = Inbox(digest, size_bytes)

    def stream_tensor(self, node: VirtualNode, digest: bytes, size_bytes: int, offset: int, until_bytes: int) -> None:
        """From `offset` to `until_bytes`; the rest when `go_on` is called."""
        if not self.stream:
            return
        until_bytes = max(offset, until_bytes)
        sent = self.near(node).transfer = Transfer(digest, size_bytes, offset, node.clock.now, until_bytes)
        left = 1.0 - offset / size_bytes
        node.counts(Traffic.TENSOR, int(left * size_bytes) - (size_bytes - until_bytes))
        if until_bytes == size_bytes:
            self._ends(node, sent, left * TENSOR_S)

    def go_on(self, node: VirtualNode, digest: bytes) -> None:
        """All of the tensor can be sent now, what is missing of its first part before the rest."""
        sent, now = self.near(node).transfer, node.clock.now
        if sent is None or sent.digest != digest or sent.until_bytes == sent.size_bytes:
            return
        node.counts(Traffic.TENSOR, sent.size_bytes - sent.until_bytes, messages=0)
        sent.began_s = max(sent.began_s, now - (sent.until_bytes - sent.offset) / sent.size_bytes * TENSOR_S)
        sent.until_bytes = sent.size_bytes
        self._ends(node, sent, sent.began_s - now + (1.0 - sent.offset / sent.size_bytes) * TENSOR_S)

    def _ends(self, node: VirtualNode, sent: Transfer, left_s: float) -> None:
        near, far = self.near(node), self.far(node)

        def complete() -> None:
            inbox = far.inbox
            fits = inbox is not None and inbox.digest == sent.digest and not inbox.is_told
            if near.transfer is sent and inbox is not None and fits and inbox.held_bytes >= sent.offset:
                near.transfer = None
                inbox.held_bytes, inbox.is_told = sent.size_bytes, True
                far.node.exchanges.tensor_arrived(self, sent.digest)

        self._arrive(node, complete, 1, extra_s=max(left_s, 1e-3))

    # --- for checkers -----------------------------------------------------------------------------

    def longest_up_s(self, since_s: float, until_s: float) -> float:
        """The longest stretch of that time in which one stream was up and neither end was stopped."""
        pauses = sorted(pause for end in self.ends.values() for pause in end.node.ledger.pauses)
        longest = 0.0
        for start, end in self.up_spans:
            at_s, up_until_s = max(start, since_s), until_s if end is None else min(end, until_s)
            for paused_s, resumed_s in pauses:
                longest = max(longest, min(paused_s, up_until_s) - at_s)
                at_s = max(at_s, resumed_s) if resumed_s > at_s else at_s
            longest = max(longest, up_until_s - at_s)
        return longest
