"""Metrics after a made-up sequence of events and effects."""

from __future__ import annotations

import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

from noloco_node.core import effects as do
from noloco_node.core import events as ev
from noloco_node.core.exchange_reason import Reason
from noloco_node.core.types import MicroBatchId, Offer, OfferAnswer, Outcome, PeerId, Phase, Seat, SeatState
from noloco_node.ports import Observer
from noloco_node.telemetry.metrics import NodeMetrics

PEER = PeerId("12D3KooWAnbdW4LhxzqLrnMXyFPG2rcvKVSd7xCcTqNMvSyd5A5c")


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def metrics(clock: Clock) -> NodeMetrics:
    return NodeMetrics(clock)


def value(metrics: NodeMetrics, name: str, **labels: str) -> float | None:
    return metrics.instruments.registry.get_sample_value(f"noloco_{name}", labels)


def feed(metrics: NodeMetrics, *messages: object) -> None:
    for message in messages:
        (metrics.event if type(message).__module__ == ev.__name__ else metrics.effect)(message)


def test_it_is_an_observer(metrics: NodeMetrics) -> None:
    observer: Observer = metrics
    observer.event(object())  # what it does not know it passes over


def test_every_kind_of_event_and_effect_it_listens_to_exists(metrics: NodeMetrics) -> None:
    known = {*ev.Event.__args__, *do.Effect.__args__}
    assert set(metrics._handlers) <= known


def test_inner_step_counts_tokens_loss_and_micro_batches(metrics: NodeMetrics) -> None:
    feed(metrics, do.RunInnerStep(tokens=200, position=7, loss_sum=500.0, micro_batches=3), ev.InnerStepDone(0.5))
    assert value(metrics, "tokens_total") == 200
    assert value(metrics, "loss") == 2.5
    assert value(metrics, "gradient_norm") == 0.5
    assert value(metrics, "micro_batches_total", result="trained") == 3
    assert value(metrics, "inner_steps_total", result="applied") == 1
    assert value(metrics, "inner_step") == 1


def test_skipped_inner_step_counts_no_tokens(metrics: NodeMetrics) -> None:
    step = do.RunInnerStep(tokens=200, position=7, loss_sum=500.0, micro_batches=3)
    feed(metrics, step, ev.InnerStepDone(float("nan"), applied=False))
    assert value(metrics, "tokens_total") == 0
    assert value(metrics, "inner_steps_total", result="skipped") == 1
    assert value(metrics, "gradient_norm") == 0


def test_paired_exchange_is_timed_from_the_boundary_to_the_close(metrics: NodeMetrics, clock: Clock) -> None:
    feed(metrics, do.TakeBoundary(4))
    clock.now_s += 0.25
    feed(metrics, ev.BoundaryTaken(4, 100, b"", ""))
    clock.now_s += 2.0
    feed(metrics, do.CloseExchange(4, PEER, Outcome.PAIRED, Reason.COMMITTED), ev.CorrectionAdded(4))
    assert value(metrics, "exchange_seconds_sum") == 2.0
    assert value(metrics, "device_job_seconds_sum", job="boundary") == 0.25
    assert value(metrics, "outer_steps_total", outcome="paired", reason="committed") == 1
    assert value(metrics, "corrections_total", result="added") == 1
    assert (value(metrics, "outer_step"), value(metrics, "inner_step")) == (5, 0)


def test_solo_steps_are_told_apart_by_reason_and_not_timed(metrics: NodeMetrics) -> None:
    for reason in (Reason.NO_PARTNER, "partner: deadline", "a stranger's own words"):
        feed(metrics, ev.BoundaryTaken(4, 100, b"", ""), do.CloseExchange(4, PEER, Outcome.SOLO, reason))
    for label in ("no_partner", "partner_deadline", "other"):
        assert value(metrics, "outer_steps_total", outcome="solo", reason=label) == 1
    assert value(metrics, "exchange_seconds_count") == 0


def test_strangers_cannot_make_series(metrics: NodeMetrics) -> None:
    for number in range(200):
        word = f"word{number}"
        feed(metrics, do.CloseExchange(1, PEER, Outcome.SOLO, word), ev.TensorRefused(1, word))
        feed(metrics, ev.StateLoaded(1, 0, 0, word))
        metrics.traffic(word, word, 1)
        metrics.count_strike(word)
        metrics.count_refused_call(word)
    assert b"word" not in metrics.render()
    assert value(metrics, "strikes_total", reason="other") == 200
    assert value(metrics, "traffic_bytes_total", service="other", direction="other") == 200


def test_micro_batch_answered_downstream_is_not_dropped(metrics: NodeMetrics) -> None:
    feed(
        metrics,
        ev.MicroBatchArrived(1, MicroBatchId(0, 9), b"", 10, 0),
        do.RunForward(1),
        ev.ForwardDone(1),
        do.CallNextStage(1, MicroBatchId(0, 9), 0, Seat(2, 0), PEER),
        ev.GradientArrived(1, 1.0, 10),
        do.RunBackward(1),
        ev.BackwardDone(1),
        do.ReturnGradient(1, 1.0, 10),
        do.ForgetMicroBatch(1),
    )
    assert value(metrics, "micro_batches_total", result="dropped") == 0
    assert value(metrics, "micro_batches_open") == 0


