"""Which hops are taken: from the stage before, numbers within the run, the run's shape."""

from dataclasses import replace

import pytest
from driver_bench import PEER, SEAT, SETTINGS, THERE, Bench, record_of

from noloco_node.core.types import MicroBatchId, Seat
from noloco_node.driver.hop_rules import HopForm, HopRules
from noloco_node.errors import RemoteProtocolError
from noloco_node.ports import HopHeader

RULES = HopRules(SETTINGS, HopForm("bfloat16", (2, 8, 4)))
FITS = HopHeader(MicroBatchId(1, 3), 5, "bfloat16", (2, 8, 4))


@pytest.mark.parametrize(
    "changes",
    [
        {"id": MicroBatchId(SETTINGS.num_replicas, 0)},
        {"id": MicroBatchId(0, 2**63)},
        {"position": SETTINGS.total_outer_steps * SETTINGS.inner_steps + 1},
        {"dtype": "float32"},
        {"shape": (2, 8, 5)},
        {"shape": (64, 8, 4)},
    ],
)
def test_header_outside_the_run_is_a_breach(changes: dict[str, object]) -> None:
    RULES.check(FITS)
    with pytest.raises(RemoteProtocolError):
        RULES.check(replace(FITS, **changes))  # type: ignore[arg-type]


async def test_caller_must_hold_a_seat_of_the_stage_before(bench: Bench) -> None:
    """Not a breach: seats change hands."""
    assert bench.driver.announced(PEER, FITS) == "no lease"
    for seat, refusal in ((THERE, f"seat {THERE} is not of the stage before {SEAT}"), (Seat(0, 1), "")):
        encoded = str(seat).encode()
        bench.discovery.encoded[encoded] = record_of(PEER, seat=seat)
        assert bench.driver.doorkeeper.admit(PEER, encoded, needs_lease=True) == ""
        assert bench.driver.announced(PEER, FITS) == refusal
    assert bench.driver.doorkeeper.strikes_of(PEER) == 0.0
