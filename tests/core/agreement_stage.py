"""A stage of a few agreements whose messages a test delivers in whatever order it likes."""

from __future__ import annotations

from collections.abc import Callable

from noloco_node.core.agreement import Agreed, Agreement
from noloco_node.core.effects import AnswerOffer, Effect, SendOffer
from noloco_node.core.events import OfferAnswered, OfferReceived, TimePassed
from noloco_node.core.types import Offer, PeerId, Seat, Settings

PHASE_S = 8.0


def spec(num_replicas: int, seed: int = 1) -> Settings:
    return Settings("run", seed, 1, num_replicas, 1, 1, 0)


def seat(replica: int) -> Seat:
    return Seat(0, replica)


def peer(replica: int) -> PeerId:
    return PeerId(f"p{replica}")


def view_of(*replicas: int) -> Callable[[Seat], PeerId | None]:
    return lambda s: peer(s.replica) if s.stage == 0 and s.replica in replicas else None


def settle(
    num: int,
    active: list[int],
    views: dict[int, set[int]],
    order: Callable[[int], int],
    seed: int = 1,
    step: int = 0,
    seen_s: float = PHASE_S,
) -> dict[int, Agreement]:
    """A phase of PHASE_S begins everywhere; messages arrive one at a time in an order that `order` picks.

    From `seen_s` on all see one another.
    """
    settings_of = spec(num, seed)
    stage = {r: Agreement(settings_of, seat(r)) for r in active}
    view = {r: view_of(*views[r]) for r in active}
    waiting: list[tuple[int, object]] = []
    now = 0.0

    def act(r: int, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, SendOffer):
                waiting.append((effect.offer.receiver.replica, OfferReceived(0, effect.offer, peer(r))))
            elif isinstance(effect, AnswerOffer):
                assert current is not None
                waiting.append((current.sender.replica, OfferAnswered(current, effect.answer)))

    current: Offer | None = None
    for r in active:
        act(r, stage[r].begin_phase(step, view[r], now))
    while True:
        if waiting:
            r, event = waiting.pop(order(len(waiting)))
            current = event.offer if isinstance(event, OfferReceived) else None
            act(r, stage[r].handle(event, view[r], now))  # type: ignore[arg-type]
            continue
        deadlines = [d for one in stage.values() if (d := one.next_deadline) is not None]
        deadlines += [seen_s] if now < seen_s else []
        if min(deadlines, default=PHASE_S) >= PHASE_S:
            return stage
        now = min(deadlines)
        if now >= seen_s:
            view = {r: view_of(*(set(active) - {r})) for r in active}
        for r, one in stage.items():
            act(r, one.handle(TimePassed(), view[r], now))


def assert_mutual(stage: dict[int, Agreement], step: int = 0) -> None:
    for r, one in stage.items():
        agreed = one.partner_of(step)
        if agreed is not None:
            assert stage[agreed.seat.replica].partner_of(step) == Agreed(seat(r), peer(r))