def test_detour_is_one_resend_and_a_busy_candidate_is_none(metrics: NodeMetrics) -> None:
    call = do.CallNextStage(1, MicroBatchId(0, 9), 0, Seat(1, 0), PEER)
    feed(metrics, ev.MicroBatchDrawn(1, 9, 10), call, ev.HopRefused(1, Seat(1, 0)), call)
    assert value(metrics, "micro_batch_incidents_total", kind="resent") == 0
    feed(metrics, ev.HopBroken(1, Seat(1, 0), "lost"), call)
    assert value(metrics, "micro_batch_incidents_total", kind="resent") == 1
    assert value(metrics, "micro_batch_incidents_total", kind="busy_received") == 1
    assert value(metrics, "micro_batch_incidents_total", kind="hop_broken") == 1


def test_given_up_late_replayed_and_busy_are_counted(metrics: NodeMetrics) -> None:
    feed(metrics, ev.MicroBatchDrawn(1, 9, 10), do.ForgetMicroBatch(1))
    feed(metrics, ev.MicroBatchArrived(2, MicroBatchId(0, 1), b"", 1, 0), do.AnswerBusy(2))
    feed(metrics, ev.MicroBatchArrived(3, MicroBatchId(0, 2), b"", 1, 0), do.DropGraph(3))
    feed(metrics, do.ReturnGradient(3, 1.0, 1, replayed=True), ev.GradientArrived(4, 1.0, 1, replayed=True))
    assert value(metrics, "micro_batches_total", result="dropped") == 1
    assert value(metrics, "micro_batch_incidents_total", kind="busy_answered") == 1
    assert value(metrics, "micro_batch_incidents_total", kind="late") == 1
    assert value(metrics, "micro_batch_incidents_total", kind="replayed") == 2
    assert value(metrics, "micro_batches_open") == 1


def test_checkpoint_is_timed_and_shown(metrics: NodeMetrics, clock: Clock) -> None:
    feed(metrics, do.SaveCheckpoint(3, 0, 12, None))
    clock.now_s += 0.5
    feed(metrics, ev.CheckpointSaved(3))
    assert (value(metrics, "checkpoint_seconds_sum"), value(metrics, "checkpoint_outer_step")) == (0.5, 3)


def test_seat_and_phase_show_one_value_at_a_time(metrics: NodeMetrics) -> None:
    for replica, state in ((0, SeatState.JOINING), (1, SeatState.ACTIVE)):
        feed(metrics, do.PublishRecord(Seat(1, replica), state, None, 6, 0, 0))
    metrics.set_phase(Phase.TRAINING)
    assert value(metrics, "seat_info", stage="1", replica="0", state="joining") is None
    assert value(metrics, "seat_info", stage="1", replica="1", state="active") == 1
    phases = [sample.value for sample in next(iter(metrics.instruments.phase.collect())).samples]
    assert (sum(phases), value(metrics, "phase", phase="training")) == (1, 1)
    assert value(metrics, "outer_step") == 6


def test_setters_and_totals(metrics: NodeMetrics) -> None:
    metrics.traffic("exchange", "sent", 100)
    metrics.traffic("pipeline", "sent", 20)
    metrics.traffic("pipeline", "received", 3)
    metrics.count_strike("a chunk's checksum is wrong")
    metrics.count_refused_call("bad record: record has expired")
    metrics.count_p2pd_restart()
    metrics.count_state_upload(complete=True)
    metrics.set_bootstrap_state("waiting")
    metrics.set_spread(0.25)
    metrics.set_learning_rate(1e-3)
    metrics.set_peers(3)
    feed(
        metrics,
        ev.OfferAnswered(Offer(1, Seat(0, 0), Seat(0, 1)), OfferAnswer.AGREED),
        ev.SeatsRead((Seat(0, 0), Seat(1, 0)), True),
    )
    feed(metrics, do.CloseExchange(1, PEER, Outcome.SOLO, "deadline"))
    totals = metrics.totals()
    assert (totals["bytes_sent"], totals["bytes_received"], totals["strikes"]) == (120, 3, 1)
    assert totals["outer_steps"] == {"paired": 0, "solo": 1}
    assert value(metrics, "strikes_total", reason="damaged") == 1
    assert value(metrics, "calls_refused_total", reason="expired") == 1
    assert value(metrics, "bootstrap_state", state="joined") == 1
    assert value(metrics, "offers_total", answer="agreed") == 1
    assert value(metrics, "seat_look_ups_total") == 2


def test_names_are_prefixed_and_units_stand_last(metrics: NodeMetrics) -> None:
    names = [family.name for family in text_string_to_metric_families(metrics.render().decode())]
    assert len(names) > 30
    assert all(re.fullmatch(r"noloco_[a-z0-9_]+", name) for name in names)
    unit_inside = re.compile(r"_(seconds|bytes)_(?!total|created)")
    assert not [name for name in names if unit_inside.search(name)]


def test_two_nodes_in_one_process_do_not_share_a_registry(metrics: NodeMetrics, clock: Clock) -> None:
    other = NodeMetrics(clock)
    metrics.count_p2pd_restart()
    assert value(other, "p2pd_restarts_total") == 0


def test_resident_memory_is_read(metrics: NodeMetrics) -> None:
    assert (value(metrics, "resident_memory_bytes") or 0) > 1 << 20
