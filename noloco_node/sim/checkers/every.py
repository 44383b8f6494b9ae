"""All checkers of a run."""

from __future__ import annotations

from noloco_node.sim.checkers.accounts import Accounts
from noloco_node.sim.checkers.bounds import Bounds
from noloco_node.sim.checkers.checker import Checker
from noloco_node.sim.checkers.correction_once import CorrectionOnce
from noloco_node.sim.checkers.counters import Counters
from noloco_node.sim.checkers.one_holder import OneHolder
from noloco_node.sim.checkers.pair_outcome import PairOutcome
from noloco_node.sim.checkers.pair_sum import PairSum
from noloco_node.sim.checkers.quiet_changes import QuietChanges
from noloco_node.sim.checkers.recovery import Recovery
from noloco_node.sim.checkers.waiting import Waiting
from noloco_node.sim.virtual_swarm import VirtualSwarm


def every_checker(swarm: VirtualSwarm, quiet_from_s: float) -> list[Checker]:
    """In the order of the invariants. `quiet_from_s`: the faults of the run are over."""
    return [
        CorrectionOnce(swarm),
        PairOutcome(swarm),
        Waiting(swarm),
        PairSum(swarm),
        Counters(swarm),
        Accounts(swarm),
        QuietChanges(swarm),
        OneHolder(swarm),
        Recovery(swarm, quiet_from_s),
        Bounds(swarm),
    ]
