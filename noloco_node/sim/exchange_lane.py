"""Carries out the effects about outer steps: boundary, offers, the trade of tensors, the correction."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from noloco_node.core import effects as do
from noloco_node.core import events as ev
from noloco_node.core import limits
from noloco_node.core.types import Begin, Mode, OfferAnswer, Outcome, PeerId, Phase, Reached, Ready, SeatRecord
from noloco_node.sim.exchange_link import Link
from noloco_node.sim.ledger import OuterStep, Traffic
from noloco_node.sim.replica import SHAPE_HASH, SLOW_BYTES, TENSOR_BYTES

if TYPE_CHECKING:
    from noloco_node.sim.virtual_node import VirtualNode

BOUNDARY_S = 0.05
FREEZE_S = 0.02
VERIFY_S = 0.05
ADD_S = 0.02
LINKS_STEPS = limits.EXCHANGE_MEMORY_STEPS + 2  # links of older outer steps are closed
STREAM_SILENT_S = limits.STALL_S


class ExchangeLane:
    """Links by (outer step, peer), shared by both ends; facts of each outer step go into the ledger."""

    def __init__(self, node: VirtualNode) -> None:
        self._node = node
        self.links: dict[tuple[int, PeerId], Link] = {}
        self._answers: dict[int, OfferAnswer] = {}
        self._tickets = 0
        self._generation = 0
        self._begun: set[int] = set()  # steps whose partner has taken a boundary that is not taken here

    def executors(self) -> dict[type, Callable[[Any], None]]:
        return {
            do.FreezeSlowWeights: self._freeze_slow_weights,
            do.DropPrefetch: self._drop_prefetch,
            do.TakeBoundary: self._take_boundary,
            do.SendOffer: self._send_offer,
            do.AnswerOffer: self._answer_offer,
            do.OpenExchange: self._open,
            do.SendExchange: self._send,
            do.ReceiveTensor: self._receive,
            do.StreamTensor: self._stream,
            do.VerifyTensor: self._verify,
            do.AddCorrection: self._add_correction,
            do.DropCorrection: self._drop_correction,
            do.CloseExchange: self._close,
        }

    # --- life -------------------------------------------------------------------------------------

    def forget_all(self) -> None:
        """A state is loaded anew: tensors and corrections of before are void."""
        self._generation += 1
        self._begun.clear()

    def process_ended(self) -> None:
        self.forget_all()
        for link in self.links.values():
            link.goes_down()
        self.links.clear()

    def watch_links(self) -> None:
        """This node fell silent: streams that stay so are given up by the other side."""
        node, since_s = self._node, self._node.paused_since_s

        def judge() -> None:
            if node.paused_since_s == since_s and since_s is not None:
                for link in self.links.values():
                    link.goes_down()

        node.clock.after(STREAM_SILENT_S, judge)

    def cut(self) -> None:
        """Streams to nodes out of reach break."""
        node = self._node
        for link in self.links.values():
            if not node.weather.links(node.number, link.far(node).node.number):
                link.goes_down()

    def _link(self, outer_step: int, peer: PeerId) -> Link:
        """The one both ends share; an end of an earlier life begins anew."""
        node, far = self._node, self._node.swarm.by_peer[peer]
        oldest = outer_step - LINKS_STEPS
        self.links = {key: link for key, link in self.links.items() if key[0] >= oldest or link.near(node).wanted}
        return node.swarm.links.between(outer_step, node, far)

    # --- boundary ---------------------------------------------------------------------------------

    def _take_boundary(self, effect: do.TakeBoundary) -> None:
        node, k = self._node, effect.outer_step
        replica, tenure = node.replica, node.ledger.tenure
        assert replica is not None
        assert tenure is not None
        before = node.ledger.steps[-1] if node.ledger.steps else None
        if before is not None and before.closed_s == node.clock.now:
            before.is_closed_late = True
        name = self._digest(k)

        def end() -> ev.Event:
            taken = replica.take_boundary(k, name)
            node.swarm.tensors[taken.digest] = taken.sent
            step = OuterStep(
                k, replica.seat, tenure.incarnation, tenure.number, node.life, node.clock.now, taken.digest
            )
            step.begin_heard_s = node.clock.now if k in self._begun else None
            self._begun.discard(k)
            node.ledger.steps.append(step)
            for link in [link for (number, _), link in self.links.items() if number == k]:
                link.go_on(node, taken.digest)
            return ev.BoundaryTaken(k, TENSOR_BYTES, taken.digest, SHAPE_HASH)

        node.micro_batches.device.run("boundary", BOUNDARY_S, end, changes=True)

    def _digest(self, k: int, word: str = "") -> bytes:
        tenure = self._node.ledger.tenure
        assert tenure is not None
        return f"{self._node.peer}/{tenure.number}/{k}{word}".encode().ljust(limits.DIGEST_BYTES, b".")

    # --- ahead of it ------------------------------------------------------------------------------

    def _freeze_slow_weights(self, effect: do.FreezeSlowWeights) -> None:
        node, k, generation = self._node, effect.outer_step, self._generation
        digest = self._digest(k, "+")
        assert node.replica is not None
        node.replica.freeze_slow_weights(k, digest)

        def frozen() -> None:
            if generation == self._generation:
                node.feed(ev.SlowWeightsFrozen(k, TENSOR_BYTES, digest, SHAPE_HASH))

        node.after(FREEZE_S, frozen)

    def _drop_prefetch(self, effect: do.DropPrefetch) -> None:
        node, k = self._node, effect.outer_step
        self._begun.discard(k)
        if (k, effect.peer) in self.links:
            self.links[k, effect.peer].release(node)
        if node.replica is not None:
            node.replica.release(k)

    # --- offers -----------------------------------------------------------------------------------

    def _send_offer(self, effect: do.SendOffer) -> None:
        """A unary call: the answer, or nothing within its deadline; a refused or broken one fails at once."""
        node, target, record = self._node, self._node.swarm.by_peer[effect.peer], self._node.record
        life, told = node.life, []

        def tell(answer: OfferAnswer | None, their: SeatRecord | None = None) -> None:
            if told or node.life != life:
                return
            told.append(answer)
            node.meet(target, their)
            if answer is OfferAnswer.AGREED and node.ledger.tenure is not None:
                node.ledger.agrees(effect.offer.outer_step, effect.offer.receiver, target.peer)
            node.feed(ev.OfferAnswered(effect.offer, answer))

        def reply(answer: OfferAnswer | None, their: SeatRecord | None) -> None:
            if not target.weather.loses() and target.weather.links(node.number, target.number):
                target.clock.after(target.weather.delay_s(), lambda: node.receive(lambda: tell(answer, their)))

        def arrive() -> None:
            if not target.weather.links(node.number, target.number):
                return
            if target.is_up:
                target.receive(lambda: target.exchanges.offered(node, record, effect, reply))
            else:
                node.receive(lambda: tell(None))

        node.counts(Traffic.CALL)
        node.after(limits.UNARY_DEADLINE_S, lambda: tell(None))
        for _ in range(1 + node.weather.doubles()):
            if not node.weather.loses():
                node.clock.after(node.weather.delay_s(), arrive)

    def offered(
        self,
        caller: VirtualNode,
        record: SeatRecord | None,
        effect: do.SendOffer,
        reply: Callable[[OfferAnswer | None, SeatRecord | None], None],
    ) -> None:
        node = self._node
        node.counts(Traffic.CALL)
        if not node.admits(caller, record):
            reply(None, node.record)
            return
        self._tickets += 1
        ticket = self._tickets
        node.feed(ev.OfferReceived(ticket, effect.offer, caller.peer))
        answer = self._answers.pop(ticket, OfferAnswer.LATER)
        if answer is OfferAnswer.AGREED:
            node.ledger.agrees(effect.offer.outer_step, effect.offer.sender, caller.peer)
        reply(answer, node.record)

    def _answer_offer(self, effect: do.AnswerOffer) -> None:
        self._answers[effect.ticket] = effect.answer

    # --- the trade --------------------------------------------------------------------------------

    def _open(self, effect: do.OpenExchange) -> None:
        self._trades_with(effect.outer_step, effect.peer)
        self._link(effect.outer_step, effect.peer).want(self._node)

    def _trades_with(self, k: int, peer: PeerId) -> None:
        """Known once the boundary is taken."""
        tenure, step = self._node.ledger.tenure, self._node.ledger.step(k)
        if step is not None and tenure is not None and step.tenure == tenure.number and step.outcome is None:
            step.peer = peer

    def opened(self, outer_step: int, peer: PeerId, held_bytes: int, held_id: bytes) -> None:
        self._node.feed(ev.ExchangeOpened(outer_step, peer, held_bytes, held_id))

    def _send(self, effect: do.SendExchange) -> None:
        node, message = self._node, effect.message
        link = self.links.get((message.outer_step, effect.peer))
        step = node.ledger.step(message.outer_step)
        if isinstance(message, Begin | Reached):
            self._trades_with(message.outer_step, effect.peer)
        if isinstance(message, Ready) and step is not None and step.ready_s is None:
            step.ready_s = node.clock.now
        if link is not None:
            target = link.far(node).node
            link.send(node, lambda: target.exchanges.hear(node.peer, message))

    def hear(self, peer: PeerId, message: do.ExchangeMessage) -> None:
        step = self._node.ledger.step(message.outer_step)
        begins = isinstance(message, Reached) or (isinstance(message, Begin) and not message.ahead)
        if begins and step is not None and step.peer == peer and step.begin_heard_s is None:
            step.begin_heard_s = self._node.clock.now
        self._node.feed(ev.ExchangeMessageReceived(peer, message))

    def _receive(self, effect: do.ReceiveTensor) -> None:
        step = self._node.ledger.step(effect.outer_step)
        self._begun.discard(effect.outer_step)
        if not effect.ahead:
            self._begun.add(effect.outer_step)
        if step is not None and step.begin_heard_s is None and not effect.ahead:
            step.begin_heard_s = self._node.clock.now  # a BEGIN that came before the boundary
        link = self.links.get((effect.outer_step, effect.peer))
        if link is not None:
            link.expect(self._node, effect.tensor_id, effect.tensor_bytes)

    def _stream(self, effect: do.StreamTensor) -> None:
        node, k = self._node, effect.outer_step
        step, link = node.ledger.step(k), self.links.get((k, effect.peer))
        ahead = None if node.replica is None else node.replica.ahead.get(k)
        if link is not None and ahead is not None:
            link.stream_tensor(node, ahead[1], TENSOR_BYTES, effect.offset, SLOW_BYTES)
        elif link is not None and step is not None:
            link.stream_tensor(node, step.digest, TENSOR_BYTES, effect.offset, TENSOR_BYTES)

    def tensor_arrived(self, link: Link, digest: bytes) -> None:
        k = link.outer_step
        damaged = self._node.weather.damages()
        self._node.feed(ev.TensorDamaged(k, "digest") if damaged else ev.TensorReceived(k))

    def _verify(self, effect: do.VerifyTensor) -> None:
        """On the device's thread, out of its order; judged by the tensor that is here when it is asked for."""
        node, replica, k, generation = self._node, self._node.replica, effect.outer_step, self._generation
        step = node.ledger.step(k)
        assert replica is not None
        assert step is not None
        assert step.peer is not None
        inbox = self.links[k, step.peer].near(node).inbox
        theirs = b"" if inbox is None else inbox.digest

        def verified() -> None:
            if generation != self._generation:
                return
            apart = node.swarm.settings.mode is Mode.PREFETCH
            kept = replica.compute_correction(k, node.swarm.tensors[theirs], theirs, apart=apart)
            refused = not kept or node.weather.refuses()
            node.feed(ev.TensorRefused(k, "norm") if refused else ev.TensorVerified(k))

        node.after(VERIFY_S, verified)

    def _add_correction(self, effect: do.AddCorrection) -> None:
        node, replica = self._node, self._node.replica
        assert replica is not None

        def end() -> ev.Event:
            exchange, moved = replica.add_correction(effect.outer_step)
            self._note_added(effect.outer_step, exchange.c, exchange.digests, moved)
            node.clock.after(0.0, lambda: replica.release(effect.outer_step))
            return ev.CorrectionAdded(effect.outer_step)

        node.micro_batches.device.run("correction", ADD_S, end, changes=True)

    def _note_added(self, k: int, c: Any, digests: frozenset[bytes], moved: Any) -> None:
        step = self._node.ledger.step(k)
        if step is not None:
            step.added += 1
            step.c, step.digests, step.phi_moved = c, digests, moved

    def _drop_correction(self, effect: do.DropCorrection) -> None:
        if self._node.replica is not None:
            self._node.replica.drop_correction(effect.outer_step)

    def _close(self, effect: do.CloseExchange) -> None:
        node, step = self._node, self._node.ledger.step(effect.outer_step)
        assert step is not None, f"outer step {effect.outer_step} was never begun"
        step.closings += 1
        step.closed_s, step.outcome, step.reason = node.clock.now, effect.outcome, effect.reason
        step.partner, step.peer = effect.partner, effect.peer or step.peer
        step.is_closed_late = node.machine is not None and node.machine.phase is Phase.DRAINING
        if effect.peer is not None and (effect.outer_step, effect.peer) in self.links:
            self.links[effect.outer_step, effect.peer].release(node)
        if effect.outcome is Outcome.SOLO and node.replica is not None:
            node.replica.release(effect.outer_step)
