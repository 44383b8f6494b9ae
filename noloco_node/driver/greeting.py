"""Hello to the initial peers: whoever joins the wrong swarm hears it in plain words instead of waiting for ever.

Owns who has answered so far. Must not know records or seats; peers met through records are greeted by the driver.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from noloco_node.core import limits
from noloco_node.core.types import PeerId
from noloco_node.errors import NolocoError, NotAdmitted, PeerLost, PeerRefused, RemoteProtocolError
from noloco_node.ports import EXCLUSIONS, PeerNetwork

log = logging.getLogger(__name__)


class Greeting:
    """`on_misfit` is told a WrongRun, VersionMismatch or NotAdmitted while no initial peer fits; otherwise it is only
    logged."""

    def __init__(self, network: PeerNetwork, peers: Iterable[PeerId], on_misfit: Callable[[NolocoError], None]) -> None:
        self._network = network
        self._unmet = set(peers)
        self._on_misfit = on_misfit
        self._one_fits = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """In the background, until each peer has answered once: one that is down now may be up later."""
        self._task = asyncio.create_task(self._greet_all(), name="greeting")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _greet_all(self) -> None:
        while self._unmet:
            misfits = await asyncio.gather(*(self._greet(peer) for peer in sorted(self._unmet)))
            self._judge([misfit for misfit in misfits if misfit is not None])
            if self._unmet:
                await asyncio.sleep(limits.JOIN_CHECK_S)

    async def _greet(self, peer: PeerId) -> NolocoError | None:
        """The peer's misfit, None when it fits or cannot be asked."""
        try:
            await self._network.hello(peer)
        except PeerRefused as error:
            log.warning("initial peer %s does not serve us: %s", peer, error.reason)
            return _not_admitted(peer, error.reason)
        except PeerLost as error:
            log.debug("%s does not answer yet: %s", peer, error)
            return None
        except RemoteProtocolError as error:
            log.warning("initial peer %s does not speak our protocol: %s", peer, error)
            return None
        except NolocoError as error:
            self._unmet.discard(peer)
            log.warning("initial peer %s does not fit: %s", peer, error.cause)
            return error
        self._unmet.discard(peer)
        self._one_fits = True
        return None

    def _judge(self, misfits: list[NolocoError]) -> None:
        if misfits and not self._one_fits:
            self._on_misfit(misfits[0])


def _not_admitted(peer: PeerId, reason: str) -> NolocoError | None:
    if reason not in EXCLUSIONS:
        return None
    return NotAdmitted(
        f"the initial peer {peer} does not admit this node: {reason}",
        "tell the owner of the run your peer id: noloco-node identity",
    )
