"""Ninety seconds of chaos on a small swarm: the same harness as `make chaos`, with each fault once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from chaos_report import checkpoint_files, corrupt_checkpoints, histories, trained
from chaos_spec import chaos_spec
from chaos_swarm import ChaosSwarm
from fault_schedule import Action, Lengths, Plan, schedule
from micro_batch_audit import Audit, audit
from run_chaos import possible

from noloco_node.training.evaluation import evaluate_initial

pytestmark = [pytest.mark.slow, pytest.mark.timeout(420)]

SEED = 6
PLAN = Plan(
    seconds=90.0,
    gap_s=9.0,
    calm_before_s=2.0,
    calm_after_s=32.0,
    lengths=Lengths(short_s=(1.0, 4.0), long_share=0.0),
    deck=(Action.KILL, Action.STOP, Action.CUT, Action.KILL_DAEMON, Action.LEAVE),
    back_s=0.0,
)


@dataclass(frozen=True, slots=True)
class Aftermath:
    """What a slice left behind."""

    swarm: ChaosSwarm
    vacant: list[str]
    orphans: list[str]
    books: Audit
    done: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def aftermath(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aftermath]:
    with ChaosSwarm(chaos_spec(2, 2), tmp_path_factory.mktemp("chaos")) as swarm:
        swarm.start()
        swarm.run(schedule(SEED, swarm.names, possible(PLAN, swarm.network)), PLAN.seconds)
        vacant = swarm.settle()
        swarm.stop()
        orphans = swarm.orphans()
        yield Aftermath(swarm, vacant, orphans, audit(histories(swarm)), [event.action for event in swarm.events])


def test_every_fault_was_done(aftermath: Aftermath) -> None:
    cuts = set() if aftermath.swarm.network.can_cut else {Action.CUT, Action.HEAL}
    assert set(Action) - set(aftermath.done) == cuts


def test_nothing_hung_and_nobody_ended_unasked(aftermath: Aftermath) -> None:
    assert aftermath.swarm.deaths == []
    assert aftermath.swarm.watch.hangs == []


def test_every_seat_is_held_at_the_end(aftermath: Aftermath) -> None:
    assert aftermath.vacant == []


def test_every_checkpoint_is_whole(aftermath: Aftermath) -> None:
    assert len(checkpoint_files(aftermath.swarm)) >= len(aftermath.swarm.seats)
    assert corrupt_checkpoints(node.folder for node in aftermath.swarm.nodes.values()) == []


def test_no_process_and_no_socket_is_left(aftermath: Aftermath) -> None:
    assert aftermath.orphans == []


def test_every_micro_batch_is_accounted_for_and_none_is_trained_twice_for_nothing(aftermath: Aftermath) -> None:
    assert aftermath.books.trained > 0
    assert (aftermath.books.unaccounted, aftermath.books.repeated) == (0, 0)


def test_the_swarm_has_learnt(aftermath: Aftermath) -> None:
    before = evaluate_initial(aftermath.swarm.spec.training_settings(), rows_max=64).loss
    assert trained(aftermath.swarm).loss < before - 1.0
