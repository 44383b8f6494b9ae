"""Who joins the wrong swarm, takes a seat or a key that is taken, or meets a peer that makes no sense."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from node_commands import RunningNode, flags, run_to_end, write_spec

from noloco_node.errors import ExitCode

pytestmark = pytest.mark.slow
OTHER_VERSION = (
    "import sys; from noloco_node.core import limits; limits.PROTOCOL_VERSION = 2\n"
    "from noloco_node.cli import main; sys.exit(main())"
)
STRANGER = "12D3KooWJ6H8DJ5VwwZr6LKhsGHUyPG8yaYtCMqhKUZ4s8SCnoQM"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("company")


@pytest.fixture(scope="module")
def host(folder: Path) -> Iterator[RunningNode]:
    """A node in seat 0.0 that waits for a second one."""
    with RunningNode(write_spec(folder), folder / "host", ("--seat", "0.0")) as node:
        yield node.until(lambda node: node.status["phase"] == "training")


def alive(node: RunningNode) -> bool:
    return node.process.poll() is None and node.status["seat"] == "0.0"


def test_node_of_another_run_is_told_so(host: RunningNode, folder: Path) -> None:
    other = write_spec(folder, "other.toml", swarm={"seed": 7})
    ended = run_to_end(flags(other, folder / "other", *host.join_flags))
    assert ended.is_fault(ExitCode.WRONG_RUN, "the peer belongs to run", "use the run spec")
    assert alive(host)


def test_node_of_another_protocol_version_is_told_who_must_upgrade(host: RunningNode, folder: Path) -> None:
    newer = folder / "newer.toml"
    newer.write_text(host.spec.read_text().replace("protocol_version = 1", "protocol_version = 2"))
    ended = run_to_end(flags(newer, folder / "newer", *host.join_flags), (sys.executable, "-c", OTHER_VERSION))
    assert ended.is_fault(ExitCode.VERSION_MISMATCH, "the peer speaks protocol 1", "this node 2", "upgrade that node")
    assert alive(host)


def test_node_started_twice_is_refused(host: RunningNode) -> None:
    ended = run_to_end(flags(host.spec, host.data_dir))
    assert ended.is_fault(ExitCode.BAD_CONFIG, f"in use by process {host.process.pid}", "own data directory")
    assert host.info["pid"] == host.process.pid
    assert alive(host)


def test_listen_port_in_use_is_named_with_its_owner(host: RunningNode, folder: Path) -> None:
    address = host.info["addresses"][0]
    port = address.split("/")[4]
    ended = run_to_end(flags(host.spec, folder / "port", listen=f"/ip4/127.0.0.1/tcp/{port}"))
    assert ended.is_fault(ExitCode.PORT_IN_USE, port, "choose another port")


def test_seat_that_is_taken_makes_a_spare_that_says_so(host: RunningNode, folder: Path) -> None:
    with RunningNode(host.spec, folder / "spare", ("--seat", "0.0", *host.join_flags)) as node:
        node.until(lambda node: node.status["waits_for"] == "seat 0.0 is taken: a spare")
        assert node.status["seat"] is None
        assert node.page("/readyz") == (503, b"joining: seat 0.0 is taken: a spare\n")
        node.until(lambda node: node.said("waiting"))
        assert node.stop() == ExitCode.OK
    assert alive(host)


# --- peers that make no sense -----------------------------------------------------------------------


@contextmanager
def junk_server() -> Iterator[int]:
    """Says something that is no libp2p to whoever connects; yields its port."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with suppress(OSError):
            while True:
                caller, _ = server.accept()
                with caller:
                    caller.sendall(b"\x13/HTTP/1.1 200 OK\r\n\r\n" + bytes(range(256)) * 20)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield server.getsockname()[1]
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join()


def test_peer_that_talks_junk_is_tried_again_and_again(folder: Path) -> None:
    with (
        junk_server() as port,
        RunningNode(
            write_spec(folder, "junk.toml"),
            folder / "junk",
            ("--initial-peers", f"/ip4/127.0.0.1/tcp/{port}/p2p/{STRANGER}"),
        ) as node,
    ):
        node.until(lambda node: node.status["waits_for"] == "no initial peer answers; trying on")
        node.until(lambda node: node.said("waiting"))
        assert node.status["phase"] == "joining"
        assert node.page("/healthz")[0] == 200
        assert node.stop() == ExitCode.OK
        assert "Traceback" not in node.log


