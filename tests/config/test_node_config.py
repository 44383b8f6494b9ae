"""The volunteer's choices: where each may come from, which source wins, and what a slip says."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from noloco_node.config.node_config import NodeConfig
from noloco_node.config.node_sources import flag, load_node_config, variable
from noloco_node.core.types import Seat
from noloco_node.errors import BadConfig, ExitCode

PEER = "/ip4/203.0.113.7/tcp/31337/p2p/12D3KooWAnbdW4LhxzqLrnMXyFPG2rcvKVSd7xCcTqNMvSyd5A5c"


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import os

    for name in list(os.environ):
        if name.upper().startswith("NOLOCO_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.mark.parametrize("sources", [s for n in range(4) for s in itertools.combinations(("flag", "env", "file"), n)])
def test_flag_outranks_variable_outranks_file_outranks_default(
    sources: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if "env" in sources:
        monkeypatch.setenv("NOLOCO_METRICS_PORT", "2")
    file = write(tmp_path / "node.toml", "metrics_port = 3\n") if "file" in sources else None
    config = load_node_config({"metrics_port": 1} if "flag" in sources else {}, file)
    wanted = {"flag": 1, "env": 2, "file": 3}
    assert config.metrics_port == next((wanted[s] for s in ("flag", "env", "file") if s in sources), 9464)


def test_sources_complement_one_another(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NOLOCO_DEVICE", "cuda:1")
    monkeypatch.setenv("NOLOCO_CONFIG", str(write(tmp_path / "node.toml", 'log_level = "debug"\nseat = "1.0"\n')))
    config = load_node_config({"threads": 3})
    assert (config.device, config.log_level, config.threads, config.wanted_seat) == ("cuda:1", "debug", 3, Seat(1, 0))


def test_defaults_keep_metrics_on_loopback_and_need_no_home_relative_path() -> None:
    config = load_node_config()
    assert config.metrics_address == "127.0.0.1"
    assert config.data_dir.is_absolute()
    assert config.identity_file == config.data_dir / "identity.key"
    assert config.wanted_seat is None
    assert config.listen == ("/ip4/0.0.0.0/tcp/31337",)


def test_lists_come_from_commas_spaces_and_repeated_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    second = PEER.replace("203.0.113.7", "203.0.113.8")
    monkeypatch.setenv("NOLOCO_INITIAL_PEERS", f"{PEER}, {second}")
    assert load_node_config().initial_peers == (PEER, second)
    assert load_node_config({"initial_peers": (PEER, second)}).initial_peers == (PEER, second)


def test_paths_of_a_file_start_at_the_file_and_others_at_the_working_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "etc"
    folder.mkdir()
    file = write(folder / "node.toml", 'data_dir = "state"\nspec = "swarm.toml"\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NOLOCO_SPEC", "other.toml")
    config = load_node_config(file=file)
    assert config.data_dir == folder / "state"
    assert config.spec == tmp_path / "other.toml"


@pytest.mark.parametrize(
    ("name", "near"),
    [("NOLOCO_METRIC_PORT", "NOLOCO_METRICS_PORT"), ("NOLOCO_INITIAL_PEER", "NOLOCO_INITIAL_PEERS")],
)
def test_unknown_variable_names_the_nearest(name: str, near: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "1")
    with pytest.raises(BadConfig, match=rf"{name} is unknown; did you mean {near}\?") as caught:
        load_node_config()
    assert caught.value.code is ExitCode.BAD_CONFIG


def test_unknown_key_of_the_file_names_the_nearest(tmp_path: Path) -> None:
    file = write(tmp_path / "node.toml", "metrics_prt = 1\n")
    with pytest.raises(BadConfig, match="key 'metrics_prt' is unknown; did you mean 'metrics_port'"):
        load_node_config(file=file)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("device", "gpu"),
        ("seat", "1"),
        ("seat", "a.b"),
        ("threads", "-1"),
        ("listen", "0.0.0.0:31337"),
        ("listen", "/ip4/0.0.0.0/tcp/port"),
        ("announce", "not an address"),
        ("initial_peers", "/ip4/203.0.113.7/tcp/31337"),
        ("reachability", "perhaps"),
        ("relay", "maybe"),
        ("metrics_address", "everywhere"),
        ("metrics_port", "65536"),
        ("metrics_port", "http"),
        ("log_format", "xml"),
        ("log_level", "loud"),
        ("p2p_start_timeout_s", "0"),
        ("stop_grace_s", "soon"),
        ("state_uploads_max", "-1"),
    ],
)
def test_bad_value_is_one_line_naming_flag_variable_and_key(
    field: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable(field), value)
    with pytest.raises(BadConfig) as caught:
        load_node_config()
    cause = caught.value.cause
    assert "\n" not in cause
    assert flag(field) in cause
    assert variable(field) in cause
    assert f"{field} in " in cause


def test_missing_broken_and_unreadable_files_say_so(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="no such file"):
        load_node_config(file=tmp_path / "none.toml")
    with pytest.raises(BadConfig, match=r"not valid TOML: .*line 1"):
        load_node_config(file=write(tmp_path / "broken.toml", "metrics_port = = 1\n"))
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadConfig, match="cannot be read"):
        load_node_config(file=tmp_path / "binary.toml")


def test_every_field_has_words_for_the_help() -> None:
    assert all(field.description for field in NodeConfig.model_fields.values())
