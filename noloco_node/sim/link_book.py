"""All exchange links of a simulated swarm, each known to both of its ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from noloco_node.core.types import PeerId
from noloco_node.sim.exchange_link import End, Link

if TYPE_CHECKING:
    from noloco_node.sim.virtual_node import VirtualNode


class LinkBook:
    """Links by outer step and pair, kept to the end of the run: checkers ask when they were up."""

    def __init__(self) -> None:
        self._links: dict[tuple[int, PeerId, PeerId], Link] = {}

    def find(self, outer_step: int, one: PeerId, other: PeerId) -> Link | None:
        first, second = sorted((one, other))
        return self._links.get((outer_step, first, second))

    def between(self, outer_step: int, near: VirtualNode, far: VirtualNode) -> Link:
        """The link of the pair; an end of an earlier process is made anew."""
        first, second = sorted((near.peer, far.peer))
        key = (outer_step, first, second)
        link = self._links.get(key)
        if link is None:
            link = self._links[key] = Link(outer_step, {n.number: End(n, n.life) for n in (near, far)})
        for node, peer in ((near, far.peer), (far, near.peer)):
            if not link.ends[node.number].lives:
                link.ends[node.number] = End(node, node.life)
            if node.is_up:
                node.exchanges.links[outer_step, peer] = link
        return link
