"""What is done about a clock that is off: told beyond half of skew_max_s; beyond skew_max_s a node that holds no seat
yet ends, one that trains goes on and says so.

Owns when that is judged, and that a wall clock set in mid-run is followed only when the peers agree with it. A pair of
clocks cannot tell which one is wrong: with one peer its word counts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from noloco_node.core import limits
from noloco_node.driver.clock import SteadyClock
from noloco_node.driver.peer_clocks import PeerClocks
from noloco_node.errors import ClockOff, NolocoError

log = logging.getLogger(__name__)

PEERS_WANTED = 2  # whose median is believed at once; what fewer say is judged at the next regular look


class ClockWatch:
    """`is_starting`: no seat was held yet. `on_off` is told once what ends the node then. `show` takes our clock minus
    the peers', seconds. `known_peers`: how many initial peers there are to ask. `on_follow` is told by how many seconds
    unix time was moved.
    """

    def __init__(
        self,
        clocks: PeerClocks,
        steady: SteadyClock,
        skew_max_s: float,
        is_starting: Callable[[], bool],
        on_off: Callable[[NolocoError], None],
        show: Callable[[float], None] = lambda ahead_s: None,
        known_peers: int = 0,
        on_follow: Callable[[float], None] = lambda jump_s: None,
    ) -> None:
        self._clocks = clocks
        self._steady = steady
        self._skew_max_s = skew_max_s
        self._is_starting = is_starting
        self._on_off = on_off
        self._show = show
        self._on_follow = on_follow
        self._wanted = PEERS_WANTED if known_peers != 1 else 1
        self._said = ""
        self._jumped_s = 0.0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._clocks.on_asked = self.peer_answered
        self._task = asyncio.create_task(self._look_again(), name="clock-watch")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _look_again(self) -> None:
        while True:
            await asyncio.sleep(limits.CLOCK_CHECK_S)
            self.look()

    def peer_answered(self) -> None:
        if self._clocks.asked >= self._wanted:
            self.judge()

    def look(self) -> None:
        """The regular look, at our own wall clock as well."""
        self._notice_jump()
        self.judge()

    def judge(self) -> None:
        ahead_s = self._clocks.ahead_s
        if ahead_s is None:
            return
        self._show(ahead_s)
        off = abs(ahead_s)
        if off > self._skew_max_s and self._clocks.asked and self._is_starting():
            self._on_off(clock_off(ahead_s, self._clocks.asked, self._skew_max_s))
            return
        level = "far" if off > self._skew_max_s else "near" if off > self._skew_max_s / 2 else ""
        if level != self._said:
            self._said = level
            self._say(level, ahead_s)

    def _say(self, level: str, ahead_s: float) -> None:
        if level:
            log.warning("%s", clock_off(ahead_s, self._clocks.asked, self._skew_max_s).cause)
        else:
            log.info("the clock agrees with the peers' again (offset = %+.1f s)", ahead_s)

    def _notice_jump(self) -> None:
        """Told once per jump. The peers' word decides whether the clock was set right or wrong."""
        jump_s = self._steady.jump_s
        if abs(jump_s - self._jumped_s) > self._skew_max_s / 2:
            self._jumped_s = jump_s
            log.warning("the wall clock was set by %+.1f s while the node runs; it keeps the time it had", jump_s)
        ahead_s = self._clocks.ahead_s
        is_far = ahead_s is not None and abs(ahead_s) > self._skew_max_s / 2
        if is_far and ahead_s is not None and abs(ahead_s + jump_s) < abs(ahead_s) / 2:
            before_s = self._steady.jump_s
            self._steady.follow()
            self._on_follow(before_s - self._steady.jump_s)
            self._clocks.forget()
            self._jumped_s = 0.0
            log.warning("the peers agree with the wall clock: it is followed (%+.1f s)", jump_s)


def clock_off(ahead_s: float, peers: int, skew_max_s: float) -> ClockOff:
    whose = f"the median of {peers} peers" if peers > 1 else "its only peer"
    side = "ahead of" if ahead_s > 0 else "behind"
    return ClockOff(
        f"this machine's clock is {abs(ahead_s):.1f} s {side} {whose}, the run bears {skew_max_s:g} s: "
        f"set your clock (offset = {ahead_s:+.1f} s)",
        "let the system keep its time (NTP: chrony, systemd-timesyncd), then start the node again",
    )
