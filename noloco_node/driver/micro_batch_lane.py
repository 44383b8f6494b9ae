"""Carries out the effects about micro-batches: tensors by call handle between data, device and peers."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from noloco_node.core import effects as do
from noloco_node.core import events as ev
from noloco_node.core.types import Seat
from noloco_node.driver.host import Host
from noloco_node.errors import HopBusy, HopDropped, PeerLost, RemoteProtocolError
from noloco_node.ports import HopAnswer, MicroBatch, TensorBlob

IGNORED_LABEL = -100


def count_tokens(labels: TensorBlob) -> int:
    """Tokens that a loss is taken on; counted here from the labels, never taken from a sender."""
    values = memoryview(labels.data).cast("B").cast("i").tolist()
    return len(values) - values.count(IGNORED_LABEL)


@dataclass(slots=True)
class Visit:
    """Tensors of one micro-batch while it is here. `answer` is the caller's future, None for own data."""

    batch: MicroBatch
    answer: asyncio.Future[HopAnswer] | None = None
    activation: TensorBlob | None = None
    gradient_in: TensorBlob | None = None  # by our output, from the next stage
    gradient_out: TensorBlob | None = None  # by our input, for the stage before
    hop: asyncio.Task[None] | None = None


class MicroBatchLane:
    """Visits by call handle. A handle that is gone means a micro-batch dropped meanwhile: its results end here."""

    def __init__(self, driver: Host) -> None:
        self._driver = driver
        self._visits: dict[int, Visit] = {}
        self._calls = itertools.count(1)
        self._arriving: int | None = None  # the call that `receive` is handing to the machine
        self._generation = 0  # of states: what was begun in an earlier one is not heard any more

    def executors(self) -> dict[type, Callable[[Any], None]]:
        run = self._driver.as_task
        return {
            do.DrawMicroBatch: run(self._draw),
            do.AnswerAdmitted: lambda effect: None,
            do.AnswerBusy: self._answer_busy,
            do.RunForward: run(self._forward),
            do.CallNextStage: self._call_next_stage,
            do.CancelHop: self._cancel_hop,
            do.RunBackward: run(self._backward),
            do.DropGraph: run(self._drop_graph),
            do.ReturnGradient: self._return_gradient,
            do.ForgetMicroBatch: self._forget,
        }

    def forget_all(self) -> None:
        """Another seat, or its state loaded anew: nothing of before is answered, kept or told to the machine."""
        self._generation += 1
        visits, self._visits = self._visits, {}
        for visit in visits.values():
            if visit.hop is not None:
                visit.hop.cancel()
            if visit.answer is not None and not visit.answer.done():
                visit.answer.set_exception(HopDropped("given up with the seat"))

    # --- in ---------------------------------------------------------------------------------------

    async def _draw(self, effect: do.DrawMicroBatch) -> None:
        trainer = self._driver.trainer
        if trainer is None:
            return
        generation = self._generation
        batch = await trainer.draw(effect.n)
        if generation != self._generation:
            return
        call = next(self._calls)
        self._visits[call] = Visit(batch)
        self._driver.feed(ev.MicroBatchDrawn(call, effect.n, count_tokens(batch.labels)))

    def receive(self, batch: MicroBatch, digest: bytes) -> asyncio.Future[HopAnswer] | None:
        """A hop came in: None is BUSY."""
        call = next(self._calls)
        answer: asyncio.Future[HopAnswer] = asyncio.get_running_loop().create_future()
        self._visits[call] = Visit(batch, answer)
        answer.add_done_callback(lambda future: self._caller_lost(call) if future.cancelled() else None)
        tokens = count_tokens(batch.labels)
        self._arriving = call
        self._driver.feed(ev.MicroBatchArrived(call, batch.id, digest, tokens, batch.position))
        self._arriving = None
        return answer if call in self._visits else None

    def _answer_busy(self, effect: do.AnswerBusy) -> None:
        """At once, or later: handed back unbegun."""
        visit = self._visits.pop(effect.call)
        if effect.call != self._arriving and visit.answer is not None and not visit.answer.done():
            visit.answer.set_exception(HopBusy("handed back"))

    def _caller_lost(self, call: int) -> None:
        if call in self._visits:
            self._driver.feed(ev.CallerLost(call))

    # --- on the device ----------------------------------------------------------------------------

    async def _forward(self, effect: do.RunForward) -> None:
        visit = self._visits.get(effect.call)
        if visit is None:  # forgotten before it began
            self._driver.feed(ev.ForwardDone(effect.call, finite=False))
            return
        try:
            result = await self._driver.device.forward(effect.call, visit.batch, count=effect.count)
        except (RemoteProtocolError, FloatingPointError):
            self._driver.feed(ev.ForwardDone(effect.call, finite=False))
            return
        visit.activation, visit.gradient_out = result.activation, result.gradient
        self._driver.feed(ev.ForwardDone(effect.call, finite=result.finite, loss_sum=result.loss_sum))

    async def _backward(self, effect: do.RunBackward) -> None:
        visit = self._visits.get(effect.call)
        if visit is None or visit.gradient_in is None:  # forgotten before it began
            self._driver.feed(ev.BackwardDone(effect.call, finite=False))
            return
        gradient, visit.gradient_in = visit.gradient_in, None
        try:
            visit.gradient_out = await self._driver.device.backward(
                effect.call, gradient, count=effect.count, recompute=effect.recompute
            )
        except (RemoteProtocolError, FloatingPointError):
            self._driver.feed(ev.BackwardDone(effect.call, finite=False))
            return
        self._driver.feed(ev.BackwardDone(effect.call))

    async def _drop_graph(self, effect: do.DropGraph) -> None:
        await self._driver.device.drop_graph(effect.call)

    # --- to the next stage ------------------------------------------------------------------------

    def _call_next_stage(self, effect: do.CallNextStage) -> None:
        visit = self._visits.get(effect.call)
        if visit is not None:
            visit.hop = self._driver.spawn(self._hop(effect, visit))

    async def _hop(self, effect: do.CallNextStage, visit: Visit) -> None:
        assert visit.activation is not None
        batch = replace(visit.batch, id=effect.id, position=effect.position, inputs=visit.activation)
        feed, call, seat = self._driver.feed, effect.call, effect.seat
        try:
            answer = await self._driver.peers.run_hop(effect.peer, batch, lambda: self._admitted(call, seat))
        except HopBusy:
            feed(ev.HopRefused(call, seat))
        except (HopDropped, PeerLost, RemoteProtocolError) as error:
            feed(ev.HopBroken(call, seat, str(error)))
        else:
            visit.gradient_in = answer.gradient
            feed(ev.GradientArrived(call, answer.loss_sum, answer.tokens, replayed=answer.replayed))

    def _admitted(self, call: int, seat: Seat) -> None:
        self._driver.feed(ev.HopAdmitted(call, seat))

    def _cancel_hop(self, effect: do.CancelHop) -> None:
        visit = self._visits.get(effect.call)
        if visit is not None and visit.hop is not None:
            visit.hop.cancel()

    # --- out --------------------------------------------------------------------------------------

    def _return_gradient(self, effect: do.ReturnGradient) -> None:
        visit = self._visits.pop(effect.call)
        self._driver.spawn(self._driver.device.forget(effect.call))
        if visit.answer is not None and not visit.answer.done() and visit.gradient_out is not None:
            visit.answer.set_result(HopAnswer(visit.gradient_out, effect.loss_sum, effect.tokens, effect.replayed))

    def _forget(self, effect: do.ForgetMicroBatch) -> None:
        visit = self._visits.pop(effect.call, None)
        if visit is None:
            return
        if self._driver.trainer is not None:
            self._driver.spawn(self._driver.trainer.forget(effect.call))
        if visit.answer is not None and not visit.answer.done():
            visit.answer.set_exception(HopDropped("given up by the next stage"))
