"""What the node of each device is told, and how the one who watches over them follows their ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from noloco_node.cli import devices
from noloco_node.cli.devices import DeviceGroup, DeviceNode, device_configs
from noloco_node.config.node_config import NodeConfig
from noloco_node.config.node_sources import as_variables, load_node_config
from noloco_node.driver.data_dir_lock import data_dir_locked
from noloco_node.errors import BadConfig


@pytest.fixture
def machine(tmp_path: Path) -> NodeConfig:
    return NodeConfig(
        devices=("cuda:0", "cuda:3"),
        data_dir=tmp_path,
        spec=tmp_path / "swarm.toml",
        listen=("/ip4/0.0.0.0/tcp/31337", "/ip4/127.0.0.1/tcp/0"),
        announce=("/ip4/198.51.100.7/tcp/40000",),
        metrics_port=9464,
        deny_peers=(),
        relay=False,
    )


def test_each_device_has_its_own_folder_key_and_ports(machine: NodeConfig) -> None:
    first, second = device_configs(machine)
    assert [each.device for each in (first, second)] == ["cuda:0", "cuda:3"]
    assert first.data_dir == machine.data_dir / "cuda-0"
    assert second.identity_file == machine.data_dir / "cuda-3" / "identity.key"
    assert (first.listen, first.announce, first.metrics_port) == (machine.listen, machine.announce, 9464)
    assert second.listen == ("/ip4/0.0.0.0/tcp/31338", "/ip4/127.0.0.1/tcp/0")
    assert (second.announce, second.metrics_port) == (("/ip4/198.51.100.7/tcp/40001",), 9465)


def test_a_configuration_comes_back_whole_from_its_variables(
    machine: NodeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    for each in device_configs(machine):
        for name, value in as_variables(each).items():
            monkeypatch.setenv(name, value)
        assert load_node_config() == each


class Process:
    """`ends`: its exit code, as soon as it is set."""

    pid = 1

    def __init__(self) -> None:
        self.returncode: int | None = None
        self.signals: list[int] = []

    def poll(self) -> int | None:
        return self.returncode

    def send_signal(self, number: int) -> None:
        self.signals.append(number)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Process]:
    made: list[Process] = []

    def popen(*words: object, **more: object) -> Process:
        made.append(Process())
        return made[-1]

    monkeypatch.setattr(devices.subprocess, "Popen", popen)
    return made


def group_of(config: NodeConfig) -> DeviceGroup:
    return DeviceGroup([DeviceNode(each) for each in device_configs(config)], grace_s=20.0)


def test_others_start_once_the_first_is_up(
    machine: NodeConfig, started: list[Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    group = group_of(machine)
    assert group.tend(0.0, 0)
    assert group.tend(1.0, 0)
    assert len(started) == 1
    monkeypatch.setattr(DeviceNode, "addresses", ["/ip4/127.0.0.1/tcp/31337/p2p/A"])
    assert group.tend(2.0, 0)
    assert len(started) == 2


def test_a_crash_is_started_again_each_time_later(machine: NodeConfig, started: list[Process]) -> None:
    group = group_of(machine.model_copy(update={"devices": ("cuda:0",)}))
    group.tend(0.0, 0)
    started[0].returncode = -9
    group.tend(1.0, 0)
    group.tend(1.0 + devices.RESTART_S - 0.1, 0)
    assert len(started) == 1
    group.tend(1.0 + devices.RESTART_S, 0)
    assert len(started) == 2
    started[1].returncode = -9
    group.tend(10.0, 0)
    group.tend(10.0 + devices.RESTART_S, 0)
    assert len(started) == 2
    group.tend(10.0 + 2 * devices.RESTART_S, 0)
    assert len(started) == 3


def test_a_fault_is_final_and_the_next_device_leads(machine: NodeConfig, started: list[Process]) -> None:
    group = group_of(machine)
    group.tend(0.0, 0)
    started[0].returncode = 22
    group.tend(1.0, 0)
    assert len(started) == 2
    started[1].returncode = 0
    assert not group.tend(2.0, 0)
    assert group.code == 22


def test_every_signal_is_passed_on_and_nobody_is_started_after_it(machine: NodeConfig, started: list[Process]) -> None:
    group = group_of(machine)
    group.tend(0.0, 0)
    assert group.tend(1.0, 1)
    assert group.tend(2.0, 2)
    assert len(started[0].signals) == 2
    started[0].returncode = -9
    assert not group.tend(3.0, 2)
    assert len(started) == 1
    assert group.code == 137


def test_a_relays_port_stays_and_none_is_beyond_the_last(machine: NodeConfig) -> None:
    relayed = "/ip4/9.9.9.9/tcp/4001/p2p/12D3KooWX/p2p-circuit"
    second = device_configs(machine.model_copy(update={"announce": (relayed,)}))[1]
    assert second.announce == (relayed,)
    with pytest.raises(BadConfig, match="above 65535"):
        device_configs(machine.model_copy(update={"listen": ("/ip4/0.0.0.0/tcp/65535",)}))


def test_one_gpu_is_not_named_twice(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="named twice"):
        NodeConfig(devices=("cuda", "cuda:0"), data_dir=tmp_path)


def test_a_device_without_room_for_a_process_is_tried_again(
    machine: NodeConfig, started: list[Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*words: object, **more: object) -> Process:
        raise OSError("cannot allocate memory")

    group = group_of(machine)
    with monkeypatch.context() as patch:
        patch.setattr(devices.subprocess, "Popen", full)
        assert group.tend(0.0, 0)
    assert group.tend(devices.RESTART_S, 0)
    assert len(started) == 1


def test_the_next_device_leads_when_the_first_keeps_crashing(machine: NodeConfig, started: list[Process]) -> None:
    group = group_of(machine)
    group.tend(0.0, 0)
    started[0].returncode = -11
    group.tend(1.0, 0)
    group.tend(1.0 + devices.RESTART_S, 0)
    started[1].returncode = -11
    group.tend(20.0, 0)
    assert len(started) == 3  # the second device's


def test_a_child_that_dies_of_our_stop_before_it_heard_it_is_no_fault(
    machine: NodeConfig, started: list[Process]
) -> None:
    group = group_of(machine)
    group.tend(0.0, 0)
    group.tend(1.0, 1)
    started[0].returncode = -15
    assert not group.tend(2.0, 1)
    assert group.code == 0


def test_a_folder_in_which_another_node_is_ending_is_waited_for(machine: NodeConfig, started: list[Process]) -> None:
    first = machine.data_dir / "cuda-0"
    first.mkdir()
    group = group_of(machine)
    with data_dir_locked(first):
        group.tend(0.0, 0)
        assert not started
    group.tend(1.0, 0)
    assert len(started) == 1


def test_what_runs_when_the_watcher_fails_is_asked_to_stop_first(
    machine: NodeConfig, started: list[Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    group = group_of(machine)
    group.tend(0.0, 0)

    def ends(number: int) -> None:
        started[0].signals.append(number)
        started[0].returncode = 0

    monkeypatch.setattr(started[0], "send_signal", ends)
    group.end()
    assert started[0].signals == [15]


def test_a_stop_under_way_when_the_watcher_fails_is_not_cut_short(
    machine: NodeConfig, started: list[Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    group = group_of(machine)
    group.tend(0.0, 0)
    group.tend(1.0, 1)

    def saved(seconds: float) -> None:
        started[0].returncode = 0

    monkeypatch.setattr(devices.time, "sleep", saved)
    group.end()
    assert started[0].signals == [15]
