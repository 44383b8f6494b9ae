"""The run spec: one run id for one meaning, and one clear line for each way to get it wrong."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from noloco_node.config.presets import PRESETS, preset
from noloco_node.config.run_spec import RunSpec
from noloco_node.config.spec_file import dump, load_run_spec, parse_run_spec
from noloco_node.core import limits
from noloco_node.core.types import Admit, Clock, Mode
from noloco_node.errors import BadSpec, VersionMismatch

TINY = dump(preset("tiny"))


def parse(text: str) -> RunSpec:
    return parse_run_spec(text, Path("/nowhere"))


def changed(section: str, key: str, value: str, text: str = TINY) -> str:
    """The tiny spec with one key of one section given another TOML value."""
    sections = text.split("\n[")
    for index, body in enumerate(sections):
        if body.removeprefix("[").startswith(section + "]"):
            kept = [line for line in body.splitlines() if not line.startswith(key + " ")]
            sections[index] = "\n".join([*kept, f"{key} = {value}", ""])
    return "\n[".join(sections)


def streaming(fragments: int) -> str:
    text = TINY
    for key, value in (("mode", '"stream"'), ("fragments", fragments), ("clock", '"time"'), ("start_unix_s", 1e9)):
        text = changed("outer", key, str(value), text)
    return text


@pytest.mark.parametrize("name", PRESETS)
def test_presets_survive_writing_and_reading(name: str) -> None:
    spec = preset(name)
    assert parse(dump(spec)).run_id == spec.run_id


def test_run_id_ignores_order_comments_and_written_out_defaults() -> None:
    bare = "\n".join(line.split("  # ")[0] for line in TINY.splitlines() if not line.startswith("#"))
    sections = [f"[{part.removeprefix('[')}" for part in bare.strip().split("\n[")]
    reordered = "\n".join(reversed([part if part.endswith("\n") else part + "\n" for part in sections]))
    assert tomllib.loads(reordered) == tomllib.loads(TINY)
    without_default = changed("pipeline", "queue_max", "2")
    assert {parse(text).run_id for text in (TINY, bare, reordered, without_default)} == {preset("tiny").run_id}


def test_run_id_is_the_contract_between_versions() -> None:
    """A change here splits running swarms: it needs a new protocol version."""
    assert preset("tiny").run_id == "4a31c9f7164e7e00618c1580a45785d8"


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("swarm", "seed", "2"),
        ("swarm", "name", '"other"'),
        ("model", "rms_norm_eps", "1e-5"),
        ("outer", "gamma", "0.6"),
        ("data", "text_field", '"body"'),
        ("timing", "grace_s", "21.0"),
    ],
)
def test_run_id_changes_with_the_meaning(section: str, key: str, value: str) -> None:
    assert parse(changed(section, key, value)).run_id != preset("tiny").run_id


def test_model_config_file_is_embedded_so_where_it_lies_does_not_matter(tmp_path: Path) -> None:
    model = preset("tiny").model
    ids = set()
    for name in ("config.json", "elsewhere.json"):
        (tmp_path / name).write_text(json.dumps(dict(reversed(model.items()))))
        (tmp_path / "swarm.toml").write_text(dump(preset("tiny"), config_file=name))
        ids.add(load_run_spec(tmp_path / "swarm.toml").run_id)
    assert ids == {preset("tiny").run_id}


def test_settings_carry_every_agreed_value() -> None:
    spec = parse(changed("pipeline", "admit", '"ordered"'))
    core, training = spec.core_settings(), spec.training_settings()
    assert (core.run, core.clock, core.admit) == (spec.run_id, Clock.STEPS, Admit.ORDERED)
    assert (core.inner_steps, core.grace_s, core.micro_batches) == (4, 20.0, 2)
    assert training.optimizer.total_steps == core.inner_steps * core.total_outer_steps
    assert (training.run, training.model["hidden_size"], training.sequence_length) == (spec.run_id, 32, 32)


@pytest.mark.parametrize("mode", ["joint", "prefetch"])
def test_where_training_waits_either_clock_and_ordered_admission_will_do(mode: str) -> None:
    spec = parse(changed("outer", "mode", f'"{mode}"', changed("pipeline", "admit", '"ordered"')))
    assert (spec.core_settings().mode, spec.core_settings().clock) == (Mode(mode), Clock.STEPS)
    assert spec.training_settings().prefetch is (mode == "prefetch")


@pytest.mark.parametrize(("dtype", "item_bytes"), [("float32", 4), ("bfloat16", 2), ("int8", 1 + 1 / 256)])
def test_bytes_of_a_hop_follow_from_the_spec(dtype: str, item_bytes: int) -> None:
    spec = parse(changed("pipeline", "wire_dtype", f'"{dtype}"'))
    rows, tokens, hidden = spec.hop_shape
    assert (rows, tokens) == (spec.batch.micro_batch_size, spec.batch.sequence_length)
    assert spec.hop_bytes == rows * tokens * hidden * item_bytes + 2 * rows * tokens * 4


def test_relative_data_path_starts_at_the_spec(tmp_path: Path) -> None:
    text = changed("data", "source", '"text"').replace('path = ""', 'path = "books/*.txt"', 1)
    (tmp_path / "swarm.toml").write_text(text)
    assert load_run_spec(tmp_path / "swarm.toml").training_settings().data.path == str(tmp_path / "books/*.txt")
    assert load_run_spec(tmp_path / "swarm.toml").run_id == parse(text).run_id


BAD = [
    (changed("timing", "grase_s", "1.0"), r"\[timing\] grase_s is unknown; did you mean 'grace_s'"),
    (changed("swarm", "alpha", "0.5"), r"\[swarm\] alpha is unknown; it belongs into \[outer\]"),
    (TINY.replace("[pipeline]", "[pipline]"), r"\[pipline\] is unknown; did you mean 'pipeline'"),
    (TINY + "\nwhat is this\n", "not valid TOML: .*line"),
    (changed("swarm", "num_stages", "3"), "num_hidden_layers 4 is not divisible by .*num_stages 3"),
    (changed("outer", "gamma", "1.0"), r"gamma 1 must be above 0 and below 2 \(1 - alpha\) = 1"),
    (changed("outer", "gamma", "0.0"), "gamma 0 must be above 0"),
    (changed("outer", "alpha", "0.9"), r"gamma 0.7 must be .* = 0.2"),
    (changed("outer", "group_size", "4"), "group_size 4: .*only 2 is accepted"),
    (changed("outer", "mode", '"rotation"'), r"\[outer\] mode = 'rotation'"),
    (changed("outer", "mode", '"overlap"'), 'mode "overlap" needs clock "time"'),
    (changed("outer", "mode", '"prefetch"', changed("outer", "codec", '"lattice4"')), 'codec "lattice4" tells differ'),
    (changed("outer", "mode", '"stream"'), 'fragments 1: mode "stream" has at least 2'),
    (changed("outer", "total_outer_steps", "1000", streaming(250)), "fragments 250: this model's stages have room for"),
    (streaming(5), "total_outer_steps 3 is below fragments 5"),
    (changed("outer", "fragments", "4"), 'fragments 4: mode "stream" has at least 2'),
    (changed("outer", "codec", '"int9"'), r"\[outer\] codec = 'int9'"),
    (changed("outer", "clock", '"time"'), "needs start_unix_s"),
    (changed("outer", "alpha", '"half"'), r"\[outer\] alpha = 'half': input should be a valid number"),
    (changed("outer", "beta", "nan"), r"\[outer\] beta = nan"),
    (changed("outer", "inner_steps", "0"), r"\[outer\] inner_steps = 0"),
    (changed("outer", "total_outer_steps", "0"), "total_steps must be given"),
    (changed("inner", "warmup_steps", "13"), "warmup_steps 13 is above the 12 steps"),
    (changed("model", "tie_word_embeddings", "true"), "tie_word_embeddings must be false"),
    (changed("model", "vocab_size", "256"), "vocab_size 256 is below 257"),
    (changed("model", "num_attention_heads", "3"), "hidden_size 32 is not divisible by num_attention_heads 3"),
    (changed("model", "num_key_value_heads", "4"), "num_attention_heads 2 is not divisible by num_key_value_heads 4"),
    (changed("model", "hidden_size", '"big"'), "hidden_size must be a positive integer, not 'big'"),
    (changed("model", "model_type", '"lama"'), "model_type 'lama' is not supported; did you mean 'llama'"),
    (changed("batch", "sequence_length", "65"), "sequence_length 65 is above .*max_position_embeddings 64"),
    (changed("timing", "renew_s", "20.0"), "renew_s 20 must be below lease_s 20"),
    (changed("swarm", "num_replicas", "40000"), "num_stages . num_replicas is 80000, above 65536"),
    (changed("outer", "start_seats", "5"), "start_seats 5 is above the 4 seats"),
    (changed("swarm", "name", '"a b"'), r"\[swarm\] name = 'a b'"),
    (changed("swarm", "seed", "-1"), r"\[swarm\] seed = -1"),
    (changed("data", "source", '"text"'), r"\[data\] path must be given"),
    (changed("tokenizer", "kind", '"hf"'), r"\[tokenizer\] path must be given"),
    (changed("model", "config_file", '"c.json"'), "only one way to give the model"),
    (TINY.replace("[batch]", "[nothing]"), r"\[batch\] is missing"),
]


@pytest.mark.parametrize(("text", "line"), BAD, ids=[line[:40] for _, line in BAD])
def test_impossible_spec_is_one_clear_line(text: str, line: str) -> None:
    with pytest.raises(BadSpec, match=line) as caught:
        parse(text)
    assert "\n" not in caught.value.cause
    assert caught.value.advice


def test_other_protocol_version_is_told_apart_even_when_its_keys_are_unknown() -> None:
    text = changed("swarm", "protocol_version", str(limits.PROTOCOL_VERSION + 1)) + "\n[novelty]\nx = 1\n"
    with pytest.raises(VersionMismatch, match="protocol version 2") as caught:
        parse(text)
    assert caught.value.advice == "update noloco-node"


def test_faults_of_the_file_name_it(tmp_path: Path) -> None:
    with pytest.raises(BadSpec, match=r"absent\.toml: cannot be read"):
        load_run_spec(tmp_path / "absent.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\x00")
    with pytest.raises(BadSpec, match=r"binary\.toml: not valid TOML: not UTF-8"):
        load_run_spec(tmp_path / "binary.toml")
    (tmp_path / "swarm.toml").write_text(dump(preset("tiny"), config_file="absent.json"))
    with pytest.raises(BadSpec, match=r"absent\.json: No such file"):
        load_run_spec(tmp_path / "swarm.toml")


def test_a_null_in_the_model_is_not_lost_silently() -> None:
    spec = preset("tiny", model={"sliding_window": None})
    with pytest.raises(BadSpec, match="nulls"):
        dump(spec)


def test_strings_are_quoted_so_that_toml_reads_them_back() -> None:
    spec = preset("tiny", data={"text_field": 'we"ird\\\n\x7fé\U0001f600'})
    assert parse(dump(spec)).data.text_field == spec.data.text_field
