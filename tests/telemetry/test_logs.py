"""The log: one JSON object a line away from a terminal, words on it, secrets on neither."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from noloco_node.core import events as ev
from noloco_node.core.types import Seat
from noloco_node.telemetry import logs
from noloco_node.telemetry.diary import Diary


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def closed_afterwards() -> Iterator[None]:
    yield
    logs.close_log()


def written(form: str = "auto", level: str = "info", **values: Any) -> dict[str, Any]:
    stream = io.StringIO()
    logs.open_log(form, level, stream)  # type: ignore[arg-type]
    logs.logger("node").info("seat_taken", **values)
    found: dict[str, Any] = json.loads(stream.getvalue())
    return found


def test_away_from_a_terminal_each_line_is_json() -> None:
    line = written(seat=Seat(1, 0), path=Path("/data"), loss=1.5)
    assert line["event"] == "seat_taken"
    assert (line["logger"], line["level"], line["loss"]) == ("noloco.node", "info", 1.5)
    assert (line["seat"], line["path"]) == ("1.0", "/data")
    assert line["timestamp"].endswith("Z")


def test_on_a_terminal_it_is_text() -> None:
    stream = Terminal()
    logs.open_log("auto", stream=stream)
    logs.logger("node").info("seat_taken", seat="1.0")
    assert "seat_taken" in stream.getvalue()
    assert not stream.getvalue().startswith("{")


def test_multi_line_values_and_tracebacks_stay_on_one_line() -> None:
    stream = io.StringIO()
    logs.open_log("json", stream=stream)
    try:
        raise ValueError("a\nb")
    except ValueError:
        logs.logger("node").exception("failed", text="c\nd")
    assert stream.getvalue().count("\n") == 1
    assert "Traceback" in json.loads(stream.getvalue())["exception"]


def test_libraries_write_the_same_form_but_only_warnings() -> None:
    stream = io.StringIO()
    logs.open_log("json", "debug", stream)
    logging.getLogger("hivemind.p2p").info("chatter")
    logging.getLogger("hivemind.p2p").warning("trouble with %s", "a peer")
    assert json.loads(stream.getvalue())["event"] == "trouble with a peer"


def test_modules_of_this_package_log_at_the_chosen_level() -> None:
    stream = io.StringIO()
    logs.open_log("json", "info", stream)
    logging.getLogger("noloco_node.discovery.daemon").info("p2pd is up")
    assert json.loads(stream.getvalue())["event"] == "p2pd is up"


def test_level_is_kept_and_opening_again_does_not_double_lines() -> None:
    stream = io.StringIO()
    logs.open_log("json", "warning", stream)
    logs.open_log("json", "warning", stream)
    logs.logger("node").info("unheard")
    logs.logger("node").warning("heard")
    assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == ["heard"]


@pytest.mark.parametrize("name", ["private_key", "secret", "password", "hf_token", "token", "key", "Authorization"])
def test_values_under_telling_names_are_hidden(name: str) -> None:
    assert written(**{name: "abcdef"})[name] == logs.HIDDEN
    assert written(nested={name: "abcdef"})["nested"][name] == logs.HIDDEN


def test_counts_of_tokens_are_not_secret() -> None:
    assert written(tokens=5, tokens_per_s=3.0)["tokens_per_s"] == 3.0


def test_keys_in_text_and_raw_bytes_never_appear() -> None:
    pem = "-----BEGIN PRIVATE KEY-----\nMC4CAQ\n-----END PRIVATE KEY-----"
    line = written(reason=f"bad {pem} here", text="used hf_abcdefghijklmnopqrstuv", data=b"\x00\x01key")
    assert line["reason"] == f"bad {logs.HIDDEN} here"
    assert "hf_abc" not in line["text"]
    assert line["data"] == "<5 bytes>"


def test_secrets_in_a_traceback_are_cut_out() -> None:
    stream = io.StringIO()
    logs.open_log("json", stream=stream)
    try:
        raise ValueError("token hf_abcdefghijklmnopqrstuv was refused")
    except ValueError:
        logs.logger("node").exception("failed")
    assert "hf_abc" not in stream.getvalue()


@pytest.mark.parametrize(
    ("gradient_norm", "reason"), [(0.0, "every micro-batch of it was lost"), (float("nan"), "not finite")]
)
def test_a_skipped_inner_step_says_why(gradient_norm: float, reason: str) -> None:
    stream = io.StringIO()
    logs.open_log("json", stream=stream)
    Diary().event(ev.InnerStepDone(gradient_norm, applied=False))
    line = json.loads(stream.getvalue())
    assert line["event"] == "inner_step_skipped"
    assert reason in line["reason"]
