"""A network of our own for node processes: one namespace each, joined by a switch, whose links can be cut and slowed.

Owns namespaces and links, and removes them. Addresses look public, because nodes do not announce private ones. Where
the kernel or the user's rights do not allow namespaces, `Loopback` stands in: no link of it can be cut.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

CLONE_NEWNET = 0x40000000
NODE_LINK = "wan0"
SUBNET = "11.77"  # is_global, and nobody's here: nothing leaves the namespaces
PORT = 4001
BURST_BYTES, BURST_S = 16_384, 0.002  # of a slowed link, the larger of both
NUMBERS = itertools.count()  # several networks in one process


class NetworkLab(Protocol):
    """Where nodes run. `name` names a node; each is added once and keeps its address for good."""

    words: str  # what the report says about it
    can_cut: bool

    def add(self, name: str) -> None: ...

    def prefix(self, name: str) -> list[str]:
        """Comes before the command of a process that is to run at the node's place."""
        ...

    def flags(self, name: str) -> list[str]:
        """Of `noloco-node run`: where to listen."""
        ...

    def enter(self, name: str) -> None:
        """The calling thread lives at the node's place from now on: there it reaches the node's status pages."""
        ...

    def cut(self, name: str) -> None: ...

    def heal(self, name: str) -> None: ...

    def slow(self, name: str, bytes_per_s: int) -> None:
        """What the node sends is held to this rate; 0: as fast as it can."""
        ...

    def close(self) -> None: ...


@dataclass(slots=True)
class Loopback:
    """Everything on 127.0.0.1."""

    words: str
    can_cut: bool = False

    def add(self, name: str) -> None:
        return None

    def prefix(self, name: str) -> list[str]:
        return []

    def flags(self, name: str) -> list[str]:
        return ["--listen", "/ip4/127.0.0.1/tcp/0", "--allow-private"]

    def enter(self, name: str) -> None:
        return None

    def cut(self, name: str) -> None:
        raise RuntimeError("a loopback cannot be cut")

    heal = cut

    def slow(self, name: str, bytes_per_s: int) -> None:
        raise RuntimeError("a loopback cannot be slowed")

    def close(self) -> None:
        return None


@dataclass(slots=True)
class Namespaces:
    """A bridge in a namespace of its own, a veth pair to each node's."""

    words: str = "network namespaces"
    can_cut: bool = True
    _hosts: dict[str, int] = field(default_factory=dict)
    _is_open: bool = False
    _number: int = field(default_factory=lambda: next(NUMBERS))

    @property
    def _switch(self) -> str:
        return self._space("switch")

    def _space(self, name: str) -> str:
        return f"nl{os.getpid()}-{self._number}-{name}"

    def open(self) -> None:
        """Raises OSError or CalledProcessError where namespaces are impossible."""
        _remove_those_of_the_dead()
        _ip("netns", "add", self._switch)
        self._is_open = True
        _ip("-n", self._switch, "link", "add", "bridge0", "type", "bridge")
        _ip("-n", self._switch, "link", "set", "bridge0", "up")

    def add(self, name: str) -> None:
        space, port = self._space(name), _port_of(name)
        self._hosts[name] = host = len(self._hosts) + 1
        _ip("netns", "add", space)
        _ip("link", "add", NODE_LINK, "netns", space, "type", "veth", "peer", "name", port, "netns", self._switch)
        _ip("-n", self._switch, "link", "set", port, "master", "bridge0", "up")
        _ip("-n", space, "addr", "add", f"{SUBNET}.0.{host}/24", "dev", NODE_LINK)
        for link in ("lo", NODE_LINK):
            _ip("-n", space, "link", "set", link, "up")

    def prefix(self, name: str) -> list[str]:
        return ["ip", "netns", "exec", self._space(name)]

    def flags(self, name: str) -> list[str]:
        return ["--listen", f"/ip4/{SUBNET}.0.{self._hosts[name]}/tcp/{PORT}"]

    def enter(self, name: str) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        with open(f"/run/netns/{self._space(name)}") as place:
            if libc.setns(place.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")

    def cut(self, name: str) -> None:
        """At the switch: the node itself sees a link without carrier, and packets go nowhere without a word."""
        _ip("-n", self._switch, "link", "set", _port_of(name), "down")

    def heal(self, name: str) -> None:
        _ip("-n", self._switch, "link", "set", _port_of(name), "up")

    def slow(self, name: str, bytes_per_s: int) -> None:
        shaping = ["qdisc", "replace", "dev", NODE_LINK, "root"]
        burst = max(BURST_BYTES, int(bytes_per_s * BURST_S))  # below it the kernel's timer holds a fast link back
        rate = ["tbf", "rate", f"{8 * bytes_per_s}bit", "burst", str(burst), "latency", "200ms"]
        _run(["tc", "-n", self._space(name), *shaping, *(rate if bytes_per_s else ["pfifo"])])

    def close(self) -> None:
        names = [self._space(name) for name in self._hosts] + [self._switch] * self._is_open
        for space in names:
            subprocess.run(["ip", "netns", "del", space], capture_output=True, check=False)
        self._hosts.clear()


def open_network() -> NetworkLab:
    """Namespaces where they are possible, else loopback with the reason in its words."""
    network = Namespaces()
    try:
        network.open()
        network.add("probe")
        network.slow("probe", 1_000_000)
    except (OSError, subprocess.CalledProcessError) as error:
        network.close()
        return Loopback(f"loopback, no link is cut: {_reason(error)}")
    return network


def _remove_those_of_the_dead() -> None:
    """A process that was killed leaves its namespaces behind."""
    for name in Path("/run/netns").glob("nl*-*-*"):
        owner = re.match(r"nl(\d+)-", name.name)
        if owner is not None and not Path(f"/proc/{owner[1]}").exists():
            subprocess.run(["ip", "netns", "del", name.name], capture_output=True, check=False)


def sent_bytes(pid: int) -> int:
    """What the link of the process's namespace has sent so far."""
    found = re.search(rf"{NODE_LINK}:((?:\s+\d+){{9}})", Path(f"/proc/{pid}/net/dev").read_text())
    return int(found[1].split()[8]) if found else 0


def _port_of(name: str) -> str:
    return f"p-{name}"  # at the switch; 15 characters at most


def _ip(*words: str) -> None:
    _run(["ip", *words])


def _run(command: Sequence[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


def _reason(error: OSError | subprocess.CalledProcessError) -> str:
    return error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) else str(error)
