"""Micro-batches through the driver: each incoming hop hears exactly one answer, each own one goes out and back."""

import asyncio

import pytest
from driver_bench import PEER, SEAT, THERE, Bench, floats, ints, micro_batch

from noloco_node.core import effects as do
from noloco_node.core import events as ev
from noloco_node.core.types import MicroBatchId
from noloco_node.driver.micro_batch_lane import count_tokens
from noloco_node.errors import HopBusy, HopDropped, PeerLost, RemoteProtocolError
from noloco_node.ports import HopAnswer, MicroBatch


def arrive(bench: Bench, n: int = 0) -> asyncio.Future[HopAnswer] | None:
    return bench.driver.receive(PEER, micro_batch(n), b"digest")


def admit(bench: Bench) -> None:
    """Admit whatever comes, run it, answer it."""
    bench.machine.rules |= {
        ev.MicroBatchArrived: lambda event: [do.AnswerAdmitted(event.call), do.RunForward(event.call)],
        ev.ForwardDone: lambda event: [do.ReturnGradient(event.call, event.loss_sum, 2)],
    }


def call_of(bench: Bench) -> int:
    return int(bench.machine.of(ev.MicroBatchArrived)[-1].call)


async def sent_on(bench: Bench, answer: object) -> int:
    """A hop that arrived, ran forward and was handed to the next stage, which answers so."""
    bench.network.hops[PEER] = answer
    bench.machine.rules[ev.MicroBatchArrived] = lambda event: [
        do.AnswerAdmitted(event.call),
        do.RunForward(event.call),
    ]
    arrive(bench)
    await bench.settle()
    call = call_of(bench)
    await bench.tell(do.CallNextStage(call, MicroBatchId(0, 0), 5, THERE, PEER))
    return call


def test_tokens_are_the_labels_that_are_not_ignored() -> None:
    assert count_tokens(ints(7, -100, 0, -100)) == 2
    assert count_tokens(ints(-100, -100)) == 0


async def test_hop_gets_its_gradient(bench: Bench) -> None:
    admit(bench)
    answer = arrive(bench)
    assert answer is not None
    assert await answer == HopAnswer(floats(b"\2"), 2.5, 2)
    arrived = bench.machine.of(ev.MicroBatchArrived)[0]
    assert (arrived.tokens, arrived.digest) == (2, b"digest")
    await bench.settle()
    assert bench.trainer.done("forget") == [("forget", arrived.call)]


async def test_hop_is_refused_at_once_when_there_is_no_place(bench: Bench) -> None:
    bench.machine.rules[ev.MicroBatchArrived] = lambda event: [do.AnswerBusy(event.call)]
    assert arrive(bench) is None


async def test_admitted_hop_may_be_handed_back_unbegun(bench: Bench) -> None:
    bench.machine.rules[ev.MicroBatchArrived] = lambda event: [do.AnswerAdmitted(event.call)]
    answer = arrive(bench)
    assert answer is not None
    await bench.tell(do.AnswerBusy(call_of(bench)))
    with pytest.raises(HopBusy):
        await answer


async def test_given_up_hop_hears_it(bench: Bench) -> None:
    bench.machine.rules[ev.MicroBatchArrived] = lambda event: [do.AnswerAdmitted(event.call)]
    answer = arrive(bench)
    assert answer is not None
    await bench.tell(do.ForgetMicroBatch(call_of(bench), answer_dropped=True))
    with pytest.raises(HopDropped):
        await answer


async def test_lost_caller_is_told_to_the_machine_and_its_answer_goes_nowhere(bench: Bench) -> None:
    bench.machine.rules[ev.MicroBatchArrived] = lambda event: [do.AnswerAdmitted(event.call)]
    answer = arrive(bench)
    assert answer is not None
    answer.cancel()
    await bench.settle()
    call = call_of(bench)
    assert bench.machine.of(ev.CallerLost) == [ev.CallerLost(call)]
    await bench.tell(do.RunForward(call))
    await bench.tell(do.ReturnGradient(call, 1.0, 2))
    await bench.end()


async def test_answered_hop_is_not_lost_afterwards(bench: Bench) -> None:
    admit(bench)
    answer = arrive(bench)
    assert answer is not None
    await answer
    answer.cancel()
    await bench.settle()
    assert bench.machine.of(ev.CallerLost) == []


async def test_forward_that_breaks_a_rule_or_is_not_finite_is_no_end_of_the_node(bench: Bench) -> None:
    for fault in (RemoteProtocolError("bad shape"), FloatingPointError("nan")):
        bench.trainer.answers["forward"] = fault
        bench.machine.rules[ev.MicroBatchArrived] = lambda event: [do.RunForward(event.call)]
        arrive(bench)
        await bench.settle()
        assert bench.machine.of(ev.ForwardDone)[-1].finite is False
    await bench.end()


