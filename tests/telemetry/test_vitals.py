"""The few numbers that the status page and the record show."""

import math

from noloco_node.core import effects as do
from noloco_node.core import events as ev
from noloco_node.telemetry.vitals import Vitals


def test_loss_that_is_not_finite_is_not_counted() -> None:
    vitals = Vitals(lambda: 0.0)
    for loss_sum in (math.nan, 20.0, math.inf, math.nan):
        vitals.effect(do.RunInnerStep(tokens=10, position=0, loss_sum=loss_sum, micro_batches=1))
        vitals.event(ev.InnerStepDone(1.0))
    assert (vitals.loss, vitals.tokens_total) == (2.0, 40)
