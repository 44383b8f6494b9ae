"""What can be said of a start before anything heavy is imported: a slip is answered in half a second.

Owns no rule of its own; the parts check again what is theirs. Creates the data directory and its lock files only. The
plainest cause comes first: whoever starts a node twice has every port in use as well.
"""

from __future__ import annotations

import asyncio
import socket
import time

from noloco_node.config.node_config import NodeConfig
from noloco_node.config.run_spec import LOCAL_SOURCES, RunSpec
from noloco_node.discovery.addresses import Address, parse_listen
from noloco_node.discovery.identity import IdentityLock, load_identity
from noloco_node.discovery.listening import wait_for_free_ports
from noloco_node.discovery.settings import PID_FILE
from noloco_node.driver.data_dir_lock import data_dir_locked
from noloco_node.errors import BadConfig, DiskFailed, PortInUse, TargetMissed
from noloco_node.training.text import build_source


def check_start(config: NodeConfig, spec: RunSpec) -> None:
    """Raises BadConfig, TargetMissed, DiskFailed, BadIdentity, IdentityInUse, BadData, PortInUse."""
    _check_seat(config, spec)
    _check_not_over(config, spec)
    check_data_dir(config)
    _check_key(config)
    _check_data(config, spec)
    _check_metrics_port(config)
    _check_listen_ports(config)


def _check_seat(config: NodeConfig, spec: RunSpec) -> None:
    seat, swarm = config.wanted_seat, spec.swarm
    if seat is not None and (seat.stage >= swarm.num_stages or seat.replica >= swarm.num_replicas):
        raise BadConfig(
            f"--seat {seat} is outside the run's seats 0.0 to {swarm.num_stages - 1}.{swarm.num_replicas - 1}",
            'choose another, or "auto"',
        )


def _check_not_over(config: NodeConfig, spec: RunSpec) -> None:
    """On the time clock a run ends whether or not anybody took part. Whoever did may start again: it just leaves."""
    outer = spec.outer
    end_s = outer.start_unix_s + outer.total_outer_steps * outer.outer_interval_s
    if outer.clock != "time" or not outer.total_outer_steps or time.time() < end_s:
        return
    if not (config.data_dir / "runs" / spec.run_id).exists():
        ended = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(end_s))
        raise TargetMissed(
            f"the run ended on {ended}, after {outer.total_outer_steps} outer steps of {outer.outer_interval_s:g} s",
            "ask for the run spec of a newer run, or begin one: noloco-node swarm new",
        )


def check_data_dir(config: NodeConfig) -> None:
    """Make it if need be; no node may run in it. Raises DiskFailed, BadConfig."""
    probe = config.data_dir / ".writable"
    try:
        config.data_dir.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"\n")
        probe.unlink()
    except OSError as error:
        raise DiskFailed(
            f"the data directory {config.data_dir} cannot be written: {error.strerror}",
            "choose another --data-dir, or make room and set its permissions",
        ) from error
    with data_dir_locked(config.data_dir):
        return  # no node runs in it; ours takes the lock for good when it starts


def _check_key(config: NodeConfig) -> None:
    if config.identity_file is None or not config.identity_file.exists():
        return
    load_identity(config.identity_file)
    key = IdentityLock(config.identity_file, config.data_dir)
    key.acquire()
    key.release()


def _check_data(config: NodeConfig, spec: RunSpec) -> None:
    """Only the first stage reads text; a node without a wanted seat may be given one there."""
    seat = config.wanted_seat
    if spec.data.source in LOCAL_SOURCES and (seat is None or seat.stage == 0):
        build_source(spec.training_settings().data, lambda document: False)


def _check_metrics_port(config: NodeConfig) -> None:
    """Only whether it is taken; what else may be wrong with the address is the server's to say."""
    if not config.metrics_port:
        return
    family = socket.AF_INET6 if ":" in config.metrics_address else socket.AF_INET
    try:
        with socket.create_server((config.metrics_address, config.metrics_port), family=family):
            return
    except OSError as error:
        if "in use" in str(error.strerror):
            raise PortInUse(
                f"metrics port {config.metrics_port} on {config.metrics_address} is in use",
                "choose another --metrics-port, or 0 for a free one",
            ) from error


def _check_listen_ports(config: NodeConfig) -> None:
    """Unless a killed node may have left its libp2p daemon on them: the start ends that one first."""
    if not (config.data_dir / PID_FILE).exists():
        asyncio.run(wait_for_free_ports(_listen_address(text) for text in config.listen))


def _listen_address(text: str) -> Address:
    try:
        return parse_listen(text)
    except ValueError as error:
        raise BadConfig(f"listen address {text!r}: {error}", "for example --listen /ip4/0.0.0.0/tcp/31337") from error
