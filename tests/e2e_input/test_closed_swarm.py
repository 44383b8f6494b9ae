"""A run with an owner and a list of peers, by real nodes: who is on it trains and exports, who is not hears so."""

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

LONE = {"swarm": {"num_replicas": 1}, "outer": {"start_seats": 1}}


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


def test_export_from_a_closed_swarm_shows_the_key_of_a_listed_node_that_does_not_run(tmp_path: Path) -> None:
    owner = load_or_create_identity(tmp_path / "owner.key")
    spec, peers = write_spec(tmp_path, **LONE), tmp_path / "peers.json"
    run = sign_spec_file(spec, owner).run_id
    listed = frozenset({identity_in(tmp_path / "host"), identity_in(tmp_path / "friend")})
    replace_file(peers, signed_list(PeerList(run, 1, allow=listed), owner))
    with RunningNode(spec, tmp_path / "host", ("--peer-list", str(peers))) as host:
        host.until(lambda node: list(node.data_dir.rglob("step-*.safetensors")))
        source = ["export", "--from-swarm", "--peer", host.info["addresses"][0], "--spec", str(spec)]
        source += ["--out", str(tmp_path / "model")]
        refused = run_to_end(source)
        assert refused.is_fault(ExitCode.NOT_ADMITTED, "does not admit", "not allowed", "--data-dir")
        in_use = run_to_end([*source, "--data-dir", str(tmp_path / "host")])
        assert in_use.is_fault(ExitCode.IDENTITY_IN_USE, "is in use by process")
        exported = run_to_end([*source, "--data-dir", str(tmp_path / "friend")])
        assert exported.code == ExitCode.OK, exported.stderr
        assert (tmp_path / "model" / "config.json").exists()
        assert sorted(path.name for path in (tmp_path / "friend").iterdir()) == ["identity.key", "identity.key.lock"]
