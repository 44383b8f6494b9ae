"""Outer steps through the driver: offers answered at once, tensors kept exactly as long as the step is open."""

import asyncio
from typing import Any

import pytest
from driver_bench import PEER, SEAT, THERE, Bench

from noloco_node.core import effects as do
from noloco_node.core import events as ev
from noloco_node.core.types import Have, Offer, OfferAnswer, Outcome
from noloco_node.errors import RemoteProtocolError
from noloco_node.ports import Verdict

K = 3
OFFER = Offer(K, THERE, SEAT)


def told(bench: Bench, name: str) -> list[tuple[Any, ...]]:
    return [call for call in bench.network.exchange.did if call[0] == name]


async def test_offer_hears_the_machines_answer_in_the_same_call(bench: Bench) -> None:
    bench.machine.rules[ev.OfferReceived] = lambda event: [do.AnswerOffer(event.ticket, OfferAnswer.TAKEN)]
    assert bench.driver.offered(PEER, OFFER) is OfferAnswer.TAKEN
    (event,) = bench.machine.of(ev.OfferReceived)
    assert (event.offer, event.peer) == (OFFER, PEER)


async def test_offer_that_the_machine_does_not_answer_hears_later(bench: Bench) -> None:
    assert bench.driver.offered(PEER, OFFER) is OfferAnswer.LATER


async def test_own_offer_comes_back_with_the_peers_answer_or_none(bench: Bench) -> None:
    mine = Offer(K, SEAT, THERE)
    await bench.tell(do.SendOffer(mine, PEER))
    bench.network.offers[PEER] = OfferAnswer.AGREED
    await bench.tell(do.SendOffer(mine, PEER))
    assert [event.answer for event in bench.machine.of(ev.OfferAnswered)] == [None, OfferAnswer.AGREED]


async def test_peer_that_answers_an_offer_with_garbage_counts_as_silent(bench: Bench) -> None:
    bench.network.offers[PEER] = RemoteProtocolError("garbage")  # type: ignore[assignment]
    await bench.tell(do.SendOffer(Offer(K, SEAT, THERE), PEER))
    assert [event.answer for event in bench.machine.of(ev.OfferAnswered)] == [None]


async def test_boundary_is_taken_then_streamed_from_the_offset_wanted(bench: Bench) -> None:
    await bench.tell(do.TakeBoundary(K))
    assert bench.machine.of(ev.BoundaryTaken) == [ev.BoundaryTaken(K, 16, b"id", "shape")]
    await bench.tell(do.OpenExchange(K, PEER, decider=True), do.StreamTensor(K, PEER, 4))
    assert told(bench, "open") == [("open", PEER, K, True)]
    assert told(bench, "stream") == [("stream", PEER, K, f"source of {K}", 4)]


async def test_slow_weights_are_streamed_ahead_and_go_on_after_the_boundary(bench: Bench) -> None:
    await bench.tell(do.FreezeSlowWeights(K))
    assert bench.machine.of(ev.SlowWeightsFrozen) == [ev.SlowWeightsFrozen(K, 16, b"id", "shape")]
    await bench.tell(do.ReceiveTensor(K, PEER, 16, b"theirs", ahead=True), do.StreamTensor(K, PEER, 4))
    assert told(bench, "expect") == [("expect", PEER, K, 16, b"theirs", 0, False)]
    assert told(bench, "stream") == [("stream", PEER, K, f"source of {K}", 4)]
    await bench.tell(do.TakeBoundary(K), do.ReceiveTensor(K, PEER, 16, b"theirs"))
    assert told(bench, "expect")[1] == ("expect", PEER, K, 16, b"theirs", 0, True)


@pytest.mark.parametrize("is_frozen", [True, False])
async def test_what_was_sent_ahead_to_a_lost_partner_is_freed_also_while_it_is_being_copied(
    bench: Bench, is_frozen: bool
) -> None:
    if is_frozen:
        await bench.tell(do.FreezeSlowWeights(K))
        bench.driver.tensor_received(PEER, K, memoryview(b"x" * 16))
        await bench.tell(do.DropPrefetch(K, PEER))
    else:
        await bench.tell(do.FreezeSlowWeights(K), do.DropPrefetch(K, PEER))
        assert bench.machine.of(ev.SlowWeightsFrozen) == []
    lane = bench.driver.exchanges
    assert (lane._boundaries, lane._freezing, lane.partner_tensors) == ({}, set(), {})
    assert told(bench, "release") == [("release", PEER, K)]
    assert bench.trainer.done("release_exchange") == [("release_exchange", K)]


async def test_messages_of_the_partner_reach_the_machine_and_its_own_the_link(bench: Bench) -> None:
    bench.driver.exchange_opened(PEER, K, 8, b"part")
    bench.driver.exchange_message(PEER, Have(K))
    bench.driver.tensor_damaged(PEER, K, "digest")
    assert bench.machine.heard[-3:] == [
        ev.ExchangeOpened(K, PEER, 8, b"part"),
        ev.ExchangeMessageReceived(PEER, Have(K)),
        ev.TensorDamaged(K, "digest"),
    ]
    await bench.tell(do.SendExchange(PEER, Have(K)))
    assert told(bench, "send") == [("send", PEER, Have(K))]


