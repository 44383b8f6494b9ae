"""What a person gets wrong before the node is up: one exit code, one line of cause, one of advice, nothing touched."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from node_commands import flags, run_to_end, write_spec

from noloco_node.errors import ExitCode


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    return write_spec(tmp_path)


def refused(spec: Path, data_dir: Path, code: ExitCode, *words: str, **changes: str) -> None:
    """The run ends at once, and no folder of a run was begun."""
    assert run_to_end(flags(spec, data_dir, **changes)).is_fault(code, *words)
    assert not (data_dir / "runs").exists()


# --- the run spec -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "code", "words"),
    [
        ("[batch]", "[batch", ExitCode.BAD_SPEC, "not valid TOML"),
        ("micro_batches", "micro_batch", ExitCode.BAD_SPEC, "did you mean"),
        ("gamma = 0.7", "gamma = 1.0", ExitCode.BAD_SPEC, "gamma"),
        ("num_hidden_layers = 4", 'num_hidden_layers = "four"', ExitCode.BAD_SPEC, "num_hidden_layers"),
        ("protocol_version = 1", "protocol_version = 2", ExitCode.VERSION_MISMATCH, "update noloco-node"),
    ],
)
def test_bad_spec_is_one_line(spec: Path, tmp_path: Path, old: str, new: str, code: ExitCode, words: str) -> None:
    text = spec.read_text()
    assert old in text
    spec.write_text(text.replace(old, new, 1))
    refused(spec, tmp_path / "data", code, words)
    assert not (tmp_path / "data").exists()


def test_missing_spec_is_one_line(tmp_path: Path) -> None:
    refused(tmp_path / "none.toml", tmp_path / "data", ExitCode.BAD_SPEC, "No such file", "--spec")


# --- the node's own configuration -------------------------------------------------------------------


@pytest.mark.parametrize("seat", ["1.0", "0.2"])
def test_seat_outside_the_table_names_the_seats(spec: Path, tmp_path: Path, seat: str) -> None:
    refused(spec, tmp_path / "data", ExitCode.BAD_CONFIG, f"--seat {seat}", "0.0 to 0.1", seat=seat)


def test_unknown_variable_names_the_nearest(spec: Path, tmp_path: Path) -> None:
    done = run_to_end(flags(spec, tmp_path / "data"), NOLOCO_DATADIR="/elsewhere")
    assert done.is_fault(ExitCode.BAD_CONFIG, "NOLOCO_DATADIR", "NOLOCO_DATA_DIR")


def test_peer_address_without_a_peer_id_is_refused(spec: Path, tmp_path: Path) -> None:
    refused(spec, tmp_path / "data", ExitCode.BAD_CONFIG, "/p2p/", initial_peers="/ip4/127.0.0.1/tcp/31337")


# --- disk -------------------------------------------------------------------------------------------


def test_data_dir_that_is_a_file_stays_as_it_is(spec: Path, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("precious")
    refused(spec, tmp_path / "data", ExitCode.DISK, "--data-dir")
    assert (tmp_path / "data").read_text() == "precious"


def test_data_dir_that_cannot_be_made_is_named(spec: Path) -> None:
    refused(spec, Path("/proc/noloco"), ExitCode.DISK, "/proc/noloco")


# --- the key ----------------------------------------------------------------------------------------


def pem(key: object) -> bytes:
    return key.private_bytes(  # type: ignore[attr-defined, no-any-return]
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def rsa_key_of_libp2p() -> bytes:
    der = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.DER, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    return b"\x08\x00\x12" + bytes([len(der) & 0x7F | 0x80, len(der) >> 7]) + der


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not an ed25519 key"),
        (b"garbage" * 9, "not an ed25519 key"),
        (b"\x08\x01\x12\x40" + bytes(64), "two halves"),
        (b"\x08\x01\x12\x40" + bytes(64) + b"more", "not an ed25519 key"),
        (pem(ec.generate_private_key(ec.SECP256R1())), "not an ed25519 key"),
        (rsa_key_of_libp2p(), "RSA key"),
    ],
    ids=["empty", "garbage", "damaged", "oversized", "pem", "rsa"],
)
def test_bad_key_file_is_said_and_left_alone(spec: Path, tmp_path: Path, content: bytes, words: str) -> None:
    key = tmp_path / "data" / "identity.key"
    key.parent.mkdir()
    key.write_bytes(content)
    refused(spec, tmp_path / "data", ExitCode.BAD_IDENTITY, str(key), words)
    assert key.read_bytes() == content


# --- data and ports ---------------------------------------------------------------------------------


def test_missing_data_is_named(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, data={"source": "text", "path": "texts/*.txt"})
    refused(spec, tmp_path / "data", ExitCode.BAD_DATA, "texts/*.txt")


def test_metrics_port_in_use_is_named(spec: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        refused(spec, tmp_path / "data", ExitCode.PORT_IN_USE, port, "--metrics-port", metrics_port=port)


# --- the hour ---------------------------------------------------------------------------------------


def test_run_that_is_over_is_said_to_whoever_took_no_part(tmp_path: Path) -> None:
    outer = {"clock": "time", "start_unix_s": 1e9, "outer_interval_s": 10.0, "total_outer_steps": 6}
    spec = write_spec(tmp_path, outer=outer)
    refused(spec, tmp_path / "data", ExitCode.TARGET_MISSED, "the run ended on 2001-09-09", "swarm new")
