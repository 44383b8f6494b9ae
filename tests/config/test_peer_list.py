"""Who may take part: a signed list, read again while the node runs; a bad one changes nothing."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from noloco_node.cli import main
from noloco_node.config.company import Company, PeerListFile
from noloco_node.config.peer_list import PeerList, parse_peer_list, read_peer_list, signed_list
from noloco_node.config.spec_file import load_run_spec
from noloco_node.core import limits
from noloco_node.core.types import PeerId
from noloco_node.discovery.identity import Identity, load_or_create_identity, peer_id_of
from noloco_node.errors import BadConfig, BadSignature, ExitCode, NolocoError, NotAdmitted

RUN = "0" * 32
ME, PEER, THIRD = (peer_id_of(bytes([number]) * 32) for number in (1, 2, 3))


@pytest.fixture(scope="module")
def owner(tmp_path_factory: pytest.TempPathFactory) -> Identity:
    return load_or_create_identity(tmp_path_factory.mktemp("owner") / "owner.key")


def parse(text: str, owner: Identity, run: str = RUN) -> PeerList:
    return parse_peer_list(text.encode(), run=run, owner=owner.peer_id)


def test_list_comes_back_as_it_was_signed(owner: Identity) -> None:
    made = PeerList(RUN, 7, 1_900_000_000, frozenset({ME, PEER}), frozenset({THIRD}))
    assert parse(signed_list(made, owner), owner) == made


@pytest.mark.parametrize(
    ("allow", "deny", "excluded"),
    [
        (None, (), {}),
        (None, (PEER,), {PEER: "denied"}),
        ((ME,), (), {PEER: "not allowed", THIRD: "not allowed"}),
        ((ME, PEER), (PEER,), {PEER: "denied", THIRD: "not allowed"}),
        ((), (), {ME: "not allowed", PEER: "not allowed", THIRD: "not allowed"}),
    ],
)
def test_who_is_excluded_and_why(
    allow: tuple[PeerId, ...] | None, deny: tuple[PeerId, ...], excluded: dict[PeerId, str]
) -> None:
    made = PeerList(RUN, allow=None if allow is None else frozenset(allow), deny=frozenset(deny))
    assert {peer: made.exclusion(peer) for peer in (ME, PEER, THIRD) if made.exclusion(peer)} == excluded


def test_allowing_ends_a_denial_and_denying_an_allowance() -> None:
    first = PeerList(RUN).changed(allow=(), deny=(PEER,), forget=())
    assert (first.serial, first.allow, first.deny) == (2, None, {PEER})
    second = first.changed(allow=(PEER, ME), deny=(), forget=())
    assert (second.allow, second.deny) == ({PEER, ME}, frozenset())
    third = second.changed(allow=(), deny=(PEER,), forget=(ME,))
    assert (third.serial, third.allow, third.deny) == (4, frozenset(), {PEER})


@pytest.mark.parametrize(
    ("name", "value", "fault"),
    [
        ("serial", 99, BadSignature),
        ("deny", [], BadSignature),
        ("allow", [ME], BadSignature),
        ("run", "1" * 32, BadSignature),
        ("signature", "00", BadSignature),
        ("serial", -1, BadConfig),
        ("serial", True, BadConfig),
        ("expires_unix_s", 1e9, BadConfig),
        ("deny", ["nobody"], BadConfig),
        ("deny", [3], BadConfig),
        ("deny", "all", BadConfig),
        ("allow", {}, BadConfig),
        ("more", 1, BadConfig),
        ("deny", [PEER] * (limits.PEERS_LISTED_MAX + 1), BadConfig),
    ],
)
def test_changed_or_impossible_list_is_refused(
    owner: Identity, name: str, value: object, fault: type[NolocoError]
) -> None:
    table = json.loads(signed_list(PeerList(RUN, deny=frozenset({PEER})), owner))
    with pytest.raises(fault):
        parse(json.dumps(table | {name: value}), owner)


def test_list_of_another_run_or_another_owner_is_refused(owner: Identity, tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="this is run"):
        parse(signed_list(PeerList("f" * 32), owner), owner)
    with pytest.raises(BadSignature, match="not signed by the run's owner"):
        parse(signed_list(PeerList(RUN), load_or_create_identity(tmp_path / "other.key")), owner)


# --- in force -------------------------------------------------------------------------------------


class Desk:
    """A node's company with a list file that the test rewrites."""

    def __init__(self, folder: Path, owner: Identity, denied: tuple[str, ...] = ()) -> None:
        self.path, self.owner, self.now_s = folder / "peers.json", owner, 1000.0
        self.company = Company(ME, denied, PeerListFile(self.path, RUN, owner.peer_id), lambda: self.now_s)

    def write(self, peers: PeerList) -> None:
        aside = self.path.with_suffix(".new")
        aside.write_text(signed_list(peers, self.owner))
        aside.replace(self.path)

    def excluded(self) -> set[PeerId]:
        return {peer for peer in (ME, PEER, THIRD) if self.company.exclusion(peer)}


@pytest.fixture
def desk(tmp_path: Path, owner: Identity) -> Desk:
    made = Desk(tmp_path, owner)
    made.write(PeerList(RUN, 5, deny=frozenset({PEER})))
    made.company.load()
    return made


