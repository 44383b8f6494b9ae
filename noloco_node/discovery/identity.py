"""The node's key: an ed25519 key file as p2pd reads it, the peer id made of it, and the lock on it.

Owns the file's format, its permissions and the rule "one process per key file". Imports nothing of hivemind, so that
`noloco-node identity` answers at once. The file is the libp2p protobuf `PrivateKey{type = Ed25519, data}` with
data = seed || public key, 64 bytes. A bad file is reported and never touched.
"""

from __future__ import annotations

import fcntl
import logging
import os
import stat
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import base58
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from noloco_node.core.types import PeerId
from noloco_node.errors import BadIdentity, IdentityInUse

log = logging.getLogger(__name__)

PRIVATE_KEY_HEADER: Final = b"\x08\x01\x12\x40"  # field 1: type Ed25519; field 2: 64 bytes
RSA_KEY_HEADER: Final = b"\x08\x00"
PEER_ID_HEADER: Final = b"\x00\x24\x08\x01\x12\x20"  # identity multihash of PublicKey{Ed25519, 32 bytes}
SEED_BYTES: Final = 32
KEY_FILE_BYTES: Final = len(PRIVATE_KEY_HEADER) + 2 * SEED_BYTES
KEY_FILE_MODE: Final = 0o600
ADVICE: Final = "Put the right key file back, or move this one away and a new identity is made at the next start."


@dataclass(frozen=True, slots=True)
class Identity:
    """A loaded key. `peer_id` is what others know this node by."""

    peer_id: PeerId
    path: Path
    _key: Ed25519PrivateKey = field(repr=False)

    def sign(self, message: bytes) -> bytes:
        """Ed25519 signature, 64 bytes."""
        return self._key.sign(message)


def peer_id_of(public_key: bytes) -> PeerId:
    """Peer id of a raw ed25519 public key: the key itself behind a multihash header, base58."""
    return PeerId(base58.b58encode(PEER_ID_HEADER + public_key).decode())


def peer_public_key(peer_id: str) -> bytes:
    """The raw public key (32 bytes) that a peer id is made of. Raises ValueError for any other text or key type."""
    if not len(PEER_ID_HEADER) + SEED_BYTES <= len(peer_id) <= 64:
        raise ValueError("no ed25519 peer id")
    decoded = base58.b58decode(peer_id)
    if not decoded.startswith(PEER_ID_HEADER) or len(decoded) != len(PEER_ID_HEADER) + SEED_BYTES:
        raise ValueError("no ed25519 peer id")
    if base58.b58encode(decoded).decode() != peer_id:
        raise ValueError("peer id is not written canonically")
    return decoded[len(PEER_ID_HEADER) :]


def verify(peer_id: str, message: bytes, signature: bytes) -> bool:
    """Whether the key behind `peer_id` made this signature."""
    try:
        Ed25519PublicKey.from_public_bytes(peer_public_key(peer_id)).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def load_or_create_identity(path: Path) -> Identity:
    """Load the key file, made first if it is missing. Two processes that start at once end up with one key."""
    if not path.exists():
        _create(path)
    return load_identity(path)


def load_identity(path: Path) -> Identity:
    """Read and check a key file. Raises BadIdentity; the file stays as it is but for permissions that are too wide."""
    try:
        with path.open("rb") as file:
            content = file.read(KEY_FILE_BYTES + 1)
    except OSError as error:
        raise BadIdentity(f"cannot read the key file {path}: {error.strerror}", ADVICE) from error
    identity = _parse(content, path)
    _narrow_permissions(path)
    return identity


def _parse(content: bytes, path: Path) -> Identity:
    if content.startswith(RSA_KEY_HEADER):
        raise BadIdentity(f"the key file {path} holds an RSA key, an ed25519 key is needed", ADVICE)
    if len(content) != KEY_FILE_BYTES or not content.startswith(PRIVATE_KEY_HEADER):
        raise BadIdentity(f"the key file {path} is not an ed25519 key of libp2p ({KEY_FILE_BYTES} bytes)", ADVICE)
    seed, public = content[len(PRIVATE_KEY_HEADER) :][:SEED_BYTES], content[-SEED_BYTES:]
    key = Ed25519PrivateKey.from_private_bytes(seed)
    if key.public_key().public_bytes_raw() != public:
        raise BadIdentity(f"the key file {path} is damaged: its two halves do not belong together", ADVICE)
    return Identity(peer_id_of(public), path, key)


def _create(path: Path) -> None:
    key = Ed25519PrivateKey.generate()
    content = PRIVATE_KEY_HEADER + key.private_bytes_raw() + key.public_key().public_bytes_raw()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _write_whole(path, content)
    except OSError as error:
        raise BadIdentity(
            f"cannot write the key file {path}: {error.strerror}", "Choose a data directory that can be written."
        ) from error


def _write_whole(path: Path, content: bytes) -> None:
    """The file appears complete or not at all; whoever comes second keeps the first one's file."""
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # mkstemp makes it 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        _link(temporary, path)
    finally:
        os.unlink(temporary)
    _sync_folder(path.parent)


def _link(temporary: str, path: Path) -> None:
    try:
        os.link(temporary, path)
    except FileExistsError:
        return
    except OSError:  # a file system without hard links
        if not path.exists():
            os.replace(temporary, path)
            Path(temporary).touch(KEY_FILE_MODE)  # the caller removes it


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _narrow_permissions(path: Path) -> None:
    """Others must not read the key: narrowed to 0600 with a warning; where that is forbidden, the warning remains."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if not mode & 0o077:
        return
    try:
        path.chmod(KEY_FILE_MODE)
        log.warning("key file %s was open to others (mode %03o); narrowed to 600", path, mode)
    except OSError:
        log.warning("key file %s is open to others (mode %03o) and cannot be narrowed", path, mode)


class IdentityLock:
    """Held while the process lives: one process per key file. The kernel drops it at any death, SIGKILL included.

    A flock on a side file `<key file>.lock` that names the holder. Where the key's folder cannot be written (a
    mounted secret) the side file stands in `fallback_dir`. A copy of the key elsewhere is not seen.
    """

    def __init__(self, identity_path: Path, fallback_dir: Path) -> None:
        self._paths = (
            identity_path.with_name(identity_path.name + ".lock"),
            fallback_dir / (identity_path.name + ".lock"),
        )
        self._identity_path = identity_path
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Raises IdentityInUse, naming the holder's process if it is known."""
        descriptor = self._open()
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
            os.close(descriptor)
            raise self._in_use(holder) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        self._descriptor = descriptor

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _open(self) -> int:
        for path in self._paths:
            try:
                return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, KEY_FILE_MODE)
            except OSError as error:
                reason = error.strerror
        raise BadIdentity(
            f"cannot write the lock file {self._paths[-1]}: {reason}", "Choose a data directory that can be written."
        )

    def _in_use(self, holder: str) -> IdentityInUse:
        who = f"process {holder}" if holder.isdigit() else "another process"
        return IdentityInUse(
            f"the key {self._identity_path} is in use by {who}",
            "Stop that process, or give this node its own data directory.",
        )
