"""Networks of namespaces for node processes."""

from __future__ import annotations

import subprocess

import pytest
from network_lab import Loopback, open_network


def test_two_networks_of_one_process_do_not_meet_and_leave_nothing() -> None:
    first, second = open_network(), open_network()
    try:
        if isinstance(first, Loopback):
            pytest.skip(first.words)
        assert second.can_cut
        for network in (first, second):
            network.add("n0")
            network.cut("n0")
            network.heal("n0")
        assert first.prefix("n0") != second.prefix("n0")
        spaces = {network.prefix("n0")[-1] for network in (first, second)}
    finally:
        first.close()
        second.close()
    left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert [space for space in spaces if space in left] == []


def test_namespaces_of_a_process_that_was_killed_are_removed_by_the_next() -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    left = f"nl{dead.pid}-0-n0"
    network = open_network()
    network.close()
    if isinstance(network, Loopback):
        pytest.skip(network.words)
    subprocess.run(["ip", "netns", "add", left], check=True)
    open_network().close()
    assert left not in subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
