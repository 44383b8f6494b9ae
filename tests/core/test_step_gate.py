"""Admission into the open step: order, grace and the closing of what stays incomplete."""

from noloco_node.core.step_gate import StepGate, Work
from noloco_node.core.types import Admit, MicroBatchId

M, GRACE_S, IDLE_S = 2, 20.0, 2.0
FIRST, SECOND = MicroBatchId(0, 0), MicroBatchId(1, 1)


def gate(admit: Admit) -> StepGate:
    made = StepGate(M, 4, admit, GRACE_S, IDLE_S)
    made.expect([FIRST, SECOND])
    return made


def work(call: int, micro_batch: MicroBatchId) -> Work:
    return Work(call, micro_batch, tokens=10, position=0, own=False, arrived_s=0.0)


def run(made: StepGate, visit: Work, now: float) -> None:
    made.admit(visit, now)
    made.finish(visit, now)


def test_ordered_mode_admits_in_the_order_of_the_ids() -> None:
    made = gate(Admit.ORDERED)
    second, first = work(1, SECOND), work(2, FIRST)
    made.enqueue(second)
    assert made.next_forward(0.0) is None
    made.enqueue(first)
    assert made.next_forward(0.0) is first
    made.admit(first, 0.0)
    assert made.next_forward(0.0) is second


def test_arrival_mode_admits_what_came_first() -> None:
    made = gate(Admit.ARRIVAL)
    second = work(1, SECOND)
    made.enqueue(second)
    assert made.next_forward(0.0) is second


def test_one_that_others_wait_for_is_skipped_after_the_grace() -> None:
    made = gate(Admit.ORDERED)
    second = work(1, SECOND)
    made.enqueue(second)
    assert made.next_forward(5.0) is None
    assert made.next_forward(5.0 + GRACE_S - 0.1) is None
    assert made.next_forward(5.0 + GRACE_S) is second


def test_nothing_is_skipped_while_nothing_comes_at_all() -> None:
    """A run that gathers its seats for longer than the grace loses no micro-batch by it."""
    made = gate(Admit.ORDERED)
    for now in (0.0, 3 * GRACE_S, 6 * GRACE_S):
        assert made.next_forward(now) is None
    first = work(1, FIRST)
    made.enqueue(first)
    assert made.next_forward(6 * GRACE_S) is first
    assert not made.is_full


def test_an_incomplete_step_closes_when_idle_and_in_ordered_mode_not_before_the_grace() -> None:
    for admit, closes_s in ((Admit.ARRIVAL, IDLE_S), (Admit.ORDERED, GRACE_S)):
        made = gate(admit)
        first = work(1, FIRST)
        made.enqueue(first)
        run(made, first, now=0.0)
        assert made.next_deadline(0.0) == closes_s
        assert made.next_deadline(closes_s) is None  # what is past wakes nobody, or a node that may not step spins
        assert not made.is_complete(closes_s - 0.1)
        assert made.is_complete(closes_s)
