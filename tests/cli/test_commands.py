"""The command line: what it imports, what it prints, how each fault ends."""

from __future__ import annotations

import http.server
import json
import os
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from noloco_node.cli import COMMANDS, main
from noloco_node.cli.exit_codes import MEANINGS, exit_codes_page
from noloco_node.config.spec_file import load_run_spec
from noloco_node.errors import BadSpec, ExitCode, NolocoError

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("torch", "transformers", "datasets", "grpc", "hivemind", "pydantic", "rich", "numpy", "structlog", "asyncio")


@pytest.fixture(autouse=True)
def own_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.upper().startswith("NOLOCO_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NOLOCO_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from noloco_node.cli import main; rc = main(['--help']);"
        f"print(rc, [name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr.strip() == "0 []"
    assert all(name in done.stdout for name in COMMANDS)


def test_module_runs_like_the_script() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "noloco_node", "version", "--json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert json.loads(done.stdout)["protocol_version"] == 1


def test_unknown_command_is_a_usage_error_with_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stauts"]) == ExitCode.USAGE
    assert "did you mean 'status'?" in capsys.readouterr().err


def test_fault_becomes_two_lines_and_its_code(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_with(monkeypatch, BadSpec("the spec\nis bad", "mend it"))
    assert main(["version"]) == ExitCode.BAD_SPEC
    assert capsys.readouterr().err == "error: the spec is bad\nadvice: mend it\n"


def test_unexpected_exception_is_exit_1_and_its_traceback_only_with_debug(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_with(monkeypatch, ZeroDivisionError("oops"))
    assert main(["version"]) == ExitCode.INTERNAL
    quiet = capsys.readouterr().err
    assert quiet.startswith("error: internal fault: ZeroDivisionError: oops\nadvice: ")
    assert "Traceback" not in quiet
    assert main(["--debug", "version"]) == ExitCode.INTERNAL
    assert "Traceback" in capsys.readouterr().err


def test_unexpected_exception_goes_to_an_open_log(monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    from noloco_node.telemetry import logs

    stream = io.StringIO()
    logs.open_log("json", stream=stream)
    try:
        fail_with(monkeypatch, ZeroDivisionError("oops"))
        assert main(["version"]) == ExitCode.INTERNAL
        assert "ZeroDivisionError: oops" in json.loads(stream.getvalue())["exception"]
    finally:
        logs.close_log()


def test_interrupt_is_130(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(monkeypatch, KeyboardInterrupt())
    assert main(["version"]) == ExitCode.INTERRUPTED
    assert capsys.readouterr().err.strip().endswith("error: interrupted")


def fail_with(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    import noloco_node.cli.version as module

    def fail() -> None:
        raise error

    monkeypatch.setattr(module, "versions", fail)


def test_exit_code_page_is_generated_from_the_codes() -> None:
    assert (ROOT / "docs/exit-codes.md").read_text() == exit_codes_page()
    assert set(MEANINGS) == set(ExitCode)
    assert {kind.code for kind in NolocoError.__subclasses__()} <= set(ExitCode)


# --- swarm new ------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", ["tiny", "demo", "small"])
def test_swarm_new_writes_a_spec_that_loads(preset: str, tmp_path: Path) -> None:
    assert main(["swarm", "new", "--preset", preset, "--clock", "time", "--stages", "4", "--name", "ours"]) == 0
    spec = load_run_spec(tmp_path / "swarm.toml")
    assert (spec.swarm.name, spec.swarm.num_stages, spec.outer.clock) == ("ours", 4, "time")
    assert spec.outer.start_unix_s > 1e9
    assert (tmp_path / "swarm.toml").read_text().count("#") > 40


def test_swarm_new_never_overwrites(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.toml").write_text("precious")
    assert main(["swarm", "new", "mine.toml"]) == ExitCode.BAD_SPEC
    assert (tmp_path / "mine.toml").read_text() == "precious"
    assert "exists already" in capsys.readouterr().err


def test_swarm_new_refuses_what_does_not_fit(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["swarm", "new", "--stages", "3"]) == ExitCode.BAD_SPEC
    assert "not divisible" in capsys.readouterr().err
    assert not (tmp_path / "swarm.toml").exists()


def test_swarm_new_names_a_model_config_relative_to_the_spec(tmp_path: Path) -> None:
    from noloco_node.config.presets import preset

    (tmp_path / "sub").mkdir()
    (tmp_path / "config.json").write_text(json.dumps(preset("tiny").model | {"sliding_window": None}))
    assert main(["swarm", "new", "sub/swarm.toml", "--preset", "tiny", "--model-config", "config.json"]) == 0
    assert 'config_file = "../config.json"' in (tmp_path / "sub/swarm.toml").read_text()
    assert load_run_spec(tmp_path / "sub/swarm.toml").model["hidden_size"] == 32


def test_drawn_seeds_differ_so_that_two_swarms_do_not_collide(tmp_path: Path) -> None:
    assert main(["swarm", "new", "a.toml"]) == main(["swarm", "new", "b.toml"]) == 0
    assert load_run_spec(tmp_path / "a.toml").run_id != load_run_spec(tmp_path / "b.toml").run_id


def test_swarm_new_says_when_the_run_begins_and_how_to_join(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["swarm", "new", "--preset", "tiny", "--outer-steps", "6", "--replicas", "1"]
    assert main([*arguments, "a.toml", "--clock", "time", "--interval", "60"]) == 0
    shown = capsys.readouterr().out
    assert "an outer step every 60 s from 20" in shown
    assert "seats:  2 (2 stages x 1 replicas)" in shown
    assert "--initial-peers ADDRESS" in shown
    assert "node_up" not in shown, "whoever waits for that word in a log must not find it here"
    assert main([*arguments, "b.toml", "--start-seats", "2"]) == 0
    assert "6 of them, once 2 seats are taken" in capsys.readouterr().out
    assert main([*arguments, "c.toml", "--interval", "60"]) == ExitCode.USAGE


# --- identity -------------------------------------------------------------------------------------


def test_identity_survives_export_wipe_and_import(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["identity", "--create", "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert first["identity_file"] == str(tmp_path / "data/identity.key")
    assert main(["identity", "export", "backup.key"]) == 0
    assert stat.S_IMODE((tmp_path / "backup.key").stat().st_mode) == 0o600
    (tmp_path / "data/identity.key").unlink()
    assert main(["identity", "import", "backup.key"]) == 0
    capsys.readouterr()
    assert main(["identity", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == first
    assert stat.S_IMODE((tmp_path / "data/identity.key").stat().st_mode) == 0o600


def test_identity_never_replaces_a_key_nor_accepts_garbage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["identity"]) == ExitCode.BAD_IDENTITY
    assert "--create" in capsys.readouterr().err
    assert main(["identity", "--create"]) == 0
    key = (tmp_path / "data/identity.key").read_bytes()
    (tmp_path / "garbage.key").write_bytes(b"garbage")
    assert main(["identity", "import", "garbage.key"]) == ExitCode.BAD_IDENTITY
    assert main(["identity", "export", "other.key"]) == 0
    assert main(["identity", "import", "other.key"]) == ExitCode.BAD_IDENTITY
    assert (tmp_path / "data/identity.key").read_bytes() == key


# --- commands that we print -----------------------------------------------------------------------


def test_printed_commands_name_the_program_as_it_was_called(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from noloco_node.cli.program import pasteable

    advice = "begin one: noloco-node swarm new; noloco-node is at /opt/noloco-node x"
    script = tmp_path / "bin/noloco-node"
    script.parent.mkdir()
    script.touch(0o755)
    monkeypatch.setattr(sys, "argv", [str(script), "run"])
    monkeypatch.setenv("PATH", "")
    assert pasteable(advice).startswith(f"begin one: {script} swarm new; ")
    assert pasteable(advice).endswith("/opt/noloco-node x")
    monkeypatch.setenv("PATH", str(script.parent))
    assert pasteable(advice) == advice
    monkeypatch.setattr(sys, "argv", ["/somewhere/noloco_node/__main__.py"])
    assert pasteable("noloco-node run") == f"{sys.executable} -m noloco_node run"


def test_advice_of_a_fault_can_be_pasted(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [".venv/bin/noloco-node"])
    assert main(["generate", "none"]) == ExitCode.BAD_MODEL
    assert "advice: export one first: .venv/bin/noloco-node export --checkpoints" in capsys.readouterr().err


# --- status ---------------------------------------------------------------------------------------


@pytest.fixture
def node_url() -> Iterator[str]:
    answer = {
        "seat": "1.0",
        "loss": 2.345678,
        "outer": {"paired": 3, "solo": 0},
        "peers": [{"peer": "12D3KooWx", "seat": "0.1"}, {"peer": "[bold]", "seat": None}],
    }

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path in ("/status.json", "/healthz") else 404)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_status_shows_every_value_as_a_table(node_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--url", node_url]) == 0
    shown = capsys.readouterr().out
    assert all(text in shown for text in ("seat", "1.0", "2.346", "outer.paired", "12D3KooWx", "[bold]"))


def test_status_as_json_is_the_nodes_answer(node_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--url", node_url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["outer"] == {"paired": 3, "solo": 0}


def test_status_finds_url_and_address_in_the_data_directory(
    node_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", "--data-dir", str(tmp_path)]) == ExitCode.SWARM_UNREACHABLE
    (tmp_path / "node.json").write_text(json.dumps({"pid": 1, "url": node_url, "addresses": ["/ip4/a", "/ip4/b"]}))
    capsys.readouterr()
    assert main(["status", "--data-dir", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["seat"] == "1.0"
    assert main(["status", "--data-dir", str(tmp_path), "--address"]) == 0
    assert capsys.readouterr().out == "/ip4/a\n"
    assert main(["status", "--address"]) == ExitCode.USAGE


def test_status_waits_for_a_node_that_is_not_up_yet(
    node_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    about = json.dumps({"pid": 1, "url": node_url, "addresses": ["/ip4/a"]})
    up = threading.Timer(0.3, (tmp_path / "node.json").write_text, (about,))
    up.start()
    assert main(["status", "--data-dir", str(tmp_path), "--address", "--wait", "30"]) == 0
    assert capsys.readouterr().out == "/ip4/a\n"
    up.join()
    assert main(["status", "--data-dir", str(tmp_path / "none"), "--wait", "0.1"]) == ExitCode.SWARM_UNREACHABLE


def test_health_check_is_silent_and_finds_the_port_in_the_environment(
    node_url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOLOCO_METRICS_PORT", node_url.rpartition(":")[2])
    assert main(["status", "--healthy"]) == 0
    assert capsys.readouterr().out == ""
    monkeypatch.setenv("NOLOCO_METRICS_PORT", "9")
    assert main(["status", "--healthy"]) == ExitCode.SWARM_UNREACHABLE


def test_status_of_something_that_is_no_node_says_so() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        answering = threading.Thread(target=answer_once, args=(other, b"SSH-2.0-x\r\n"))
        answering.start()
        assert main(["status", "--url", f"http://127.0.0.1:{other.getsockname()[1]}"]) == ExitCode.SWARM_UNREACHABLE
        answering.join()


def answer_once(listener: socket.socket, answer: bytes) -> None:
    connection, _ = listener.accept()
    with connection:
        connection.recv(4096)
        connection.sendall(answer)


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "127.0.0.1:9", "file:///etc/passwd"])
def test_status_without_a_node_says_so(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--url", url]) == ExitCode.SWARM_UNREACHABLE
    assert capsys.readouterr().err.count("\n") == 2


# --- flags of run ---------------------------------------------------------------------------------


def test_every_field_of_the_node_config_is_a_flag_that_outranks_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    import click
    from click.testing import CliRunner

    from noloco_node.cli.node_options import node_config, node_options
    from noloco_node.config.node_config import NodeConfig

    seen: list[NodeConfig] = []

    @click.command()
    @node_options
    def run(**options: object) -> None:
        seen.append(node_config(options))
        assert options == {}

    monkeypatch.setenv("NOLOCO_METRICS_PORT", "1")
    monkeypatch.setenv("NOLOCO_THREADS", "2")
    listen = ["--listen", "/ip4/127.0.0.1/tcp/1", "--listen", "/ip6/::1/tcp/2"]
    done = CliRunner().invoke(run, ["--metrics-port", "3", *listen, "--no-relay"], catch_exceptions=False)
    assert done.exit_code == 0
    config = seen[0]
    assert (config.metrics_port, config.threads, config.relay) == (3, 2, False)
    assert config.listen == ("/ip4/127.0.0.1/tcp/1", "/ip6/::1/tcp/2")
    flags = {name for parameter in run.params for name in parameter.opts}
    assert {"--" + name.replace("_", "-") for name in NodeConfig.model_fields} <= flags


def test_empty_first_address_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What `--initial-peers "$PEER"` is when the first node was not up yet."""
    assert main(["run", "--spec", "none.toml", "--initial-peers", ""]) == ExitCode.BAD_CONFIG
    cause, advice = capsys.readouterr().err.splitlines()
    assert "the first node is not up yet?" in cause
    assert "status --data-dir DIR --address --wait" in advice