def test_initial_peer_that_is_down_is_joined_when_it_comes_up(folder: Path) -> None:
    spec = write_spec(folder, "late.toml")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with RunningNode(spec, folder / "late", changes={"listen": f"/ip4/127.0.0.1/tcp/{port}"}) as first:
        address = first.until_up().info["addresses"][0]
        assert first.stop() == ExitCode.OK
    with RunningNode(spec, folder / "early", ("--initial-peers", address)) as early:
        early.until(lambda node: node.status["waits_for"] == "no initial peer answers; trying on")
        with RunningNode(spec, folder / "late", changes={"listen": f"/ip4/127.0.0.1/tcp/{port}"}) as late:
            late.until_up()
            early.until(lambda node: node.status["peers"] == 1 and node.status["outer_step"] >= 1)


def test_peer_that_turns_out_to_be_of_another_run_ends_the_node_that_waits_for_it(folder: Path) -> None:
    specs = write_spec(folder, "one.toml"), write_spec(folder, "two.toml", swarm={"seed": 9})
    with RunningNode(specs[0], folder / "one") as one:
        address, port = one.until_up().info["addresses"][0], one.info["addresses"][0].split("/")[4]
        assert one.stop() == ExitCode.OK
    with RunningNode(specs[1], folder / "two", ("--initial-peers", address)) as two:
        two.until_up()
        with RunningNode(specs[0], folder / "one", changes={"listen": f"/ip4/127.0.0.1/tcp/{port}"}) as one:
            assert two.ended().is_fault(ExitCode.WRONG_RUN, "the peer belongs to run")
            assert one.until_up().process.poll() is None


def test_stop_before_the_node_is_up_is_a_clean_end(folder: Path) -> None:
    with RunningNode(write_spec(folder, "stop.toml"), folder / "stop") as node:
        node.until(lambda node: (node.data_dir / "identity.key").exists())
        assert node.stop() == ExitCode.OK
        assert "Traceback" not in node.log


def test_copied_key_ends_the_elder_process(folder: Path) -> None:
    spec = write_spec(folder, "three.toml", swarm={"num_replicas": 3}, outer={"start_seats": 3})
    with RunningNode(spec, folder / "first") as first:
        first.until(lambda node: node.status["phase"] == "training")
        with RunningNode(spec, folder / "elder", first.join_flags) as elder:
            elder.until(lambda node: node.status["phase"] == "training")
            (folder / "copy").mkdir()
            (folder / "copy/identity.key").write_bytes((elder.data_dir / "identity.key").read_bytes())
            with RunningNode(spec, folder / "copy", first.join_flags):
                assert elder.ended().is_fault(ExitCode.IDENTITY_IN_USE, "another process uses this node's key")


def test_node_named_as_its_own_initial_peer_starts_alone(folder: Path) -> None:
    spec = write_spec(folder, "self.toml")
    with RunningNode(spec, folder / "self") as node:
        own = node.until_up().join_flags
        assert node.stop() == ExitCode.OK
    with RunningNode(spec, folder / "self", own) as node:
        node.until(lambda node: node.status["phase"] == "training" and node.said("starting_alone"))


CLOCK_AHEAD = (  # of the node's own parts: gRPC computes its deadlines by `time.time` and hands them to another clock
    "import sys, time; from noloco_node.driver import clock\n"
    "class Ahead(clock.SteadyClock):\n"
    "    def __init__(self): super().__init__(lambda: time.time() + {0})\n"
    "clock.SteadyClock = Ahead\n"
    "from noloco_node.cli import main; sys.exit(main())"
)


def test_node_whose_clock_is_off_is_told_by_how_much(host: RunningNode, folder: Path) -> None:
    program = (sys.executable, "-c", CLOCK_AHEAD.format(-3600))
    ended = run_to_end(flags(host.spec, folder / "clock", *host.join_flags), program)
    assert ended.is_fault(ExitCode.CLOCK_OFF, "set your clock (offset = -3600.", "its only peer", "NTP")
    assert alive(host)


def test_node_whose_clock_is_a_little_off_is_served(host: RunningNode, folder: Path) -> None:
    program = (sys.executable, "-c", CLOCK_AHEAD.format(2))
    with RunningNode(host.spec, folder / "little", ("--seat", "0.0", *host.join_flags), program) as node:
        node.until(lambda node: "set your clock (offset = +" in node.log)
        node.until(lambda node: node.status["waits_for"] == "seat 0.0 is taken: a spare")
        assert b"noloco_clock_offset_seconds " in node.page("/metrics")[1]
        assert node.stop() == ExitCode.OK
    assert alive(host)
