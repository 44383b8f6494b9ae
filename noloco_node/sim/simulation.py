"""One simulated run: a scenario, a seed, a size.

Owns the settings of simulated runs and what is told of one. Must not know processes, files.
"""

from __future__ import annotations

import resource
from dataclasses import dataclass, replace

from noloco_node.core.types import Clock, Outcome, Settings
from noloco_node.sim.checkers.every import every_checker
from noloco_node.sim.checkers.pair_outcome import PairOutcome
from noloco_node.sim.faults import Faults
from noloco_node.sim.scenarios import SCENARIOS, Scenario
from noloco_node.sim.virtual_swarm import Violation, VirtualSwarm

INTERVAL_S = 30.0
INNER_STEPS = 4
SLACK_S = 150.0  # beyond the last boundary: the end of the run, a lease long at most for each stage


@dataclass(frozen=True, slots=True)
class Run:
    """What to simulate."""

    scenario: str
    seed: int
    num_stages: int = 2
    num_replicas: int = 16

    @property
    def seats(self) -> str:
        return f"{self.num_stages}x{self.num_replicas}"

    @property
    def command(self) -> str:
        """Repeats this very run."""
        return f"noloco-node simulate --scenario {self.scenario} --seats {self.seats} --seed {self.seed}"


@dataclass(frozen=True, slots=True)
class Figures:
    """What came of one run. `digest` is of every event in order."""

    run: Run
    violations: tuple[Violation, ...]
    outer_steps: int
    paired: int
    splits: int  # pairs that closed unlike as the protocol allows: cut off from READY to the end
    messages: int
    bytes: int
    events: int
    digest: int
    cpu_s: float = 0.0


def settings_of(run: Run, scenario: Scenario) -> Settings:
    """Short intervals and leases; the proportions are those of a real run."""
    return Settings(
        run="simulated",
        seed=run.seed,
        num_stages=run.num_stages,
        num_replicas=run.num_replicas,
        micro_batches=2,
        inner_steps=INNER_STEPS,
        total_outer_steps=scenario.outer_steps,
        mode=scenario.mode,
        fragments=scenario.fragments,
        clock=scenario.clock,
        outer_interval_s=INTERVAL_S,
        grace_s=8.0,
        exchange_max_s=15.0,
        lease_s=60.0,
        renew_s=20.0,
        settle_s=3.0,
        skew_max_s=3.0,
        late_s=10.0,
        idle_close_s=12.0,
        queue_max=8,
    )


def prepare(run: Run) -> tuple[VirtualSwarm, Faults]:
    """The swarm with its plan of faults and its checkers; nothing has happened yet."""
    scenario = SCENARIOS[run.scenario]
    swarm = VirtualSwarm(settings_of(run, scenario), run.seed, scenario.rates)
    faults = Faults(swarm, scenario, run.seed)
    faults.schedule()
    swarm.watch(every_checker(swarm, faults.window.until_s))
    return swarm, faults


def simulate(run: Run) -> Figures:
    """To the end of the run, or to its violations."""
    began_s = _user_s()
    swarm, _ = prepare(run)
    settings = swarm.settings
    stretch = 2.0 if settings.clock is Clock.STEPS else 1.0
    swarm.run(swarm.start_s + stretch * settings.total_outer_steps * INTERVAL_S + SLACK_S)
    swarm.finish()
    return replace(figures_of(run, swarm), cpu_s=_user_s() - began_s)


def _user_s() -> float:
    """Processor time of this process's own code: what a busy machine changes least."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_utime


def figures_of(run: Run, swarm: VirtualSwarm) -> Figures:
    closed = [step for node in swarm.nodes for step in node.ledger.closed()]
    return Figures(
        run=run,
        violations=tuple(swarm.violations),
        outer_steps=len(closed),
        paired=sum(step.outcome is Outcome.PAIRED for step in closed),
        splits=sum(len(c.splits) for c in swarm.checkers if isinstance(c, PairOutcome)),
        messages=sum(node.ledger.messages for node in swarm.nodes),
        bytes=sum(node.ledger.bytes for node in swarm.nodes),
        events=swarm.events,
        digest=swarm.digest,
    )
