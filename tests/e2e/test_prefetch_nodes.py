"""Mode prefetch with real nodes: phi is across before the boundary, and the bits are those of the reference."""

import re
import signal
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from node_swarm import Watched, tiny_spec, wait_until, watched_swarm

from noloco_node.cli.local_swarm import LocalNode
from noloco_node.core.codec_sizes import encoded_bytes, slow_codec
from noloco_node.core.types import Outcome, Phase, Seat
from noloco_node.lab.reference import build_reference
from noloco_node.training.footprint import stage_parameters

pytestmark = pytest.mark.slow
ONE, OTHER = Seat(0, 0), Seat(0, 1)
OUTER_STEPS, LONG_PHASE = 4, 12  # inner steps of a phase in which phi is across long before its end
PREFETCHED = re.compile(r'^noloco_traffic_bytes_total\{direction="received",service="prefetch"\} (\S+)$', re.MULTILINE)


@dataclass(slots=True)
class Seen:
    """`ahead`: bytes that node ONE had received before its partner's boundaries, as it said at last; `in_training`:
    more of them were seen to come while it trained."""

    watched: Watched
    codec: str
    ahead: float = 0.0
    in_training: int = 0

    def look(self) -> None:
        node = self.watched.node(*ONE)
        before, received, after = training_at(node), prefetched(node), training_at(node)
        if received is not None:
            self.in_training += received > self.ahead and before is not None and before == after
            self.ahead = max(received, self.ahead)


def training_at(node: LocalNode) -> int | None:
    """The outer step worked on, of a node that is between two boundaries."""
    status: dict[str, Any] = node.poll() if node.info else {}
    return status["outer_step"] if status.get("phase") == Phase.TRAINING else None


def prefetched(node: LocalNode) -> float | None:
    url = node.info.get("url")
    with suppress(OSError, ValueError), urllib.request.urlopen(f"{url}/metrics", timeout=5) as answer:
        found = PREFETCHED.search(answer.read().decode())
        return None if found is None else float(found[1])
    return None


@pytest.fixture(scope="module", params=["float32", "int4"])
def seen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    """Two nodes that ran to the end by themselves."""
    outer = {"codec": request.param, "total_outer_steps": OUTER_STEPS, "inner_steps": LONG_PHASE}
    spec = tiny_spec(1, 2, mode="prefetch", **outer)
    with watched_swarm(tmp_path_factory.mktemp("prefetched"), spec) as watched:
        found = Seen(watched, request.param)
        watched.start()

        def over() -> bool:
            found.look()
            return not watched.swarm.running

        wait_until(over, 200.0, "the run is over", watched.last_words)
        watched.wait_for_end()
        yield found


@pytest.mark.parametrize("seat", [ONE, OTHER], ids=str)
def test_every_outer_step_is_paired(seen: Seen, seat: Seat) -> None:
    closed = seen.watched.history(seat, "outer")
    assert [(entry["outer_step"], entry["outcome"]) for entry in closed] == [
        (k, Outcome.PAIRED) for k in range(OUTER_STEPS)
    ], closed


def test_slow_weights_are_here_before_each_boundary(seen: Seen) -> None:
    """All of phi^ for each outer step, and no more. The last may have come after the last look."""
    found = seen.watched.newest_checkpoint(ONE)
    assert found is not None
    values = sum(tensor.numel() for tensor in found[1]["slow"].values())
    each = encoded_bytes(slow_codec(seen.codec), values)
    assert seen.ahead in ((OUTER_STEPS - 1) * each, OUTER_STEPS * each)
    assert seen.in_training > 0


def test_float32_has_the_bits_of_the_reference(seen: Seen) -> None:
    if seen.codec != "float32":
        pytest.skip("the reference has no codecs")
    torch.set_num_threads(1)
    swarm = build_reference(seen.watched.spec.training_settings())
    for outer_step in range(OUTER_STEPS):
        swarm.run_outer_step(outer_step)
    for seat, replica in swarm.seats.items():
        found = seen.watched.newest_checkpoint(seat)
        assert found is not None
        for part, expected in (("slow", replica.slow), ("momentum", replica.momentum), ("fast", replica.fast)):
            unequal = [name for name, value in expected.items() if not torch.equal(found[1][part][name], value)]
            assert unequal == [], (seat, part)


def test_nothing_stays_behind(seen: Seen) -> None:
    seen.watched.assert_nothing_left()


def test_a_partner_killed_after_its_slow_weights_came_leaves_the_other_alone(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    timing = {"lease_s": 10.0, "renew_s": 2.5, "grace_s": 10.0, "exchange_max_s": 20.0, "late_s": 40.0}
    spec = tiny_spec(1, 2, mode="prefetch", inner_steps=20, total_outer_steps=3, timing=timing)
    with watched_swarm(tmp_path_factory.mktemp("bereft"), spec) as watched:
        watched.start()
        survivor, lost = watched.node(*ONE), watched.node(*OTHER)
        (values,) = stage_parameters(spec.training_settings())
        ahead = 2 * encoded_bytes("float32", values)  # of the first phase, and of the second
        wait_until(lambda: (prefetched(survivor) or 0.0) >= ahead, 120.0, "phi comes twice", watched.last_words)
        assert watched.stop(lost, signal.SIGKILL) == -signal.SIGKILL
        watched.wait_for_end(lost)
        outcomes = [entry["outcome"] for entry in watched.history(ONE, "outer")]
        assert (len(outcomes), outcomes[0], outcomes[-1]) == (3, Outcome.PAIRED, Outcome.SOLO)
        found = watched.newest_checkpoint(ONE)
        assert found is not None
        assert found[0].outer_step == 3