async def test_forward_of_a_micro_batch_forgotten_meanwhile_ends_as_not_finite(bench: Bench) -> None:
    """The seat is lost between the order and its start."""
    bench.machine.rules[ev.MicroBatchArrived] = lambda event: [
        do.RunForward(event.call),
        do.ForgetMicroBatch(event.call, answer_dropped=True),
    ]
    arrive(bench)
    await bench.settle()
    assert [event.finite for event in bench.machine.of(ev.ForwardDone)] == [False]
    await bench.end()


async def test_backward_of_a_micro_batch_forgotten_meanwhile_ends_as_not_finite(bench: Bench) -> None:
    call = await sent_on(bench, HopAnswer(floats(b"\4"), 1.5, 2))
    await bench.tell(do.RunBackward(call), do.ForgetMicroBatch(call, answer_dropped=True))
    assert [event.finite for event in bench.machine.of(ev.BackwardDone)] == [False]
    await bench.end()


async def test_activation_goes_to_the_next_stage_and_its_gradient_into_the_backward(bench: Bench) -> None:
    call = await sent_on(bench, HopAnswer(floats(b"\4"), 1.5, 2, replayed=True))
    (sent,) = bench.network.sent
    assert (sent.inputs, sent.position) == (floats(b"\1"), 5)
    assert bench.machine.of(ev.HopAdmitted) == [ev.HopAdmitted(call, THERE)]
    assert bench.machine.of(ev.GradientArrived) == [ev.GradientArrived(call, 1.5, 2, replayed=True)]
    await bench.tell(do.RunBackward(call))
    assert bench.trainer.done("backward") == [("backward", call, floats(b"\4"))]
    assert bench.machine.of(ev.BackwardDone) == [ev.BackwardDone(call)]


async def test_backward_that_is_not_finite_is_said_so(bench: Bench) -> None:
    call = await sent_on(bench, HopAnswer(floats(b"\4"), 1.5, 2))
    bench.trainer.answers["backward"] = FloatingPointError("nan")
    await bench.tell(do.RunBackward(call))
    assert bench.machine.of(ev.BackwardDone) == [ev.BackwardDone(call, finite=False)]


@pytest.mark.parametrize(
    ("fault", "heard"),
    [
        (HopBusy(), ev.HopRefused),
        (HopDropped("given up"), ev.HopBroken),
        (PeerLost("away"), ev.HopBroken),
        (RemoteProtocolError("garbage"), ev.HopBroken),
    ],
)
async def test_hop_that_fails_is_told_as_what_it_is(bench: Bench, fault: Exception, heard: type) -> None:
    call = await sent_on(bench, fault)
    (event,) = bench.machine.of(heard)
    assert (event.call, event.seat) == (call, THERE)


async def test_hop_given_up_is_cancelled_on_the_wire(bench: Bench) -> None:
    call = await sent_on(bench, None)
    await bench.tell(do.CancelHop(call))
    assert bench.network.cancelled == [PEER]


async def test_own_micro_batch_is_drawn_and_counted_here(bench: Bench) -> None:
    bench.trainer.answers["draw"] = micro_batch(3, ints(1, -100))
    await bench.tell(do.DrawMicroBatch(3))
    (drawn,) = bench.machine.of(ev.MicroBatchDrawn)
    assert (drawn.n, drawn.tokens) == (3, 1)


# --- the seat is lost -----------------------------------------------------------------------------


async def test_draw_that_ends_after_the_state_was_loaded_anew_is_dropped(bench: Bench) -> None:
    """The next flow would take it for its own."""
    drawn: asyncio.Future[MicroBatch] = asyncio.get_running_loop().create_future()

    async def slow_draw(n: int) -> MicroBatch:
        return await drawn

    bench.trainer.draw = slow_draw  # type: ignore[method-assign]
    await bench.tell(do.DrawMicroBatch(3))
    await bench.tell(do.InitialiseState(SEAT))
    drawn.set_result(micro_batch(3))
    await bench.settle()
    assert bench.machine.of(ev.MicroBatchDrawn) == []
    assert bench.driver.micro_batches._visits == {}


async def test_what_is_left_of_a_lost_seat_is_given_up_when_a_state_is_loaded_anew(bench: Bench) -> None:
    await sent_on(bench, None)
    await bench.tell(do.DrawMicroBatch(0))
    answers = [visit.answer for visit in bench.driver.micro_batches._visits.values()]
    assert (len(answers), answers.count(None)) == (2, 1)
    await bench.tell(do.LoadCheckpoint(SEAT))
    assert bench.driver.micro_batches._visits == {}
    assert bench.network.cancelled == [PEER]
    for answer in filter(None, answers):
        with pytest.raises(HopDropped):
            await answer
    await bench.end()
