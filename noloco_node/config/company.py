"""Whom a node keeps company with: the run's signed list of peers, read again when its file changes, and the
volunteer's own list of peers not wanted.

Owns which list is in force: at the start there must be a good one, later a bad one leaves the old one in force and is
one line in the log. Must not know seats; the driver asks `exclusion` and is told of changes.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from noloco_node.config.node_config import NodeConfig
from noloco_node.config.peer_list import PeerList, read_peer_list
from noloco_node.config.run_spec import RunSpec
from noloco_node.core import limits
from noloco_node.core.types import PeerId
from noloco_node.discovery.identity import load_or_create_identity
from noloco_node.errors import BadConfig, NolocoError, NotAdmitted
from noloco_node.ports import DENIED

log = logging.getLogger(__name__)

Mark = tuple[int, int, int]
"""What tells one state of a file from another: inode, size, mtime_ns."""


class Company:
    """`own` is this node. `file` None: no signed list. `wall_s` is unix seconds."""

    def __init__(
        self, own: PeerId, denied: Iterable[str], file: PeerListFile | None, wall_s: Callable[[], float]
    ) -> None:
        self._own = own
        self._denied = frozenset(denied)
        self._file = file
        self._wall_s = wall_s
        self._list: PeerList | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def serial(self) -> int:
        """Of the list in force, 0 without one."""
        return 0 if self._list is None else self._list.serial

    def exclusion(self, peer: PeerId) -> str:
        """Why that peer is neither served nor counted, "" when it is."""
        if peer in self._denied:
            return DENIED
        return "" if self._list is None else self._list.exclusion(peer)

    def load(self) -> None:
        """Before anything else of the node. Raises BadConfig, BadSignature, NotAdmitted."""
        if self._file is not None:
            self._list = self._checked(self._file.read())
            log.info("list of peers with serial %d is in force", self.serial)

    def refresh(self) -> bool:
        """Take up a newer list; True when there was one. Raises NotAdmitted: it excludes this node."""
        if self._file is None or not self._file.has_changed():
            return False
        try:
            found = self._file.read()
            if found == self._list:
                return False
            if found.serial <= self.serial:
                raise BadConfig(f"the list of peers has serial {found.serial}, not above {self.serial}")
            self._list = self._checked(found)
        except NotAdmitted:
            raise
        except NolocoError as error:
            log.warning("%s; the list with serial %d stays in force", error.cause, self.serial)
            return False
        log.info("list of peers with serial %d is in force", self.serial)
        return True

    def _checked(self, peers: PeerList) -> PeerList:
        if 0 < peers.expires_unix_s <= self._wall_s():
            raise BadConfig(
                f"the list of peers with serial {peers.serial} has expired", "ask the owner for a newer one"
            )
        if reason := peers.exclusion(self._own):
            raise NotAdmitted(
                f"the owner's list of peers does not admit this node ({self._own}): {reason}",
                "tell the owner of the run your peer id: noloco-node identity",
            )
        return peers

    def watch(self, on_change: Callable[[], None], on_end: Callable[[NolocoError], None]) -> None:
        """Look at the file again and again. `on_end`: this node may not take part any more."""
        if self._file is not None:
            self._task = asyncio.create_task(self._watch(on_change, on_end), name="peer-list")

    async def _watch(self, on_change: Callable[[], None], on_end: Callable[[NolocoError], None]) -> None:
        while True:
            await asyncio.sleep(limits.PEER_LIST_CHECK_S)
            try:
                if await asyncio.to_thread(self.refresh):
                    on_change()
            except NolocoError as error:
                on_end(error)
                return

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


class PeerListFile:
    """The file of one run's list, and whether it has changed since it was read."""

    def __init__(self, path: Path, run: str, owner: str) -> None:
        self._path = path
        self._run = run
        self._owner = owner
        self._mark: Mark | None = None

    def has_changed(self) -> bool:
        return self._marked() != self._mark

    def read(self) -> PeerList:
        """Raises BadConfig, BadSignature."""
        self._mark = self._marked()
        if not self._owner:
            raise BadConfig(
                f"there is a list of peers, {self._path}, but the run has no owner who could sign it",
                "leave --peer-list out, or use --deny-peers for a list of your own",
            )
        return read_peer_list(self._path, run=self._run, owner=self._owner)

    def _marked(self) -> Mark | None:
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns


def company_of(config: NodeConfig, spec: RunSpec) -> Company:
    """What a node's configuration and its run say; nothing is read yet but the node's own key."""
    assert config.identity_file is not None, "NodeConfig fills it in"
    own = load_or_create_identity(config.identity_file).peer_id
    path = config.peer_list
    file = None if path is None else PeerListFile(path, spec.run_id, spec.swarm.owner)
    return Company(own, config.deny_peers, file, time.time)
