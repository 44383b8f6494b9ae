"""Rivals of the exchange benchmark over a real shaped link."""

from __future__ import annotations

import subprocess

import pytest
from link import Link, shaped_link
from model_sizes import FLOAT_BYTES, count_of
from rival_runs import run_rivals

PARAMETERS = 1_000_000
OVERHEAD = 0.15  # headers, and acknowledgements of what the other sends


def spaces() -> set[str]:
    return set(subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout.splitlines())


def opened_link() -> Link:
    """Skips where namespaces are impossible."""
    try:
        with shaped_link(1000) as link:
            return link
    except SystemExit as reason:
        pytest.skip(str(reason))


@pytest.mark.slow
def test_rivals_send_what_their_protocols_say_and_leave_nothing() -> None:
    prefix = opened_link().network.prefix("a")[-1].rsplit("-", 2)[0]  # of this process's namespaces
    with shaped_link(1000) as link:
        found = run_rivals(link, ["authors", "all-reduce"], PARAMETERS, 1, 100.0)
    tensor_bytes = FLOAT_BYTES * count_of(PARAMETERS)
    assert found["authors"].sent_bytes == [pytest.approx(2 * tensor_bytes, rel=OVERHEAD)]
    assert found["all-reduce"].sent_bytes == [pytest.approx(tensor_bytes, rel=OVERHEAD)]
    assert [space for space in spaces() if space.startswith(prefix)] == []
