"""A run with an owner: its spec counts only as the owner signed it, byte for meaning."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from noloco_node.cli import main
from noloco_node.config.presets import preset
from noloco_node.config.run_spec import RunSpec
from noloco_node.config.spec_file import dump, load_run_spec, parse_run_spec
from noloco_node.config.spec_signing import sign_spec_file, signed_text
from noloco_node.discovery.identity import Identity, load_or_create_identity
from noloco_node.errors import BadSignature, BadSpec, ExitCode

OPEN = dump(preset("tiny"))


@pytest.fixture(scope="module")
def owner(tmp_path_factory: pytest.TempPathFactory) -> Identity:
    return load_or_create_identity(tmp_path_factory.mktemp("owner") / "owner.key")


@pytest.fixture
def other(tmp_path: Path) -> Identity:
    return load_or_create_identity(tmp_path / "other.key")


@pytest.fixture
def signed(owner: Identity) -> str:
    return signed_text(OPEN, Path("/nowhere"), owner)


def parse(text: str) -> RunSpec:
    return parse_run_spec(text, Path("/nowhere"))


def test_signed_spec_names_its_owner_and_is_another_run_than_the_open_one(owner: Identity, signed: str) -> None:
    spec = parse(signed)
    assert spec.swarm.owner == owner.peer_id
    assert spec.run_id != parse(OPEN).run_id
    assert spec.model_dump(exclude={"swarm"}) == parse(OPEN).model_dump(exclude={"swarm"})


def test_open_spec_needs_no_signature_and_keeps_its_run_id() -> None:
    """An empty owner is not part of what is hashed: swarms begun before owners existed go on."""
    bare = "\n".join(line for line in OPEN.splitlines() if not line.startswith("owner"))
    assert parse(bare).run_id == parse(OPEN).run_id
    assert b"owner" not in parse(OPEN).canonical()


def test_signature_survives_comments_order_and_writing_anew(signed: str) -> None:
    spec = parse(signed)
    assert parse(dump(spec)).run_id == spec.run_id
    bare = "\n".join(line.split("  # ")[0] for line in signed.splitlines() if not line.startswith("#"))
    assert parse(bare).signature == spec.signature


def test_signing_again_changes_nothing(owner: Identity, signed: str) -> None:
    assert signed_text(signed, Path("/nowhere"), owner) == signed


@pytest.mark.parametrize(
    ("found", "instead"),
    [
        ("seed = 1", "seed = 2"),
        ("learning_rate = 0.003", "learning_rate = 0.004"),
        ("grace_s = 20.0", "grace_s = 21.0"),
        ('ed25519 = "', 'ed25519 = "00'),
        ("[signature]", "[signature]\nmore = 1"),
        ("ed25519", "rsa"),
    ],
)
def test_changed_spec_is_refused(signed: str, found: str, instead: str) -> None:
    assert found in signed
    with pytest.raises(BadSignature, match="not signed by its owner"):
        parse(signed.replace(found, instead, 1))


def test_spec_whose_owner_was_replaced_is_refused(owner: Identity, other: Identity, signed: str) -> None:
    with pytest.raises(BadSignature, match="not signed by its owner"):
        parse(signed.replace(owner.peer_id, other.peer_id))


def test_spec_that_names_an_owner_without_a_signature_is_refused(signed: str) -> None:
    with pytest.raises(BadSignature, match="is not signed"):
        parse(signed.split("[signature]")[0])


def test_signature_without_an_owner_is_refused(owner: Identity, signed: str) -> None:
    with pytest.raises(BadSignature, match="names no"):
        parse(signed.replace(f'owner = "{owner.peer_id}"', ""))


@pytest.mark.parametrize("value", ["12D3KooW", "nobody", "Qm" + "a" * 44, "0" * 52])
def test_owner_that_is_no_peer_id_is_one_line(value: str) -> None:
    with pytest.raises(BadSpec, match="peer id"):
        parse(OPEN.replace('owner = ""', f'owner = "{value}"'))


def test_somebody_elses_spec_cannot_be_signed(other: Identity, signed: str) -> None:
    with pytest.raises(BadSpec, match="is owned by"):
        signed_text(signed, Path("/nowhere"), other)


def test_owner_is_written_into_a_spec_that_has_no_such_line(owner: Identity) -> None:
    bare = "\n".join(line for line in OPEN.splitlines() if not line.startswith("owner")) + "\n"
    assert parse(signed_text(bare, Path("/nowhere"), owner)).swarm.owner == owner.peer_id


def test_spec_with_its_model_in_a_file_is_signed_with_the_model(owner: Identity, tmp_path: Path) -> None:
    model = tmp_path / "config.json"
    model.write_text(json.dumps(preset("tiny").model))
    path = tmp_path / "swarm.toml"
    path.write_text(dump(preset("tiny"), config_file="config.json"))
    sign_spec_file(path, owner)
    load_run_spec(path)
    model.write_text(model.read_text().replace("1e-06", "1e-05"))
    with pytest.raises(BadSignature):
        load_run_spec(path)


# --- commands -------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NOLOCO_DATA_DIR", str(tmp_path / "data"))
    assert main(["identity", "--identity-file", "owner.key", "--create"]) == ExitCode.OK
    return tmp_path


def test_sign_command_signs_the_file_in_place(folder: Path) -> None:
    assert main(["swarm", "new", "--preset", "tiny"]) == ExitCode.OK
    assert main(["swarm", "sign", "--key", "owner.key"]) == ExitCode.OK
    assert load_run_spec(folder / "swarm.toml").swarm.owner
    assert [path.name for path in folder.glob("swarm*")] == ["swarm.toml"]


def test_new_swarm_can_be_begun_signed_and_run_refuses_it_once_changed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["swarm", "new", "--preset", "tiny", "--owner-key", "owner.key"]) == ExitCode.OK
    spec = folder / "swarm.toml"
    assert load_run_spec(spec).signature
    spec.write_text(spec.read_text().replace("inner_steps = 4", "inner_steps = 5"))
    capsys.readouterr()
    assert main(["run"]) == ExitCode.BAD_SIGNATURE
    error, advice = capsys.readouterr().err.splitlines()
    assert "not signed by its owner" in error
    assert "ask the owner" in advice
