"""One micro-batch looks for a replica of the next stage that takes it."""

from dataclasses import replace

from noloco_node.core import effects as do
from noloco_node.core import events as ev
from noloco_node.core import limits
from noloco_node.core.flow import MicroBatchFlow
from noloco_node.core.types import MicroBatchId, PeerId, Seat, Settings

SETTINGS = Settings(
    run="r", seed=3, num_stages=2, num_replicas=2, micro_batches=1, inner_steps=4, total_outer_steps=1, late_s=1e6
)
DEAD = PeerId("dead")


def view(seat: Seat) -> PeerId | None:
    return DEAD if seat.replica == 0 else PeerId("alive")


def sent_first(flow: MicroBatchFlow) -> list[do.Effect]:
    """Draw micro-batch 0, run its forward, hand it on."""
    flow.draws()
    flow.drawn(ev.MicroBatchDrawn(1, 0, 10), 0.0)
    work = flow.gate.next_forward(0.0)
    assert work is not None
    flow.start_forward(work, 0, 0.0)
    return flow.forward_done(ev.ForwardDone(1), view, 0.0)


def run(flow: MicroBatchFlow, effects: list[do.Effect], answers: dict[PeerId, type], until_s: float) -> list[do.Effect]:
    """Answer every attempt with what `answers` has for its peer; returns what came last."""
    now = 0.0
    while now < until_s and not any(isinstance(effect, do.ForgetMicroBatch) for effect in effects):
        calls = [effect for effect in effects if isinstance(effect, do.CallNextStage)]
        if not calls:
            deadline = flow.next_deadline(now)
            assert deadline is not None
            now = max(now, deadline)
            effects = flow.time_passed(view, now)
            continue
        kind = answers[calls[0].peer]
        reason = {"reason": "lost"} if kind is ev.HopBroken else {}
        effects = flow.hop_failed(kind(1, calls[0].seat, **reason), view, now)
    return effects


def test_a_full_queue_is_busy_and_hops_still_on_their_way_hold_no_place() -> None:
    flow = MicroBatchFlow(replace(SETTINGS, queue_max=2), Seat(1, 0))
    assert all(flow.admits(MicroBatchId(0, n), blocked=False) for n in range(4))
    for n in range(2):
        flow.arrived(ev.MicroBatchArrived(n, MicroBatchId(0, n), b"", 10, 0), 0.0, blocked=False)
    assert not any(flow.admits(MicroBatchId(0, 9), blocked=False) for _ in range(3))
    assert flow.accounts.busy == 0, "to ask changes nothing"
    assert flow.arrived(ev.MicroBatchArrived(9, MicroBatchId(0, 9), b"", 10, 0), 0.0, blocked=False) == [
        do.AnswerBusy(9)
    ]
    flow.turned_away()
    assert flow.accounts.busy == 2


def test_a_busy_replica_beside_a_dead_one_is_asked_until_it_takes_the_micro_batch() -> None:
    """The dead one stays in view until its lease ends; meanwhile the other may be exchanging weights."""
    flow = MicroBatchFlow(SETTINGS, Seat(0, 0))
    answers = {DEAD: ev.HopBroken, PeerId("alive"): ev.HopRefused}
    run(flow, sent_first(flow), answers, until_s=limits.HOP_GIVE_UP_S / 2)
    assert flow.accounts.dropped == 0
    assert flow.open == 1


def test_a_micro_batch_that_nobody_takes_is_dropped_at_last() -> None:
    flow = MicroBatchFlow(SETTINGS, Seat(0, 0))
    answers = {DEAD: ev.HopBroken, PeerId("alive"): ev.HopRefused}
    last = run(flow, sent_first(flow), answers, until_s=2 * limits.HOP_GIVE_UP_S)
    assert do.ForgetMicroBatch(1) in last
    assert (flow.accounts.dropped, flow.open) == (1, 0)


def test_a_micro_batch_that_breaks_every_replica_is_dropped_soon() -> None:
    flow = MicroBatchFlow(SETTINGS, Seat(0, 0))
    answers = {DEAD: ev.HopBroken, PeerId("alive"): ev.HopBroken}
    last = run(flow, sent_first(flow), answers, until_s=limits.HOP_GIVE_UP_S / 2)
    assert do.ForgetMicroBatch(1) in last
    assert flow.accounts.dropped == 1


def test_a_micro_batch_outlives_a_second_in_which_every_call_breaks() -> None:
    """Our own libp2p daemon is gone and comes back: calls break at once, all of them."""
    flow = MicroBatchFlow(SETTINGS, Seat(0, 0))
    run(flow, sent_first(flow), {DEAD: ev.HopBroken, PeerId("alive"): ev.HopBroken}, until_s=3.0)
    assert (flow.accounts.dropped, flow.open) == (0, 1)


def test_attempts_that_fail_do_not_put_off_the_time_at_which_a_micro_batch_is_late() -> None:
    """Else a dead replica that stays in view, or busy ones, would hold the boundary until the hop is given up."""
    flow = MicroBatchFlow(replace(SETTINGS, late_s=5.0), Seat(0, 0))
    run(flow, sent_first(flow), {DEAD: ev.HopBroken, PeerId("alive"): ev.HopRefused}, until_s=6.0)
    assert (flow.accounts.late, flow.in_flight, flow.open) == (1, 0, 1)


def test_a_micro_batch_that_comes_back_after_the_end_is_dropped() -> None:
    flow = MicroBatchFlow(SETTINGS, Seat(0, 0))
    sent_first(flow)
    flow.serve_only()
    flow.gradient_arrived(ev.GradientArrived(1, 20.0, 10))
    work = flow.gate.next_backward()
    assert work is not None
    assert flow.start_backward(work) == do.RunBackward(1, count=False)
    assert flow.backward_done(ev.BackwardDone(1), 1.0) == [do.ForgetMicroBatch(1)]
    assert (flow.accounts.trained, flow.accounts.dropped, flow.open) == (0, 1, 0)