def test_newer_list_replaces_the_one_in_force(desk: Desk) -> None:
    assert desk.excluded() == {PEER}
    assert not desk.company.refresh()
    desk.write(PeerList(RUN, 6, deny=frozenset({THIRD})))
    assert desk.company.refresh()
    assert (desk.excluded(), desk.company.serial) == ({THIRD}, 6)
    assert not desk.company.refresh()


def test_bad_list_is_one_line_and_the_old_one_stays(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    good = signed_list(PeerList(RUN, 6), desk.owner)
    bad: list[Callable[[], object]] = [
        lambda: desk.path.write_text("{"),
        lambda: desk.path.write_text(good.replace('"serial": 6', '"serial": 7')),
        lambda: desk.write(PeerList("f" * 32, 6)),
        lambda: desk.write(PeerList(RUN, 4)),
        lambda: desk.write(PeerList(RUN, 5)),
        lambda: desk.write(PeerList(RUN, 6, expires_unix_s=999)),
        lambda: desk.path.write_bytes(b" " * (limits.PEER_LIST_BYTES_MAX + 1)),
        lambda: desk.path.unlink(),
    ]
    for spoil in bad:
        caplog.clear()
        spoil()
        with caplog.at_level(logging.WARNING):
            assert not desk.company.refresh()
            assert not desk.company.refresh()
        assert desk.excluded() == {PEER}
        (line,) = caplog.messages
        assert line.endswith("the list with serial 5 stays in force")
    desk.path.write_text(good)
    assert desk.company.refresh()


def test_list_that_expires_while_it_is_in_force_stays(desk: Desk) -> None:
    desk.write(PeerList(RUN, 6, expires_unix_s=1001, deny=frozenset({THIRD})))
    assert desk.company.refresh()
    desk.now_s = 2000.0
    assert not desk.company.refresh()
    assert desk.excluded() == {THIRD}


def test_start_with_a_bad_list_or_one_that_excludes_the_node_is_refused(desk: Desk) -> None:
    desk.write(PeerList(RUN, 6, expires_unix_s=999))
    with pytest.raises(BadConfig, match="expired"):
        desk.company.load()
    desk.write(PeerList(RUN, 6, allow=frozenset({PEER})))
    with pytest.raises(NotAdmitted, match="not allowed"):
        desk.company.load()
    desk.path.unlink()
    with pytest.raises(BadConfig, match="cannot be read"):
        desk.company.load()


def test_list_in_a_run_without_an_owner_is_refused(tmp_path: Path) -> None:
    company = Company(ME, (), PeerListFile(tmp_path / "peers.json", RUN, ""), lambda: 0.0)
    with pytest.raises(BadConfig, match="no owner"):
        company.load()


def test_the_volunteers_own_list_needs_no_signature(tmp_path: Path, owner: Identity) -> None:
    alone = Company(ME, (THIRD,), None, lambda: 0.0)
    alone.load()
    assert [alone.exclusion(peer) for peer in (PEER, THIRD)] == ["", "denied"]
    both = Desk(tmp_path, owner, (THIRD,))
    both.write(PeerList(RUN, deny=frozenset({PEER})))
    both.company.load()
    assert both.excluded() == {PEER, THIRD}


async def test_running_node_hears_of_a_newer_list_and_of_its_own_exclusion(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PEER_LIST_CHECK_S", 0.01)
    changed, ended = asyncio.Event(), asyncio.get_running_loop().create_future()
    desk.company.watch(changed.set, ended.set_result)
    desk.write(PeerList(RUN, 6, deny=frozenset({THIRD})))
    await asyncio.wait_for(changed.wait(), 10)
    assert desk.excluded() == {THIRD}
    desk.write(PeerList(RUN, 7, deny=frozenset({ME})))
    assert isinstance(await asyncio.wait_for(ended, 10), NotAdmitted)
    assert desk.excluded() == {THIRD}
    await desk.company.close()


# --- command --------------------------------------------------------------------------------------


def test_peers_command_makes_and_changes_the_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NOLOCO_DATA_DIR", str(tmp_path / "data"))
    owner = load_or_create_identity(tmp_path / "owner.key")
    assert main(["swarm", "new", "--preset", "tiny", "--owner-key", "owner.key"]) == ExitCode.OK
    spec = load_run_spec(tmp_path / "swarm.toml")
    change = ["swarm", "peers", "--key", "owner.key"]
    assert main([*change, "--deny", PEER]) == ExitCode.OK
    assert main([*change, "--allow", ME, "--allow", THIRD, "--days", "3"]) == ExitCode.OK
    found = read_peer_list(tmp_path / "peers.json", run=spec.run_id, owner=owner.peer_id)
    assert (found.serial, found.allow, found.deny) == (2, {ME, THIRD}, {PEER})
    assert found.expires_unix_s > 0
    capsys.readouterr()
    assert main([*change, "--deny", "nobody"]) == ExitCode.BAD_CONFIG
    assert main(["swarm", "peers", "--key", "data/other.key"]) == ExitCode.BAD_IDENTITY
    load_or_create_identity(tmp_path / "other.key")
    assert main(["swarm", "peers", "--key", "other.key"]) == ExitCode.BAD_SPEC
    assert "Traceback" not in capsys.readouterr().err
