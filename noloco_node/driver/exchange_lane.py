"""Carries out the effects about outer steps: boundary, offers, the trade of tensors, the correction."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from noloco_node.core import effects as do
from noloco_node.core import events as ev
from noloco_node.core.types import OfferAnswer, Outcome
from noloco_node.driver.host import Host
from noloco_node.errors import PeerLost, RemoteProtocolError, TensorReleased
from noloco_node.ports import Boundary


class ExchangeLane:
    """Tensors of outer steps by number: our own frozen x and the partner's, until the step closed."""

    def __init__(self, driver: Host) -> None:
        self._driver = driver
        self._boundaries: dict[int, Boundary] = {}
        self._freezing: set[int] = set()  # phi of these is being copied
        self.partner_tensors: dict[int, memoryview] = {}
        self.answers: dict[int, OfferAnswer] = {}
        self._generation = 0  # of states: what was begun in an earlier one is not heard any more

    def executors(self) -> dict[type, Callable[[Any], None]]:
        run = self._driver.as_task
        return {
            do.FreezeSlowWeights: self._freeze_slow_weights,
            do.DropPrefetch: self._drop_prefetch,
            do.TakeBoundary: run(self._take_boundary),
            do.SendOffer: run(self._send_offer),
            do.AnswerOffer: self._answer_offer,
            do.OpenExchange: self._open,
            do.SendExchange: self._send,
            do.ReceiveTensor: self._receive,
            do.StreamTensor: self._stream,
            do.VerifyTensor: run(self._verify),
            do.AddCorrection: run(self._add_correction),
            do.DropCorrection: run(self._drop_correction),
            do.CloseExchange: self._close,
        }

    def forget_all(self) -> None:
        """Another seat, or its state loaded anew: the tensors of before are void. The trainer frees its own copies."""
        self._generation += 1
        self._boundaries.clear()
        self._freezing.clear()
        self.partner_tensors.clear()

    async def _take_boundary(self, effect: do.TakeBoundary) -> None:
        generation = self._generation
        boundary = await self._driver.device.take_boundary(effect.outer_step)
        if generation != self._generation:
            return
        self._boundaries[effect.outer_step] = boundary
        self._driver.feed(
            ev.BoundaryTaken(
                effect.outer_step, boundary.tensor_bytes, boundary.tensor_id, boundary.shape_hash, boundary.is_finite
            )
        )

    def _freeze_slow_weights(self, effect: do.FreezeSlowWeights) -> None:
        self._freezing.add(effect.outer_step)
        self._driver.spawn(self._freeze(effect.outer_step))

    async def _freeze(self, k: int) -> None:
        generation = self._generation
        frozen = await self._driver.device.freeze_slow_weights(k)
        if generation != self._generation or k not in self._freezing:
            return
        self._freezing.discard(k)
        self._boundaries.setdefault(k, frozen)
        self._driver.feed(
            ev.SlowWeightsFrozen(k, frozen.tensor_bytes, frozen.tensor_id, frozen.shape_hash, frozen.is_finite)
        )

    def _drop_prefetch(self, effect: do.DropPrefetch) -> None:
        self._driver.peers.exchange.release(effect.peer, effect.outer_step)
        self._freezing.discard(effect.outer_step)
        self._boundaries.pop(effect.outer_step, None)
        self.partner_tensors.pop(effect.outer_step, None)
        self._driver.spawn(self._driver.device.release_exchange(effect.outer_step))

    async def _send_offer(self, effect: do.SendOffer) -> None:
        answer: OfferAnswer | None
        try:
            answer = await self._driver.peers.offer(effect.peer, effect.offer)
        except (PeerLost, RemoteProtocolError):
            answer = None
        self._driver.feed(ev.OfferAnswered(effect.offer, answer))

    def _answer_offer(self, effect: do.AnswerOffer) -> None:
        self.answers[effect.ticket] = effect.answer

    def _open(self, effect: do.OpenExchange) -> None:
        self._driver.peers.exchange.open(effect.peer, effect.outer_step, decider=effect.decider)

    def _send(self, effect: do.SendExchange) -> None:
        self._driver.peers.exchange.send(effect.peer, effect.message)

    def _receive(self, effect: do.ReceiveTensor) -> None:
        boundary = self._boundaries.get(effect.outer_step)
        if boundary is None:
            return
        with suppress(TensorReleased):
            self._driver.device.await_head(effect.outer_step, effect.tensor_id)
        hub, size = self._driver.peers.exchange, effect.tensor_bytes
        hub.expect(effect.peer, effect.outer_step, size, effect.tensor_id, boundary.head_bytes, is_due=not effect.ahead)

    async def meet(self, outer_step: int, tensor_id: bytes, head: memoryview) -> None:
        if outer_step not in self._boundaries:
            return
        generation = self._generation
        try:
            await self._driver.device.meet(outer_step, tensor_id, head)
        except RemoteProtocolError as fault:
            if generation == self._generation:
                self._driver.feed(ev.TensorDamaged(outer_step, str(fault)))

    def _stream(self, effect: do.StreamTensor) -> None:
        if effect.outer_step in self._boundaries:
            with suppress(TensorReleased):
                source = self._driver.device.source(effect.outer_step)
                self._driver.peers.exchange.stream(effect.peer, effect.outer_step, source, effect.offset)

    async def _verify(self, effect: do.VerifyTensor) -> None:
        tensor = self.partner_tensors.get(effect.outer_step)
        if tensor is None:
            return
        generation = self._generation
        verdict = await self._driver.device.verify(effect.outer_step, tensor)
        if generation != self._generation:
            return
        if verdict.reason:
            self._driver.feed(ev.TensorRefused(effect.outer_step, verdict.reason))
        else:
            self._driver.feed(ev.TensorVerified(effect.outer_step, verdict.norm, verdict.spread))

    async def _add_correction(self, effect: do.AddCorrection) -> None:
        device, generation = self._driver.device, self._generation
        await device.add_correction(effect.outer_step)
        if generation != self._generation:  # released with everything else
            return
        await device.release_exchange(effect.outer_step)
        if generation == self._generation:
            self._driver.feed(ev.CorrectionAdded(effect.outer_step))

    async def _drop_correction(self, effect: do.DropCorrection) -> None:
        await self._driver.device.drop_correction(effect.outer_step)

    def _close(self, effect: do.CloseExchange) -> None:
        """Free the tensors. After a paired step the trainer still holds c, until the correction is added."""
        if effect.peer is not None:
            self._driver.peers.exchange.release(effect.peer, effect.outer_step)
        self._boundaries.pop(effect.outer_step, None)
        self.partner_tensors.pop(effect.outer_step, None)
        if effect.outcome is Outcome.SOLO:
            self._driver.spawn(self._driver.device.release_exchange(effect.outer_step))
