"""Carries out the effects about a replica's state: from the seed, the disk or a donor; checkpoints; the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from noloco_node.core import effects as do
from noloco_node.core import events as ev
from noloco_node.core import limits
from noloco_node.core.types import ClosedStep, PeerId, Seat
from noloco_node.sim.ledger import Tenure, Traffic
from noloco_node.sim.replica import Checkpoint, Replica, Weights

if TYPE_CHECKING:
    from noloco_node.sim.virtual_node import VirtualNode

LOAD_S = 0.3
FETCH_S = 2.0
DISK_S = 0.5
COPY_S = 0.05


@dataclass(frozen=True, slots=True)
class Found:
    """A state that is about to be put in place."""

    seat: Seat
    source: str
    outer_step: int = 0
    inner_step: int = 0
    data_next: int = 0
    weights: tuple[Weights, ...] | None = None
    last: ClosedStep | None = None
    promised: tuple[tuple[int, int], ...] = ()


class StateLane:
    def __init__(self, node: VirtualNode) -> None:
        self._node = node
        self.uploads = 0
        self._asked = 0  # loads; only the newest one is still under way

    def executors(self) -> dict[type, Callable[[Any], None]]:
        return {
            do.InitialiseState: self._as_only_load(self._initialise),
            do.LoadCheckpoint: self._as_only_load(self._load),
            do.FetchState: self._as_only_load(lambda effect: self._ask(effect, effect.donors)),
            do.SaveCheckpoint: self._save,
            do.Leave: self._node.leave,
        }

    # --- a state for the seat ---------------------------------------------------------------------

    def _as_only_load(self, execute: Callable[[Any], None]) -> Callable[[Any], None]:
        """As in the driver: one that is asked for later ends those before it."""

        def start(effect: Any) -> None:
            self._asked += 1
            execute(effect)

        return start

    def _after(self, delay_s: float, action: Callable[[], None]) -> None:
        asked = self._asked
        self._node.after(delay_s, lambda: action() if asked == self._asked else None)

    def _unavailable(self, seat: Seat, reason: str) -> None:
        self._after(LOAD_S, lambda: self._node.feed(ev.StateUnavailable(reason, seat)))

    def _initialise(self, effect: do.InitialiseState) -> None:
        self._after(LOAD_S, lambda: self._place(Found(effect.seat, "seed")))

    def _load(self, effect: do.LoadCheckpoint) -> None:
        kept = self._node.disk.newest(effect.of or effect.seat)
        if kept is None:
            self._unavailable(effect.seat, "no checkpoint")
            return
        if effect.of is not None:  # as a donor's
            self._after(LOAD_S, lambda: self._place(self._donated(effect.seat, kept)))
            return
        place = effect.seat, "checkpoint", kept.outer_step, kept.inner_step, kept.data_next
        found = Found(*place, kept.weights, kept.last, kept.promised)
        self._after(LOAD_S, lambda: self._place(found))

    def _ask(self, effect: do.FetchState, donors: tuple[PeerId, ...]) -> None:
        """One donor after the other; a transfer that breaks begins anew with the next."""
        if not donors:
            self._unavailable(effect.seat, "no donor")
            return
        node, donor = self._node, self._node.swarm.by_peer[donors[0]]
        file = self._offered(donor, effect.seat.stage)
        node.counts(Traffic.CALL)
        if file is None:
            self._after(node.weather.round_trip_s, lambda: self._ask(effect, donors[1:]))
            return
        life = donor.life
        donor.states.uploads += 1
        node.clock.after(FETCH_S, lambda: self._upload_ends(donor, life))
        self._after(FETCH_S, lambda: self._fetched(effect, donors, file, donor, life))

    def _offered(self, donor: VirtualNode, stage: int) -> Checkpoint | None:
        node = self._node
        is_there = donor.is_up and not donor.is_paused and node.weather.links(node.number, donor.number)
        is_busy = donor.states.uploads >= limits.STATE_UPLOADS_MAX
        seats = [seat for seat in donor.disk.files if seat.stage == stage]
        if not is_there or is_busy or not seats:
            return None
        return max((donor.disk.files[seat][-1] for seat in sorted(seats)), key=lambda file: file.outer_step)

    @staticmethod
    def _upload_ends(donor: VirtualNode, life: int) -> None:
        if donor.life == life:
            donor.states.uploads -= 1

    def _fetched(
        self, effect: do.FetchState, donors: tuple[PeerId, ...], file: Checkpoint, donor: VirtualNode, life: int
    ) -> None:
        weather, node = self._node.weather, self._node
        if donor.life != life or not weather.links(node.number, donor.number) or weather.loses():
            self._ask(effect, donors[1:])
            return
        self._place(self._donated(effect.seat, file))

    @staticmethod
    def _donated(seat: Seat, file: Checkpoint) -> Found:
        """Slow weights and momentum; of the data what the donor knows of this seat's last promise."""
        slow = tuple(Weights(w.phi, w.phi, w.delta) for w in file.weights)
        promise = dict(file.promised).get(seat.replica, 0)
        return Found(seat, "peer", file.outer_step, data_next=promise, weights=slow)

    def _place(self, found: Found) -> None:
        node = self._node
        machine, clock = node.machine, node.clock
        if machine is None:
            return
        node.micro_batches.forget_all()
        node.exchanges.forget_all()
        node.replica = Replica(found.seat, node.swarm.settings.fragments, found.weights)
        number = len(node.ledger.tenures) + 1
        node.ledger.tenures.append(
            Tenure(
                number,
                found.seat,
                machine.incarnation,
                found.source,
                found.outer_step,
                found.data_next,
                clock.now,
                node.life,
            )
        )
        place = found.outer_step, found.inner_step, found.data_next, found.source
        node.feed(ev.StateLoaded(*place, found.last, found.promised, seat=found.seat))

    # --- checkpoints ------------------------------------------------------------------------------

    def _save(self, effect: do.SaveCheckpoint) -> None:
        node, replica = self._node, self._node.replica
        assert replica is not None, "nothing to save"
        place = effect.outer_step, effect.inner_step, effect.data_next
        file = Checkpoint(*place, replica.weights, effect.last, effect.promised)
        node.micro_batches.device.run("checkpoint", COPY_S, ev.StateCopied, changes=True)
        node.after(DISK_S, lambda: self._written(replica.seat, file))

    def _written(self, seat: Seat, file: Checkpoint) -> None:
        self._node.disk.write(seat, file)
        self._node.feed(ev.CheckpointSaved(file.outer_step, seat=seat))
