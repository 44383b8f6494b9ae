from __future__ import annotations

import multiprocessing
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from noloco_node.discovery.identity import (
    IdentityLock,
    load_identity,
    load_or_create_identity,
    peer_public_key,
    verify,
)
from noloco_node.errors import BadIdentity, IdentityInUse


def test_key_file_keeps_the_same_peer_id(tmp_path: Path) -> None:
    first = load_or_create_identity(tmp_path / "deep" / "identity.key")
    again = load_or_create_identity(tmp_path / "deep" / "identity.key")
    assert first.peer_id == again.peer_id
    assert first.peer_id.startswith("12D3KooW")


def test_new_key_file_is_private_and_leaves_no_temporary_file(tmp_path: Path) -> None:
    path = tmp_path / "identity.key"
    load_or_create_identity(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["identity.key"]


def test_signature_is_verified_with_the_peer_id_alone(tmp_path: Path) -> None:
    mine, other = load_or_create_identity(tmp_path / "a"), load_or_create_identity(tmp_path / "b")
    signature = mine.sign(b"message")
    assert len(peer_public_key(mine.peer_id)) == 32
    assert verify(mine.peer_id, b"message", signature)
    assert not verify(mine.peer_id, b"massage", signature)
    assert not verify(other.peer_id, b"message", signature)
    assert not verify(mine.peer_id, b"message", b"")


@pytest.mark.parametrize("text", ["", "12D3KooW", "Qm" + "1" * 44, "0OIl" * 13, "1" * 52, "12D3KooW" + "z" * 44])
def test_text_that_is_no_ed25519_peer_id_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        peer_public_key(text)


def rsa_key_file() -> bytes:
    data = rsa.generate_private_key(65537, 2048).private_bytes(
        Encoding.DER, PrivateFormat.TraditionalOpenSSL, NoEncryption()
    )
    length = bytes([len(data) & 0x7F | 0x80, len(data) >> 7])
    return b"\x08\x00\x12" + length + data


def mixed_halves(folder: Path) -> bytes:
    one, two = (folder / name for name in ("one", "two"))
    load_or_create_identity(one), load_or_create_identity(two)
    return one.read_bytes()[:36] + two.read_bytes()[36:]


@pytest.mark.parametrize("kind", ["empty", "garbage", "short", "long", "rsa", "mixed"])
def test_bad_key_file_is_reported_in_one_line_and_left_alone(tmp_path: Path, kind: str) -> None:
    good = tmp_path / "good"
    load_or_create_identity(good)
    content = {
        "empty": b"",
        "garbage": b"hello\n" * 20,
        "short": good.read_bytes()[:-1],
        "long": good.read_bytes() + b"\0",
        "rsa": rsa_key_file(),
        "mixed": mixed_halves(tmp_path),
    }[kind]
    path = tmp_path / "identity.key"
    path.write_bytes(content)
    path.chmod(0o640)
    with pytest.raises(BadIdentity) as caught:
        load_or_create_identity(path)
    assert str(path) in caught.value.cause
    assert "\n" not in caught.value.cause
    assert path.read_bytes() == content
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_key_path_that_is_a_folder_is_reported(tmp_path: Path) -> None:
    with pytest.raises(BadIdentity):
        load_identity(tmp_path)


def test_key_open_to_others_is_narrowed_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "identity.key"
    load_or_create_identity(path)
    path.chmod(0o644)
    load_identity(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "open to others" in caplog.text


def _peer_id_in(path: str) -> str:
    return load_or_create_identity(Path(path)).peer_id


def test_processes_that_start_at_once_agree_on_one_key(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    with context.Pool(4) as pool:
        peer_ids = pool.map(_peer_id_in, [str(tmp_path / "identity.key")] * 16, chunksize=1)
    assert len(set(peer_ids)) == 1


HOLD = """
import sys, time
from pathlib import Path
from noloco_node.discovery.identity import IdentityLock
IdentityLock(Path(sys.argv[1]), Path(sys.argv[2])).acquire()
print("held", flush=True)
time.sleep(60)
"""


def test_second_process_with_the_same_key_is_refused_until_the_first_dies(tmp_path: Path) -> None:
    path = tmp_path / "identity.key"
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(path), str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(IdentityInUse) as caught:
            IdentityLock(path, tmp_path).acquire()
        assert str(holder.pid) in caught.value.cause
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        holder.stdout.close()
    lock = IdentityLock(path, tmp_path)
    lock.acquire()
    lock.release()


def test_lock_falls_back_to_the_data_dir_where_the_key_folder_cannot_be_written(tmp_path: Path) -> None:
    lock = IdentityLock(tmp_path / "absent" / "identity.key", tmp_path)
    lock.acquire()
    assert (tmp_path / "identity.key.lock").exists()
    lock.release()


def test_identity_needs_no_hivemind() -> None:
    code = "import sys, noloco_node.discovery.identity; sys.exit('hivemind' in sys.modules or 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
