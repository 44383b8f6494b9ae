"""Who may take part in a run, as its owner says: a signed list of peers, allowed and denied. A file of JSON.

Owns the list's form, its limits and signature. Who is on neither side of a list without `allow` may take part. Of two
lists the one with the greater serial counts. Must not know how a node enforces it. Pure but for `read_peer_list`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from noloco_node.config.ownership import LIST_DOMAIN, signed_by
from noloco_node.core import limits
from noloco_node.core.types import PeerId
from noloco_node.discovery.identity import Identity, peer_public_key
from noloco_node.errors import BadConfig, BadSignature
from noloco_node.ports import DENIED, NOT_ALLOWED

FIELDS: Final = ("run", "serial", "expires_unix_s", "allow", "deny", "signature")
NUMBER_MAX: Final = 1 << 53  # whole in every JSON reader
ADVICE: Final = "ask the owner of the run for the newest list; the owner makes it with `noloco-node swarm peers`"


@dataclass(frozen=True, slots=True)
class PeerList:
    """`allow` None: everybody who is not denied. `expires_unix_s` 0: never; else no node takes it up after that."""

    run: str
    serial: int = 1
    expires_unix_s: int = 0
    allow: frozenset[PeerId] | None = None
    deny: frozenset[PeerId] = frozenset()

    def exclusion(self, peer: PeerId) -> str:
        """Why that peer may not take part, "" when it may."""
        if peer in self.deny:
            return DENIED
        return "" if self.allow is None or peer in self.allow else NOT_ALLOWED

    def body(self) -> dict[str, Any]:
        return {
            "run": self.run,
            "serial": self.serial,
            "expires_unix_s": self.expires_unix_s,
            "allow": None if self.allow is None else sorted(self.allow),
            "deny": sorted(self.deny),
        }

    def canonical(self) -> bytes:
        return json.dumps(self.body(), sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()

    def changed(self, allow: Iterable[PeerId], deny: Iterable[PeerId], forget: Iterable[PeerId]) -> PeerList:
        """The next list: whoever is allowed is no longer denied, and the other way round."""
        allowed, denied, forgotten = frozenset(allow), frozenset(deny), frozenset(forget)
        closed = self.allow is not None or bool(allowed)
        kept = (self.allow or frozenset()) - denied - forgotten | allowed
        return replace(
            self,
            serial=self.serial + 1,
            allow=kept if closed else None,
            deny=self.deny - allowed - forgotten | denied,
        )


def signed_list(peers: PeerList, key: Identity) -> str:
    signature = key.sign(LIST_DOMAIN + peers.canonical()).hex()
    return json.dumps(peers.body() | {"signature": signature}, indent=1) + "\n"


def read_peer_list(path: Path, *, run: str, owner: str) -> PeerList:
    """Raises BadConfig; BadSignature when the owner has not signed it."""
    try:
        with path.open("rb") as file:
            content = file.read(limits.PEER_LIST_BYTES_MAX + 1)
    except OSError as error:
        raise BadConfig(f"the list of peers {path} cannot be read: {error.strerror}", ADVICE) from error
    try:
        return parse_peer_list(content, run=run, owner=owner)
    except (BadConfig, BadSignature) as error:
        raise type(error)(f"the list of peers {path}: {error.cause}", error.advice) from error


def parse_peer_list(content: bytes, *, run: str, owner: str) -> PeerList:
    """Form, run and signature; not the time. Raises BadConfig, BadSignature."""
    if len(content) > limits.PEER_LIST_BYTES_MAX:
        raise BadConfig(f"larger than {limits.PEER_LIST_BYTES_MAX} bytes", ADVICE)
    try:
        table = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise BadConfig("not JSON", ADVICE) from error
    if not isinstance(table, dict) or sorted(table) != sorted(FIELDS):
        raise BadConfig(f"not an object of {', '.join(FIELDS)}", ADVICE)
    peers = PeerList(
        _word(table, "run"),
        _number(table, "serial"),
        _number(table, "expires_unix_s"),
        None if table["allow"] is None else _names(table, "allow"),
        _names(table, "deny"),
    )
    if not signed_by(owner, LIST_DOMAIN, peers.canonical(), _word(table, "signature")):
        raise BadSignature(f"not signed by the run's owner {owner}", ADVICE)
    if peers.run != run:
        raise BadConfig(f"of run {peers.run[:32]}, this is run {run}", ADVICE)
    return peers


def _word(table: dict[str, Any], name: str) -> str:
    value = table[name]
    if not isinstance(value, str) or not value.isascii():
        raise BadConfig(f"{name} is no plain text", ADVICE)
    return value


def _number(table: dict[str, Any], name: str) -> int:
    value = table[name]
    if type(value) is not int or not 0 <= value <= NUMBER_MAX:
        raise BadConfig(f"{name} is no whole number from 0 to {NUMBER_MAX}", ADVICE)
    return value


def _names(table: dict[str, Any], name: str) -> frozenset[PeerId]:
    value = table[name]
    if not isinstance(value, list) or len(value) > limits.PEERS_LISTED_MAX:
        raise BadConfig(f"{name} is no list of at most {limits.PEERS_LISTED_MAX} peers", ADVICE)
    return frozenset(checked_peer(item, name) for item in value)


def checked_peer(value: object, name: str) -> PeerId:
    """`name`: where it stands. Raises BadConfig."""
    try:
        peer_public_key(value if isinstance(value, str) else "")
    except ValueError as error:
        raise BadConfig(f"{name} holds {str(value)[:80]!r}, which is no peer id", ADVICE) from error
    return PeerId(str(value))
