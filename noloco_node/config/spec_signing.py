"""Signing a run spec's file in place: the owner's name and signature are written in, all else stays as it was typed.

Owns the order of that: name, sign, read again and compare, replace the file whole. Must not know where keys lie.
"""

from __future__ import annotations

import os
from pathlib import Path

from noloco_node.config.ownership import signature_section, spec_signature, with_owner, without_signature
from noloco_node.config.run_spec import RunSpec
from noloco_node.config.spec_file import parse_run_spec, parse_unsigned, read_text
from noloco_node.discovery.identity import Identity
from noloco_node.errors import BadSpec

ADVICE = "sign with the owner's key, or begin a run of your own: noloco-node swarm new"


def sign_spec_file(path: Path, key: Identity) -> RunSpec:
    """Raises BadSpec: not valid, somebody else's, or not to be written."""
    text = signed_text(read_text(path), path.absolute().parent, key)
    replace_file(path, text)
    return parse_run_spec(text, path.absolute().parent)


def replace_file(path: Path, text: str) -> None:
    """Whole or not at all. Raises BadSpec."""
    aside = path.with_name(path.name + ".new")
    try:
        aside.write_text(text, "utf-8")
        os.replace(aside, path)
    except OSError as error:
        raise BadSpec(f"{path} cannot be written: {error.strerror}", "choose another path") from error


def signed_text(text: str, folder: Path, key: Identity) -> str:
    """`text` with the owner and a signature that fits. An owner that is named already must be the key's."""
    before, _ = parse_unsigned(text, folder)
    if before.swarm.owner not in ("", key.peer_id):
        raise BadSpec(f"the run spec is owned by {before.swarm.owner}, the key is {key.peer_id}", ADVICE)
    body = without_signature(text)
    if not before.swarm.owner:
        body = with_owner(body, key.peer_id)
    after, _ = parse_unsigned(body, folder)
    if after != before.model_copy(update={"swarm": before.swarm.model_copy(update={"owner": key.peer_id})}):
        raise BadSpec("the owner cannot be written into this file", f'write owner = "{key.peer_id}" into [swarm]')
    return f"{body}\n{signature_section(spec_signature(after, key))}"
