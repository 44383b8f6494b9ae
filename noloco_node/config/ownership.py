"""What the owner of a run signs with an ed25519 key: the run spec, and the list of peers.

Owns the domains of those signatures and the `[signature]` section of `swarm.toml`. A spec that names an owner counts
only with the owner's signature over its canonical form; one without an owner is an open run. The key file is an
identity as `noloco-node identity` makes it, the owner's name the peer id of it. Must not know nodes or seats.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from noloco_node.config.run_spec import RunSpec
from noloco_node.discovery.identity import Identity, verify
from noloco_node.errors import BadSignature, BadSpec

SPEC_DOMAIN: Final = b"noloco-node/run-spec/v1\0"
LIST_DOMAIN: Final = b"noloco-node/peer-list/v1\0"
SECTION: Final = "signature"
KEY: Final = "ed25519"
SIGNATURE_PATTERN: Final = re.compile(r"[0-9a-f]{128}")
ADVICE: Final = "ask the owner of the run for the signed file; the owner signs it with `noloco-node swarm sign`"

_SECTION = re.compile(rf"^\[{SECTION}\][^\n]*(\n(?!\[)[^\n]*)*", re.MULTILINE)
_SWARM_HEAD = re.compile(r"^\[swarm\][^\n]*\n", re.MULTILINE)
_NO_OWNER = re.compile(r'^owner[ \t]*=[ \t]*""[ \t]*', re.MULTILINE)


def signed_by(owner: str, domain: bytes, body: bytes, signature: str) -> bool:
    """`signature` is 128 hex digits; anything else is no signature."""
    return SIGNATURE_PATTERN.fullmatch(signature) is not None and verify(owner, domain + body, bytes.fromhex(signature))


def checked_signature(spec: RunSpec, section: object) -> str:
    """The owner's signature, "" of an open run. `section`: what `[signature]` of the file holds, None without it.

    Raises BadSignature.
    """
    owner = spec.swarm.owner
    if not owner and section is not None:
        raise BadSignature(f"[{SECTION}] stands in a run spec that names no [swarm] owner", ADVICE)
    if not owner:
        return ""
    if section is None:
        raise BadSignature(f"the run spec names the owner {owner}, but is not signed", ADVICE)
    signature = section.get(KEY) if isinstance(section, Mapping) and len(section) == 1 else None
    if not isinstance(signature, str) or not signed_by(owner, SPEC_DOMAIN, spec.canonical(), signature):
        raise BadSignature(f"the run spec is not signed by its owner {owner}: it was changed or is not theirs", ADVICE)
    return signature


def spec_signature(spec: RunSpec, key: Identity) -> str:
    return key.sign(SPEC_DOMAIN + spec.canonical()).hex()


def signature_section(signature: str) -> str:
    """The end of the file."""
    return f'[{SECTION}]  # the owner\'s, over all of the above: `noloco-node swarm sign`\n{KEY} = "{signature}"\n'


def without_signature(text: str) -> str:
    return _SECTION.sub("", text).rstrip() + "\n"


def with_owner(text: str, owner: str) -> str:
    """The spec's text with the owner named in `[swarm]`, everything else as it was. Raises BadSpec."""
    line = f'owner = "{owner}"'
    if _NO_OWNER.search(text):
        return _NO_OWNER.sub(f"{line}  ", text, count=1)
    if not _SWARM_HEAD.search(text):
        raise BadSpec("the run spec has no line [swarm] to write the owner below", f"write {line} into it yourself")
    return _SWARM_HEAD.sub(lambda head: f"{head.group()}{line}\n", text, count=1)
