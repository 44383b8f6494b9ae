"""Other ways to exchange the same weights between two processes, each a contender of the benchmarks.

    python benchmarks/rivals.py CONTENDER... --rank R --host ADDRESS --own ADDRESS --parameters P --steps K --into FILE

- `authors`: the outer step of the NoLoCo authors, written afresh from its description. Parameter by parameter,
  blocking, over a root: the other rank sends outer gradient and slow weights, the root sends both means back.
- `all-reduce`: DiLoCo. The outer gradient as one flat tensor, summed over all ranks.
- `hivemind`: its averager with groups of two, on the same flat tensor twice over (outer gradient and slow weights).
  Only the reduction counts: the group is found beforehand.

gloo is torch.distributed's; its contenders take turns, A B A B. `--into` gets for each contender {"seconds": [...],
"sent_bytes": [...]}, one value for every outer step but the first, which warms up.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from job_record import link_sent_bytes  # noqa: E402
from model_sizes import shapes_of  # noqa: E402
from torch import Tensor  # noqa: E402

ALPHA, BETA, GAMMA = 0.5, 0.7, 0.7
PORT, DHT_PORT = 29400, 29500
LIMIT_S = 600.0
HIVEMIND_MATCHING_S = 3.0


@dataclass(slots=True)
class Measured:
    seconds: list[float] = field(default_factory=list)
    sent_bytes: list[int] = field(default_factory=list)

    def add(self, step: Callable[[], object]) -> None:
        sent, begun_s = link_sent_bytes(), time.monotonic()
        step()
        self.seconds.append(time.monotonic() - begun_s)
        self.sent_bytes.append(link_sent_bytes() - sent)


Found = dict[str, Measured]


class OuterWeights:
    """Fast and slow weights and momentum of one replica, a tensor per parameter."""

    def __init__(self, shapes: list[tuple[int, ...]], dtype: torch.dtype, rank: int) -> None:
        torch.manual_seed(rank)
        self.slow = [torch.zeros(shape, dtype=dtype) for shape in shapes]
        self.fast = [torch.randn(shape).to(dtype) for shape in shapes]
        self.momentum = [torch.zeros(shape, dtype=dtype) for shape in shapes]

    def step(self, number: int, gradient: Tensor, slow: Tensor) -> None:
        """`gradient` and `slow` are the group's means of one parameter."""
        phi, delta = self.slow[number], self.momentum[number]
        delta.mul_(ALPHA).add_(gradient, alpha=BETA).add_(slow - phi, alpha=GAMMA)
        phi.add_(delta)
        self.fast[number].copy_(phi)


def authors_step(weights: OuterWeights, rank: int) -> None:
    for number, (fast, slow) in enumerate(zip(weights.fast, weights.slow, strict=True)):
        pair = [fast - slow, slow.clone()]
        if rank == 0:
            for own in pair:
                theirs = torch.empty_like(own)
                dist.recv(theirs, src=1)
                own.add_(theirs).div_(2)
            for mean in pair:
                dist.send(mean, dst=1)
        else:
            for own in pair:
                dist.send(own, dst=0)
            for own in pair:
                dist.recv(own, src=0)
        weights.step(number, *pair)


def all_reduce_step(weights: OuterWeights) -> None:
    flat = torch.cat([(fast - slow).view(-1) for fast, slow in zip(weights.fast, weights.slow, strict=True)])
    dist.all_reduce(flat)
    flat.div_(dist.get_world_size())
    parts = flat.split([slow.numel() for slow in weights.slow])
    for number, (part, slow) in enumerate(zip(parts, weights.slow, strict=True)):
        weights.step(number, part.view_as(slow), slow)


def over_gloo(options: argparse.Namespace) -> Found:
    where = f"tcp://{options.host}:{PORT}"
    limit = timedelta(seconds=LIMIT_S)
    dist.init_process_group("gloo", init_method=where, rank=options.rank, world_size=2, timeout=limit)
    weights = OuterWeights(shapes_of(options.parameters), getattr(torch, options.dtype), options.rank)
    steps = {"authors": lambda: authors_step(weights, options.rank), "all-reduce": lambda: all_reduce_step(weights)}
    found: Found = {contender: Measured() for contender in options.contender}
    try:
        for _ in range(options.steps + 1):
            for contender, measured in found.items():
                dist.barrier()
                measured.add(steps[contender])
    finally:
        dist.destroy_process_group()
    return found


def over_hivemind(options: argparse.Namespace) -> Found:
    import hivemind

    sizes = sum(torch.Size(shape).numel() for shape in shapes_of(options.parameters))
    first = [] if options.rank == 0 else [_read_when_there(options.meet)]
    dht = hivemind.DHT(first, host_maddrs=[f"/ip4/{options.own}/tcp/{DHT_PORT}"], start=True)
    if options.rank == 0:
        options.meet.write_text(f"{next(a for a in map(str, dht.get_visible_maddrs()) if options.own in a)}\n")
    averager = hivemind.averaging.DecentralizedAverager(
        [torch.full((sizes,), float(options.rank)), torch.zeros(sizes)],
        dht,
        start=True,
        prefix="bench",
        target_group_size=2,
        min_matchmaking_time=HIVEMIND_MATCHING_S,
        allreduce_timeout=LIMIT_S,
        bandwidth=1.0,
    )
    measured = Measured()
    try:
        for _ in range(options.steps + 1):
            control = averager.step(wait=False, require_trigger=True, timeout=LIMIT_S)
            while control.stage.name != "AWAITING_TRIGGER":
                time.sleep(0.01)
            measured.add(partial(_reduce, control))
        time.sleep(1.0)  # the other may still take its last parts
    finally:
        averager.shutdown()
        dht.shutdown()
    return {"hivemind": measured}


def _reduce(control: Any) -> None:
    control.allow_allreduce()
    control.result(LIMIT_S)


def _read_when_there(path: Path) -> str:
    while not (path.exists() and path.read_text().endswith("\n")):
        time.sleep(0.1)
    return path.read_text().strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("contender", nargs="+", choices=("authors", "all-reduce", "hivemind"))
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--host", required=True, help="address of rank 0")
    parser.add_argument("--own", required=True, help="address of this rank")
    parser.add_argument("--parameters", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--meet", type=Path, help="file in which rank 0 says where it is")
    parser.add_argument("--into", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = (over_hivemind if options.contender == ["hivemind"] else over_gloo)(options)
    kept = {name: {"seconds": one.seconds[1:], "sent_bytes": one.sent_bytes[1:]} for name, one in found.items()}
    options.into.write_text(json.dumps(kept))


if __name__ == "__main__":
    main()
