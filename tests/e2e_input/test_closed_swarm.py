"""A run with an owner and a list of peers, by real nodes: who is on it trains, who is not hears so."""

from __future__ import annotations

from pathlib import Path

import pytest
from node_commands import RunningNode, flags, run_to_end, write_spec

from noloco_node.config.peer_list import PeerList, signed_list
from noloco_node.config.spec_signing import replace_file, sign_spec_file
from noloco_node.core.types import PeerId
from noloco_node.discovery.identity import load_or_create_identity
from noloco_node.errors import ExitCode

pytestmark = pytest.mark.slow


def identity_in(folder: Path) -> PeerId:
    return load_or_create_identity(folder / "identity.key").peer_id


def closed(node: RunningNode) -> list[str]:
    """Outcomes of its outer steps so far."""
    return [line["outcome"] for line in node.events if line["event"] == "outer_step_closed"]


def test_only_listed_peers_take_part_and_a_newer_list_counts_while_the_node_runs(tmp_path: Path) -> None:
    owner = load_or_create_identity(tmp_path / "owner.key")
    spec, peers = write_spec(tmp_path), tmp_path / "peers.json"
    run = sign_spec_file(spec, owner).run_id
    host_id, friend_id = identity_in(tmp_path / "host"), identity_in(tmp_path / "friend")
    both = PeerList(run, 1, allow=frozenset({host_id, friend_id}))
    replace_file(peers, signed_list(both, owner))
    with RunningNode(spec, tmp_path / "host", ("--seat", "0.0", "--peer-list", str(peers))) as host:
        host.until(lambda node: node.status["phase"] == "training")
        ended = run_to_end(flags(spec, tmp_path / "stranger", *host.join_flags))
        assert ended.is_fault(ExitCode.NOT_ADMITTED, "does not admit this node: not allowed", "tell the owner")
        with RunningNode(spec, tmp_path / "friend", host.join_flags) as friend:
            friend.until(lambda node: closed(node)[-1:] == ["paired"])
            replace_file(peers, signed_list(both.changed((), (friend_id,), ()), owner))
            host.until(lambda node: b'noloco_calls_refused_total{reason="denied"}' in node.page("/metrics")[1])
            since = len(closed(host)) + 1  # one may be under way
            host.until(lambda node: len(closed(node)) > since + 2)
            assert set(closed(host)[since:]) == {"solo"}
        assert host.stop() == ExitCode.OK
