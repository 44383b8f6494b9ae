"""Files that others wrote: run specs, lists of peers, keys, checkpoints."""

from __future__ import annotations

import json
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from strange_bytes import few, spoiled

from noloco_node.config.peer_list import PeerList, parse_peer_list, signed_list
from noloco_node.config.presets import preset
from noloco_node.config.spec_file import dump, parse_run_spec
from noloco_node.config.spec_signing import signed_text
from noloco_node.discovery.identity import Identity, load_identity, load_or_create_identity, peer_id_of
from noloco_node.errors import BadCheckpoint, BadConfig, BadIdentity, BadSignature, BadSpec, VersionMismatch, WrongRun
from noloco_node.training import checkpoint

SPEC = dump(preset("tiny"))
RUN = "0" * 32
ODD_VALUES = [
    *("-1", "0", "1", "1e400", "nan", "-inf", '""', '"\\u001b[2J"', "true", "[]", "{}", "[[1]]", "1979-05-27"),
    *("9" * 5000, str(1 << 63), str((1 << 63) - 1), "0x7fffffffffffffff", "1e308", "[" * 500 + "]" * 500),
    *("{ a = " * 200 + "1" + " }" * 200, "07:32:00", '"' + "x" * 500 + '"'),
]
LINES = [number for number, line in enumerate(SPEC.splitlines()) if " = " in line]


@pytest.fixture(scope="module")
def owner(tmp_path_factory: pytest.TempPathFactory) -> Identity:
    return load_or_create_identity(tmp_path_factory.mktemp("owner") / "owner.key")


# --- run specs ------------------------------------------------------------------------------------


def read_spec(text: str) -> None:
    """As a node does before it starts: every value derived from the spec as well."""
    with suppress(BadSpec, BadSignature, VersionMismatch):
        spec = parse_run_spec(text, Path("/nowhere"))
        assert len(spec.run_id) == 32
        assert spec.core_settings().num_stages >= 1
        assert spec.training_settings().model
        assert spec.hop_bytes > 0


@few
@given(changes=st.lists(st.tuples(st.sampled_from(LINES), st.sampled_from(ODD_VALUES)), min_size=1, max_size=2))
def test_spec_with_odd_values_is_valid_or_one_clear_fault(changes: list[tuple[int, str]]) -> None:
    lines = SPEC.splitlines()
    for number, value in changes:
        lines[number] = f"{lines[number].split(' = ')[0]} = {value}"
    read_spec("\n".join(lines))


@few
@given(data=st.data())
def test_spoiled_spec_is_valid_or_one_clear_fault(owner: Identity, data: st.DataObject) -> None:
    signed = signed_text(SPEC, Path("/nowhere"), owner)
    read_spec(data.draw(spoiled(SPEC.encode(), signed.encode())).decode("utf-8", "replace"))


@few
@given(data=st.data())
def test_signed_spec_that_still_counts_says_what_the_owner_signed(owner: Identity, data: st.DataObject) -> None:
    signed = signed_text(SPEC, Path("/nowhere"), owner)
    text = data.draw(spoiled(signed.encode())).decode("utf-8", "replace")
    with suppress(BadSpec, BadSignature, VersionMismatch):
        spec = parse_run_spec(text, Path("/nowhere"))
        if spec.swarm.owner == owner.peer_id:
            assert spec.run_id == parse_run_spec(signed, Path("/nowhere")).run_id


# --- lists of peers -------------------------------------------------------------------------------


@few
@given(data=st.data())
def test_spoiled_list_of_peers_is_the_signed_one_or_refused(owner: Identity, data: st.DataObject) -> None:
    made = PeerList(RUN, 3, 0, None, frozenset({peer_id_of(bytes(32))}))
    content = data.draw(spoiled(signed_list(made, owner).encode(), b"[" * 50_000, b'{"a":' * 20_000, b"9" * 5000))
    with suppress(BadConfig, BadSignature):
        assert parse_peer_list(content, run=RUN, owner=owner.peer_id) == made


# --- keys -----------------------------------------------------------------------------------------


@few
@given(data=st.data())
def test_spoiled_key_file_is_the_key_or_refused(owner: Identity, tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "a.key"
    path.write_bytes(data.draw(spoiled(owner.path.read_bytes())))
    path.chmod(0o600)
    with suppress(BadIdentity):
        assert load_identity(path).peer_id == owner.peer_id


# --- checkpoints ----------------------------------------------------------------------------------

META: dict[str, Any] = {
    "run": RUN,
    "seat": (0, 1),
    "num_stages": 2,
    "shape_hash": "shape",
    "outer_step": 3,
    "inner_step": 0,
    "data_next": 5,
    "adam_steps": 7,
    "reader": None,
    "model": {},
    "tokenizer": {},
}
ODD_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.just(float("nan")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    tensors = {part: {"weight": torch.arange(6.0).reshape(2, 3)} for part in checkpoint.PARTS}
    return checkpoint.save(tmp_path_factory.mktemp("saved"), checkpoint.Meta(**META), tensors).read_bytes()


def read_checkpoint(path: Path) -> None:
    with suppress(BadCheckpoint, WrongRun):
        meta = checkpoint.read_meta(path)
        assert (meta.run, meta.place, meta.outer_step) is not None
        checkpoint.load(path, run=RUN, shape_hash="shape")


@few
@given(data=st.data())
def test_spoiled_checkpoint_is_read_whole_or_refused(saved: bytes, tmp_path: Path, data: st.DataObject) -> None:
    huge = struct.pack("<Q", 1 << 62) + b"{}"
    path = tmp_path / "step-000003.safetensors"
    path.write_bytes(
        data.draw(spoiled(saved, huge, struct.pack("<Q", 2) + b"{}", struct.pack("<Q", 100_000) + b"[" * 100_000))
    )
    read_checkpoint(path)


@settings(few, max_examples=60)
@given(
    fields=st.dictionaries(
        st.sampled_from([*META, "format", "digest", "digests", "notes", "more"]), ODD_JSON, max_size=3
    )
)
def test_checkpoint_whose_header_says_odd_things_is_refused_or_read(
    saved: bytes, tmp_path: Path, fields: dict[str, Any]
) -> None:
    path = tmp_path / "step-000003.safetensors"
    header = META | {"format": checkpoint.FORMAT, "digest": ""} | fields
    save_file({"slow/weight": torch.zeros(2)}, path, {checkpoint.METADATA_KEY: json.dumps(header)})
    read_checkpoint(path)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.float8_e4m3fn])
def test_checkpoint_of_other_dtypes_is_refused(saved: bytes, tmp_path: Path, dtype: torch.dtype) -> None:
    path = tmp_path / "step-000003.safetensors"
    path.write_bytes(saved)
    metadata = checkpoint.read_meta(path)
    header = json.dumps(META | {"format": metadata.format})
    tensors = {f"{part}/weight": torch.zeros(2, 3).to(dtype) for part in checkpoint.PARTS}
    save_file(tensors, path, {checkpoint.METADATA_KEY: header})
    with pytest.raises(BadCheckpoint):
        checkpoint.load(path, run=RUN, shape_hash="shape")