async def test_head_of_the_partners_tensor_is_awaited_and_met(bench: Bench) -> None:
    bench.trainer.head_bytes = 4
    await bench.tell(do.TakeBoundary(K))
    await bench.tell(do.ReceiveTensor(K, PEER, 16, b"theirs"))
    assert told(bench, "expect") == [("expect", PEER, K, 16, b"theirs", 4, True)]
    assert bench.trainer.done("await_head") == [("await_head", K, b"theirs")]
    bench.driver.tensor_head(PEER, K, b"theirs", memoryview(b"head"))
    bench.driver.tensor_head(PEER, K + 1, b"theirs", memoryview(b"of a step that is not open"))
    await bench.settle()
    assert bench.trainer.done("meet") == [("meet", K, b"theirs", b"head")]


async def test_head_that_nobody_sends_makes_the_tensor_damaged(bench: Bench) -> None:
    bench.trainer.answers["meet"] = RemoteProtocolError("a sketch that none sends")
    await bench.tell(do.TakeBoundary(K))
    bench.driver.tensor_head(PEER, K, b"theirs", memoryview(b"head"))
    await bench.settle()
    assert bench.machine.heard[-1] == ev.TensorDamaged(K, "a sketch that none sends")


@pytest.mark.parametrize(
    ("verdict", "event"),
    [
        (Verdict("", 2.0, 0.5), ev.TensorVerified(K, 2.0, 0.5)),
        (Verdict("tensor is not finite", 0.0, 0.0), ev.TensorRefused(K, "tensor is not finite")),
    ],
)
async def test_partners_tensor_is_judged_by_the_trainer(bench: Bench, verdict: Verdict, event: ev.Event) -> None:
    bench.trainer.answers["verify"] = verdict
    bench.driver.tensor_received(PEER, K, memoryview(b"y" * 16))
    await bench.tell(do.VerifyTensor(K))
    assert bench.trainer.done("verify") == [("verify", K, b"y" * 16)]
    assert bench.machine.heard[-1] == event


async def test_tensor_that_is_gone_is_not_judged(bench: Bench) -> None:
    await bench.tell(do.VerifyTensor(K))
    assert bench.trainer.done("verify") == []


async def test_correction_is_added_and_then_everything_of_the_step_is_freed(bench: Bench) -> None:
    await bench.tell(do.AddCorrection(K))
    assert [call[0] for call in bench.trainer.did[-2:]] == ["add_correction", "release_exchange"]
    assert bench.machine.of(ev.CorrectionAdded) == [ev.CorrectionAdded(K)]


async def test_closed_step_frees_the_tensors_and_a_solo_one_the_trainers_copy_too(bench: Bench) -> None:
    await bench.tell(do.TakeBoundary(K))
    bench.driver.tensor_received(PEER, K, memoryview(b"y" * 16))
    await bench.tell(do.CloseExchange(K, PEER, Outcome.PAIRED, "committed", THERE))
    assert told(bench, "release") == [("release", PEER, K)]
    assert bench.trainer.done("release_exchange") == []  # the trainer still holds c
    await bench.tell(do.StreamTensor(K, PEER, 0), do.VerifyTensor(K))
    assert told(bench, "stream") == []
    assert bench.trainer.done("verify") == []
    await bench.tell(do.CloseExchange(K + 1, None, Outcome.SOLO, "no partner"))
    assert bench.trainer.done("release_exchange") == [("release_exchange", K + 1)]
    assert len(told(bench, "release")) == 1


async def test_correction_of_a_step_that_closed_solo_is_dropped(bench: Bench) -> None:
    await bench.tell(do.DropCorrection(K))
    assert bench.trainer.done("drop_correction") == [("drop_correction", K)]


# --- the seat is lost -----------------------------------------------------------------------------


async def test_tensors_of_a_lost_seat_are_freed_when_a_state_is_loaded_anew(bench: Bench) -> None:
    await bench.tell(do.TakeBoundary(K))
    bench.driver.tensor_received(PEER, K, memoryview(b"y" * 16))
    await bench.tell(do.InitialiseState(SEAT))
    await bench.tell(do.StreamTensor(K, PEER, 0), do.VerifyTensor(K))
    assert told(bench, "stream") == []
    assert bench.trainer.done("verify") == []


@pytest.mark.parametrize(
    ("job", "effect"),
    [("take_boundary", do.TakeBoundary(K)), ("verify", do.VerifyTensor(K)), ("release_exchange", do.AddCorrection(K))],
)
async def test_job_that_ends_after_the_state_was_loaded_anew_is_not_heard(
    bench: Bench, job: str, effect: do.Effect
) -> None:
    """The next plan would take its end for that of its own job."""
    go_on, plain = asyncio.Event(), getattr(bench.trainer, job)

    async def slow(*arguments: Any) -> Any:
        await go_on.wait()
        return await plain(*arguments)

    setattr(bench.trainer, job, slow)
    bench.driver.tensor_received(PEER, K, memoryview(b"y" * 16))
    await bench.tell(effect)
    await bench.tell(do.InitialiseState(SEAT))
    go_on.set()
    await bench.settle()
    assert [type(event) for event in bench.machine.heard][-1] is ev.StateLoaded
    await bench.tell(do.StreamTensor(K, PEER, 0))
    assert told(bench, "stream") == []
