"""A running node seen from outside: its pages, its log, `noloco-node status`, and that nothing of it stays behind."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from node_commands import PATIENCE_S, PROGRAM, RunningNode, environment, flags, write_spec
from prometheus_client.parser import text_string_to_metric_families

from noloco_node.cli.local_swarm import end_with_parent
from noloco_node.errors import ExitCode

pytestmark = pytest.mark.slow
ALONE = {"num_stages": 1, "num_replicas": 1}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """A node that trains on its own, a few steps in."""
    folder = tmp_path_factory.mktemp("outside")
    spec = write_spec(folder, swarm=ALONE, outer={"start_seats": 1})
    with RunningNode(spec, folder / "data") as node:
        yield node.until(lambda node: node.status["outer_step"] >= 2)


def samples(node: RunningNode) -> dict[str, float]:
    """Sums over labels by sample name."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(node.page("/metrics")[1].decode()):
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


def test_pages_answer_and_metrics_parse(node: RunningNode) -> None:
    assert node.page("/healthz") == (200, b"ok\n")
    assert node.page("/readyz") == (200, b"ready\n")
    assert node.page("/secrets")[0] == 404
    found = samples(node)
    assert all(name.startswith("noloco_") for name in found)
    assert found["noloco_outer_steps_total"] >= 2
    assert found["noloco_tokens_total"] > 0
    assert 0 < found["noloco_loss"] < 10
    assert found["noloco_phase"] == found["noloco_bootstrap_state"] == 1
    status = node.status
    assert status["phase"] in ("training", "exchanging")
    assert status["tokens_total"] > 0
    assert status["outer_steps"]["solo"] >= 2


def test_pages_tell_no_path_no_address_no_key(node: RunningNode) -> None:
    key = (node.data_dir / "identity.key").read_bytes()
    secrets = [key[4:36], key[4:36].hex().encode(), str(node.data_dir).encode(), os.fsencode(Path.home()) + b"/"]
    ports = [f"/tcp/{address.split('/')[4]}".encode() for address in node.info["addresses"]]
    for page in ("/metrics", "/status.json", "/readyz"):
        content = node.page(page)[1]
        assert not re.search(rb"\d+\.\d+\.\d+\.\d+", content)
        assert not any(secret in content for secret in [*secrets, *ports])
    log = node.log_path.read_bytes()
    assert not any(secret in log for secret in secrets[:2])


def test_pages_are_served_on_loopback_only(node: RunningNode) -> None:
    port = int(node.info["url"].rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=5):
        pass
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.2", port), timeout=5)


def test_every_line_of_a_log_without_a_terminal_is_json(node: RunningNode) -> None:
    lines = node.log.splitlines()
    assert len(lines) >= 4
    for line in lines:
        assert {"event", "level", "logger", "timestamp"} <= json.loads(line).keys()


def shown(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, "status", *arguments], capture_output=True, text=True, timeout=60, env=environment(), check=False
    )


def test_status_shows_the_running_node(node: RunningNode) -> None:
    table = shown("--data-dir", str(node.data_dir))
    assert table.returncode == 0
    assert "partner" in table.stdout
    assert re.search(r"0\.0 .*(training|exchanging)", table.stdout)
    assert "…" not in table.stdout
    answer = json.loads(shown("--url", node.info["url"], "--json").stdout)
    assert answer["peer"] == node.info["peer"]
    assert shown("--url", node.info["url"], "--healthy").stdout == ""


def test_after_a_stop_the_port_is_closed_and_nothing_stays(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, swarm=ALONE, outer={"start_seats": 1})
    with RunningNode(spec, tmp_path / "data") as node:
        node.until(lambda node: node.status["outer_step"] >= 1)
        url, pid = node.info["url"], json.loads((node.data_dir / "p2pd.json").read_text())
        assert node.stop() == ExitCode.OK
    with pytest.raises(urllib.error.URLError, match="refused"):
        urllib.request.urlopen(url + "/healthz", timeout=5)
    assert not Path(f"/proc/{pid['pid']}").exists()
    assert not Path(pid["sockets"]).exists()
    assert not (node.data_dir / "node.json").exists()
    gone = shown("--data-dir", str(node.data_dir))
    assert gone.returncode == ExitCode.SWARM_UNREACHABLE
    assert gone.stderr.startswith("error: no node runs in ")


def test_log_on_a_terminal_is_text_and_ctrl_c_ends_it(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, swarm=ALONE, outer={"start_seats": 1})
    screen, terminal = pty.openpty()
    process = subprocess.Popen(
        [*PROGRAM, *flags(spec, tmp_path / "data")],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env=environment(),
        preexec_fn=end_with_parent,
    )
    os.close(terminal)
    try:
        text = read_until(screen, b"outer_step_closed")
        process.send_signal(signal.SIGINT)
        text += read_until(screen, b"leaving")
        assert process.wait(60) == ExitCode.OK
    finally:
        process.kill()
        process.wait()
        os.close(screen)
    assert b"node_up" in text
    assert b'{"' not in text


def read_until(screen: int, words: bytes) -> bytes:
    import select

    text = b""
    while words not in text:
        ready, _, _ = select.select([screen], [], [], PATIENCE_S)
        assert ready, text
        text += os.read(screen, 65536)
    return text
