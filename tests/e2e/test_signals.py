"""A node is stopped, interrupted, frozen and killed in every phase; its partner goes on.

One swarm of two replicas for all tests, in the order of the file: 0.0 stays, 0.1 comes and goes.
"""

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvloop
from node_swarm import STATUS_MAX_S, Watched, catches, is_running, tiny_spec, wait_until, watched_swarm

from noloco_node.cli.local_swarm import LocalNode
from noloco_node.core.limits import STOP_GRACE_S
from noloco_node.core.types import Admit, Outcome, Phase, Seat, SeatRecord, SeatState
from noloco_node.discovery.dht import SwarmDiscovery
from noloco_node.discovery.settings import DiscoverySettings, ReachSettings
from noloco_node.errors import ExitCode

pytestmark = pytest.mark.slow
STAYS, COMES = Seat(0, 0), Seat(0, 1)
INNER_STEPS = 30


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """An endless run with inner phases of a few seconds."""
    timing = {"lease_s": 10.0, "renew_s": 2.5, "settle_s": 2.0, "grace_s": 15.0}
    spec = tiny_spec(1, 2, admit=Admit.ARRIVAL, inner_steps=INNER_STEPS, total_outer_steps=0, timing=timing)
    with watched_swarm(tmp_path_factory.mktemp("pair"), spec) as watched:
        watched.start()
        yield watched


def come(pair: Watched) -> LocalNode:
    return pair.spawn(COMES)


def wait_for_pairing(pair: Watched, node: LocalNode) -> None:
    """Until the node has closed one more outer step with its partner."""
    before = node.poll().get("outer_steps", {}).get(Outcome.PAIRED, 0)
    pair.wait_for_status(node, lambda s: s.get("outer_steps", {}).get(Outcome.PAIRED, 0) > before, "pairs")


def records_of(pair: Watched, seat: Seat) -> list[SeatRecord]:
    """What a stranger who knows only 0.0 reads of the seat."""

    async def read() -> list[SeatRecord]:
        with tempfile.TemporaryDirectory(prefix="e2e-guest-") as folder:
            settings = DiscoverySettings(
                run=pair.spec.run_id,
                num_stages=1,
                num_replicas=2,
                identity_path=Path(folder) / "identity.key",
                data_dir=Path(folder),
                listen=("/ip4/127.0.0.1/tcp/0",),
                initial_peers=tuple(pair.node(0, 0).info["addresses"]),
                reach=ReachSettings(allow_private=True, client_mode=True),
            )
            guest = SwarmDiscovery(settings)
            await guest.start()
            try:
                return await guest.read(seat)
            finally:
                await guest.close()

    return uvloop.run(read())


def type_ctrl_c(pair: Watched, node: LocalNode) -> int:
    """What a terminal does: SIGINT to the whole foreground process group, of which the node is the first."""
    pair.note_processes()
    os.killpg(node.process.pid, signal.SIGINT)
    return node.process.wait(STOP_GRACE_S + 2.0)


def test_ctrl_c_while_training_saves_says_goodbye_and_the_partner_goes_on_alone(pair: Watched) -> None:
    stays, comes = pair.node(0, 0), pair.node(0, 1)
    wait_for_pairing(pair, comes)
    pair.wait_for_status(comes, lambda s: s["phase"] == Phase.TRAINING and s["inner_step"] > 2, "is in a phase")
    children = pair.children[comes.process.pid]
    assert type_ctrl_c(pair, comes) == ExitCode.OK
    assert not any(map(is_running, children))
    assert not pair.log(COMES, "libp2p_daemon_down"), "the goodbye goes through it"
    (farewell,) = [record for record in records_of(pair, COMES) if record.peer == comes.status["peer"]]
    assert farewell.state is SeatState.LEAVING
    found = pair.newest_checkpoint(COMES)
    assert found is not None
    meta, tensors = found
    assert meta.outer_step >= 1
    assert meta.inner_step >= 1
    drawn = 2 * (meta.outer_step * INNER_STEPS + meta.inner_step)
    assert drawn - 1 <= meta.data_next <= drawn  # the last inner step may have closed with one of its two
    assert all(tensors[part] for part in ("fast", "slow", "momentum", "exp_avg", "exp_avg_sq"))
    assert not comes.info
    kinds = [name.rsplit("-", 1)[0] for name in pair.sockets_left()]
    assert len(kinds) == len(set(kinds)), "only those of the other node are left"
    alone = pair.wait_for_status(stays, lambda s: s["outer_steps"][Outcome.SOLO] >= 1, "goes on alone")
    assert alone["phase"] in (Phase.TRAINING, Phase.EXCHANGING)


def test_stop_of_a_process_that_has_just_started_ends_it_well(pair: Watched) -> None:
    node = come(pair)
    wait_until(lambda: catches(node.process.pid, signal.SIGTERM), STATUS_MAX_S, "the command runs")
    assert not node.info
    assert pair.stop(node, signal.SIGTERM) == ExitCode.OK


def test_stop_while_joining_ends_it_well(pair: Watched) -> None:
    node = come(pair)
    pair.wait_for_phase(node, Phase.JOINING)
    assert pair.stop(node, signal.SIGTERM) == ExitCode.OK


def test_interrupt_while_syncing_ends_it_well(pair: Watched) -> None:
    node = come(pair)
    pair.wait_for_phase(node, Phase.SYNCING)
    assert pair.stop(node, signal.SIGINT) == ExitCode.OK


def test_stop_while_a_frozen_partner_is_waited_for_ends_within_the_grace_time(pair: Watched) -> None:
    node, frozen = come(pair), pair.node(0, 0)
    wait_for_pairing(pair, node)
    pair.wait_for_status(node, lambda s: s["phase"] == Phase.TRAINING and s["inner_step"] > 5, "has agreed to exchange")
    frozen.process.send_signal(signal.SIGSTOP)
    try:
        pair.wait_for_phase(node, Phase.EXCHANGING)
        assert pair.stop(node, signal.SIGTERM) == ExitCode.OK
    finally:
        frozen.process.send_signal(signal.SIGCONT)
    found = pair.newest_checkpoint(COMES)
    assert found is not None
    assert found[0].notes["closed"]["outcome"] == Outcome.SOLO


def test_killed_node_leaves_no_child_and_comes_back_as_itself(pair: Watched) -> None:
    node = come(pair)
    wait_for_pairing(pair, node)
    before = node.status
    assert pair.stop(node, signal.SIGKILL) == -signal.SIGKILL
    again = come(pair)
    wait_for_pairing(pair, again)
    assert (again.status["peer"], again.status["seat"]) == (before["peer"], str(COMES))


def test_second_signal_ends_a_node_at_once_and_its_child_with_it(pair: Watched) -> None:
    node = pair.node(0, 1)
    pair.wait_for_phase(node, Phase.TRAINING)
    assert pair.stop(node, signal.SIGTERM, signal.SIGINT) == ExitCode.INTERRUPTED


def test_the_node_that_stayed_ends_well_too(pair: Watched) -> None:
    node = pair.node(0, 0)
    assert pair.stop(node, signal.SIGINT) == ExitCode.OK
    assert pair.left_over() == []
