"""Invariant 9: once faults are over every active seat closes outer steps again, and is paired again."""

from __future__ import annotations

from collections.abc import Iterator

from noloco_node.core import pairing
from noloco_node.core.types import Clock, Outcome, Phase, Seat
from noloco_node.sim.checkers.checker import Checker
from noloco_node.sim.ledger import OuterStep, Tenure
from noloco_node.sim.virtual_node import VirtualNode
from noloco_node.sim.virtual_swarm import VirtualSwarm

WORKING = (Phase.TRAINING, Phase.EXCHANGING)
CHANCES = 3  # outer steps with an active partner, one of which must be paired


class Recovery(Checker):
    """`quiet_from_s`: the faults are over. Leases of the dead must lapse first."""

    name = "recovery"
    kinds = frozenset()  # it looks by the clock

    def __init__(self, swarm: VirtualSwarm, quiet_from_s: float) -> None:
        super().__init__(swarm)
        settings = swarm.settings
        self._from_s = quiet_from_s + settings.lease_s + settings.skew_max_s
        self._begun_s: dict[tuple[Seat, int], list[float]] = {}  # of all boundaries of all lives
        self._active: list[tuple[VirtualNode, Tenure | None]] = []
        swarm.clock.at(self._from_s, self._note_active)

    @property
    def _two_intervals_s(self) -> float:
        """With what is under way at the first boundary."""
        settings = self.swarm.settings
        slack_s = settings.late_s + settings.exchange_max_s
        return 2 * (settings.outer_interval_s + settings.grace_s) + slack_s

    def _note_active(self) -> None:
        nodes = (n for n in self.swarm.nodes if n.machine is not None and n.machine.phase in WORKING)
        self._active = [(n, n.ledger.tenure) for n in nodes if n.machine and not n.machine.clock.is_over]
        until_s = self._from_s + self._two_intervals_s
        self.swarm.clock.at(until_s, self._judge_closing)

    def _judge_closing(self) -> None:
        for node, tenure in self._active:
            is_still_there = node.machine is not None and node.machine.work is not None
            if is_still_there and node.ledger.tenure is tenure and not self._closed_since(node):
                words = f"no outer step was closed within {self._two_intervals_s:.0f} s after the faults"
                self.swarm.report(self.name, node.peer, words)

    def _closed_since(self, node: VirtualNode) -> list[OuterStep]:
        return [step for step in node.ledger.closed() if (step.closed_s or 0.0) > self._from_s]

    # --- at the end -------------------------------------------------------------------------------

    def finish(self) -> Iterator[str]:
        for node in self.swarm.nodes:
            for step in node.ledger.steps:
                self._begun_s.setdefault((step.seat, step.number), []).append(step.begun_s)
        for node in self.swarm.nodes:
            machine = node.machine
            if machine is not None and machine.phase in (*WORKING, Phase.DRAINING) and not self._came_late(node):
                yield f"{node.peer} never ends: {machine.phase}, outer step {machine.outer_step}"
            yield from self._pairing(node)

    def _came_late(self, node: VirtualNode) -> bool:
        """It took a seat when the run was over: it serves on for a lease, and another for its own exchange."""
        tenure = node.ledger.tenure
        return tenure is not None and self.swarm.clock.now - tenure.since_s <= 2 * self.swarm.settings.lease_s

    def _pairing(self, node: VirtualNode) -> Iterator[str]:
        """Of the first steps after the faults whose drawn partner took part, one is paired."""
        steps = [step for step in self._closed_since(node) if self._partner_took_part(step)][:CHANCES]
        if len(steps) == CHANCES and all(step.outcome is Outcome.SOLO for step in steps):
            told = ", ".join(f"{step.number} {step.reason}" for step in steps)
            yield f"{node.peer} in {steps[0].seat} is not paired again: {told}"

    def _partner_took_part(self, step: OuterStep) -> bool:
        settings = self.swarm.settings
        seat = step.seat
        drawn = pairing.partner(settings.seed, seat.stage, step.number, settings.num_replicas, seat.replica)
        return drawn is not None and self._took_boundary(Seat(seat.stage, drawn), step)

    def _took_boundary(self, seat: Seat, step: OuterStep) -> bool:
        """The seat's holder took the boundary of the same step. On the time clock also of the one before; the steps
        clock lets replicas drift apart, so there it was taken within grace_s, for nobody waits longer."""
        settings, theirs_s = self.swarm.settings, self._begun_s.get((seat, step.number), [])
        if settings.clock is Clock.STEPS:
            return any(abs(theirs - step.begun_s) <= settings.grace_s for theirs in theirs_s)
        return bool(theirs_s) and (seat, step.number - 1) in self._begun_s
