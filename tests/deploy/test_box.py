"""The box: image, compose file, provisioning. Read, not run; `deploy/build-with-buildah.sh` builds and starts it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from noloco_node.config.node_config import LISTEN_PORT, METRICS_PORT, NodeConfig
from noloco_node.config.node_sources import load_node_config, variable
from noloco_node.core import limits

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())
NODES = ("bootstrap", "node")


def instruction(word: str) -> str:
    """The last one of that kind, continuation lines joined."""
    joined = DOCKERFILE.replace("\\\n", " ")
    return [line for line in joined.splitlines() if line.startswith(word + " ")][-1].removeprefix(word).strip()


def environment() -> dict[str, str]:
    joined = DOCKERFILE.replace("\\\n", " ").replace("\n", " \n")
    return dict(re.findall(r"\b(NOLOCO_[A-Z_]+)=(\S+)", joined))


def test_entry_point_and_health_check_are_in_exec_form() -> None:
    assert json.loads(instruction("ENTRYPOINT")) == ["noloco-node"]
    assert json.loads(instruction("CMD")) == ["run"]
    assert json.loads(instruction("HEALTHCHECK").split("CMD", 1)[1]) == ["noloco-node", "status", "--healthy"]


def test_image_stops_by_sigterm_and_runs_as_no_root() -> None:
    assert instruction("STOPSIGNAL") == "SIGTERM"
    assert instruction("USER") == "10001:10001"
    assert instruction("VOLUME") == "/data"
    assert DOCKERFILE.rindex("USER") > DOCKERFILE.rindex("RUN")


def test_the_documented_run_hears_a_stop_at_once_and_leaves_it_its_grace_time() -> None:
    found = re.search(r"^#   docker run --init .*--stop-timeout (\d+)", DOCKERFILE, re.MULTILINE)
    assert found
    assert int(found[1]) > limits.STOP_GRACE_S


def test_no_program_of_the_image_gives_its_user_more_rights() -> None:
    assert "find / -xdev -type f -perm /6000 -exec chmod ug-s {} +" in instruction("RUN")


def test_image_is_built_in_stages_from_a_base_that_can_be_given() -> None:
    assert "ARG BASE_IMAGE=" in DOCKERFILE
    assert DOCKERFILE.count("\nFROM ") == 3
    assert "COPY --from=build" in DOCKERFILE


def test_image_exposes_the_default_ports_and_sets_known_variables() -> None:
    assert instruction("EXPOSE").split() == [f"{LISTEN_PORT}/tcp", f"{METRICS_PORT}/tcp"]
    assert set(environment()) <= {variable(name) for name in NodeConfig.model_fields}
    assert environment()["NOLOCO_DATA_DIR"] == "/data"


def test_everything_the_image_copies_passes_the_ignore_file() -> None:
    kept = {line[1:].rstrip("/") for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE)
    names = {name.removeprefix("./") for line in copied for name in line.split()}
    assert names <= kept
    assert all((ROOT / name).exists() for name in kept)


def test_compose_has_two_nodes_prometheus_and_grafana() -> None:
    assert set(COMPOSE["services"]) == {*NODES, "prometheus", "grafana"}
    volumes = {mount.split(":")[0] for service in COMPOSE["services"].values() for mount in service["volumes"]}
    assert {name for name in volumes if not name.startswith(".")} == set(COMPOSE["volumes"])


@pytest.mark.parametrize("name", NODES)
def test_composed_node_reads_its_variables(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value in environment().items() | COMPOSE["services"][name]["environment"].items():
        peer = "12D3KooWAnbdW4LhxzqLrnMXyFPG2rcvKVSd7xCcTqNMvSyd5A5c"
        monkeypatch.setenv(key, re.sub(r"\$\{BOOTSTRAP_PEER:[^}]*\}", peer, value))
    config = load_node_config()
    assert (config.metrics_address, config.metrics_port) == ("0.0.0.0", METRICS_PORT)
    assert len(config.initial_peers) == (name == "node")


@pytest.mark.parametrize("name", NODES)
def test_composed_node_has_time_to_stop_a_key_of_its_own_and_few_rights(name: str) -> None:
    service = COMPOSE["services"][name]
    assert int(service["stop_grace_period"].removesuffix("s")) > limits.STOP_GRACE_S
    assert (service["read_only"], service["cap_drop"], service["init"]) == (True, ["ALL"], True)
    assert f"{name}-data:/data" in service["volumes"]


def test_variables_that_compose_insists_on_are_set_before_its_first_documented_command() -> None:
    text = (ROOT / "deploy/compose.yaml").read_text()
    before = text[: text.index("docker compose")]
    required = set(re.findall(r"\$\{(\w+):\?", text))
    assert required == set(re.findall(r"^#   echo (\w+)=\S+ > deploy/\.env\b", before, re.MULTILINE))


def test_only_the_swarm_port_is_open_to_other_machines() -> None:
    published = {name: service.get("ports", []) for name, service in COMPOSE["services"].items()}
    assert published["bootstrap"] == [f"{LISTEN_PORT}:{LISTEN_PORT}"]
    assert all(port.startswith("127.0.0.1:") for name in ("prometheus", "grafana") for port in published[name])
    assert published["node"] == []


def test_prometheus_asks_every_node() -> None:
    config = yaml.safe_load((ROOT / "deploy/prometheus.yml").read_text())
    targets = config["scrape_configs"][0]["static_configs"][0]["targets"]
    assert targets == [f"{name}:{METRICS_PORT}" for name in NODES]


def test_mounted_files_exist() -> None:
    for service in COMPOSE["services"].values():
        for mount in service["volumes"]:
            source = mount.split(":")[0]
            if source.startswith(".") and source != "./swarm.toml":
                assert (ROOT / "deploy" / source).exists()


def test_build_script_is_clean_shell() -> None:
    script = ROOT / "deploy/build-with-buildah.sh"
    assert script.stat().st_mode & 0o111
    subprocess.run(["bash", "-n", str(script)], check=True, timeout=20)
    shellcheck = shutil.which("shellcheck")
    if shellcheck:
        subprocess.run([shellcheck, str(script)], check=True, timeout=60)
