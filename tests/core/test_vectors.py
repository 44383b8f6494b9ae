"""Golden vectors: the seeded draws as versions of the node have agreed on them.

Each is also computed by a second, plain implementation of what DESIGN section 3 says, so that the vectors cannot just
repeat a mistake. A vector that changes is a new protocol version.
"""

from __future__ import annotations

import json
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from noloco_node.core import pairing, routing
from noloco_node.core import seed as draws
from noloco_node.core.seats import standing
from noloco_node.core.types import PeerId, Seat, SeatRecord, SeatState

VECTORS = Path(__file__).parents[1] / "vectors"


def cases(file: str, table: str) -> list[Any]:
    found: list[Any] = json.loads((VECTORS / file).read_text(encoding="utf-8"))[table]
    assert found
    return found


def plain_integers(seed: int, word: str, coordinates: list[int | str], count: int) -> list[int]:
    message = b""
    for value in [word, *coordinates]:
        if isinstance(value, str):
            content = value.encode("utf-8")
        else:
            content = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
        message += (b"s" if isinstance(value, str) else b"i") + len(content).to_bytes(4, "little") + content
    numbers: list[int] = []
    while len(numbers) < count:
        block = message + (len(numbers) // 8).to_bytes(8, "little")
        digest = blake2b(block, key=seed.to_bytes(8, "little"), person=b"noloco/1").digest()
        numbers += [int.from_bytes(digest[at : at + 8], "little") for at in range(0, 64, 8)]
    return numbers[:count]


def plain_permutation(seed: int, word: str, coordinates: list[int | str], n: int) -> list[int]:
    stream = iter(plain_integers(seed, word, coordinates, 4 * n + 8))
    order = list(range(n))
    for place in reversed(range(1, n)):
        draw = next(stream)
        while draw >= 2**64 // (place + 1) * (place + 1):
            draw = next(stream)
        order[place], order[draw % (place + 1)] = order[draw % (place + 1)], order[place]
    return order


@pytest.mark.parametrize("case", cases("seed.json", "integers"))
def test_integers_are_the_agreed_ones(case: dict[str, Any]) -> None:
    agreed = [int(number) for number in case["first_ten"]]
    assert list(islice(draws.integers(case["seed"], case["word"], *case["coordinates"]), 10)) == agreed
    assert plain_integers(case["seed"], case["word"], case["coordinates"], 10) == agreed


@pytest.mark.parametrize("case", cases("seed.json", "permutations"))
def test_permutations_are_the_agreed_ones(case: dict[str, Any]) -> None:
    seed, word, coordinates, n = case["seed"], case["word"], case["coordinates"], case["n"]
    assert list(draws.permutation(seed, word, *coordinates, n=n)) == case["order"]
    assert plain_permutation(seed, word, coordinates, n) == case["order"]


@pytest.mark.parametrize("case", cases("seed.json", "digests"))
def test_digests_are_the_agreed_ones(case: dict[str, Any]) -> None:
    assert draws.digest(case["word"], *case["coordinates"]).hex() == case["hex"]


@pytest.mark.parametrize("case", cases("pairing.json", "groups"))
def test_groups_are_the_agreed_ones(case: dict[str, Any]) -> None:
    seed, stage, outer_step, num_replicas = (case[k] for k in ("seed", "stage", "outer_step", "num_replicas"))
    groups = [list(group) for group in pairing.groups(seed, stage, outer_step, num_replicas)]
    order = plain_permutation(seed, "pairing", [stage, outer_step], num_replicas)
    num_groups = (num_replicas + 1) // 2
    assert groups == case["groups"] == [order[g::num_groups] for g in range(num_groups)]


@pytest.mark.parametrize("case", cases("pairing.json", "partners"))
def test_partners_are_the_agreed_ones(case: dict[str, Any]) -> None:
    seed, stage, outer_step, num_replicas = (case[k] for k in ("seed", "stage", "outer_step", "num_replicas"))
    drawn = [pairing.partner(seed, stage, outer_step, num_replicas, replica) for replica in range(num_replicas)]
    assert drawn == case["partners"]


@pytest.mark.parametrize("case", cases("pairing.json", "repair_orders"))
def test_repair_orders_are_the_agreed_ones(case: dict[str, Any]) -> None:
    seed, stage, outer_step, replica = (case[k] for k in ("seed", "stage", "outer_step", "replica"))
    order = list(pairing.repair_order(seed, stage, outer_step, replica, case["others"]))
    liking = {
        other: plain_integers(seed, "repair", [stage, outer_step, min(replica, other), max(replica, other)], 1)
        for other in case["others"]
        if other != replica
    }
    assert order == case["order"] == sorted(liking, key=lambda other: liking[other])


@pytest.mark.parametrize("case", cases("routing.json", "candidates"))
def test_candidates_are_the_agreed_ones(case: dict[str, Any]) -> None:
    seed, stage, n, origin, num_replicas = (case[k] for k in ("seed", "stage", "n", "origin", "num_replicas"))
    order = plain_permutation(seed, "routing", [stage, n], num_replicas)
    expected = [order[(origin + step) % num_replicas] for step in range(num_replicas)]
    assert list(routing.candidates(seed, stage, n, origin, num_replicas)) == case["candidates"] == expected


@pytest.mark.parametrize("case", cases("routing.json", "ordered_ids"))
def test_ordered_ids_are_the_agreed_ones(case: dict[str, Any]) -> None:
    arguments = (case[k] for k in ("seed", "stage", "inner_step", "replica", "micro_batches", "num_replicas"))
    assert [[id.origin, id.n] for id in routing.ordered_ids(*arguments)] == case["ids"]


@pytest.mark.parametrize("case", cases("seats.json", "standings"))
def test_standings_of_claims_are_the_agreed_ones(case: dict[str, Any]) -> None:
    seat, peer = Seat(*case["seat"]), PeerId(case["peer"])
    record = SeatRecord(case["run"], seat, peer, 1, 1, case["claim"], 1, SeatState.ACTIVE)
    claim, tie = standing(record)
    assert [claim, tie.hex()] == case["standing"]
