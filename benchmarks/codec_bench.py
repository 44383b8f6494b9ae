"""Codecs of the exchange: size, speed on one thread, and how much of the correction c survives.

    python benchmarks/codec_bench.py [--quick] [--values N] [--runs N] [--json FILE]

Speeds are in GB of float32 x per second of this thread's processor time, the best of the runs: what else the machine
does changes them little. `encode`: rotation, sketch and bytes; `decode`: c from both sides' bytes. Two replicas are
normal draws, weights of standard deviation 0.02, that differ by 5 % of it, or by 0.1 % (`close`); `sqnr_db` is the
power of c over that of its error. `max_error_over_bound`: of x where a codec sends x, else of the rotated difference,
against half a unit of what is sent (bfloat16: 2^-8 of the value; a lattice: one scale, half on either side).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from noloco_node.training.codec import NAMES, Codec, codec, value_codec
from noloco_node.training.codec.rotation import hadamard

SEED = 7
WEIGHT_STD, FAR, CLOSE = 0.02, 0.05, 0.001
LATTICES = ("lattice5", "lattice4")


class Pair:
    """Two replicas' x, `distance` of its standard deviation apart, and what one codec makes of them."""

    def __init__(self, name: str, num_values: int, distance: float) -> None:
        draws = torch.Generator().manual_seed(SEED)
        self.a = WEIGHT_STD * torch.randn(num_values, generator=draws)
        self.b = self.a + distance * WEIGHT_STD * torch.randn(num_values, generator=draws)
        self.codec: Codec = codec(name, SEED)
        prepared = [self.codec.prepare(x) for x in (self.a, self.b)]
        self.scales = self.codec.scales(*(self.codec.sketch(each) for each in prepared))
        self.encoded = [torch.empty(self.codec.encoded_bytes(num_values), dtype=torch.uint8) for _ in prepared]
        for each, out in zip(prepared, self.encoded, strict=True):
            self.codec.encode(each, self.scales, out)

    def encode(self) -> None:
        prepared = self.codec.prepare(self.a)
        self.codec.sketch(prepared)
        self.codec.encode(prepared, self.scales, self.encoded[0])

    def correct(self) -> Tensor:
        return self.codec.correction(self.encoded[0], self.encoded[1], self.scales, self.a.numel()).values

    def sqnr_db(self) -> float:
        truth = (self.b.double() - self.a.double()) / 2
        error = (self.correct() - truth).square().mean()
        return float(10 * torch.log10(truth.square().mean() / error))

    def error_over_bound(self) -> float:
        if self.codec.name in LATTICES:
            return self._rotated_error_over_scale()
        decoded = value_codec(self.codec.name).decode(self.encoded[0], self.a.numel())
        bounds = {"float32": self.a.abs(), "bfloat16": self.a.abs() * 2.0**-8}
        error = (decoded - self.a).abs()
        return float((error / (bounds.get(self.codec.name, self._half_scales()) + 1e-30)).max())

    def _half_scales(self) -> Tensor:
        width = self.codec.block_values
        heads = self.encoded[0].view(-1, self.codec.encoded_bytes(1))[:, 0].double()
        return torch.exp2(heads - 128).repeat_interleave(width)[: self.a.numel()].float()

    def _rotated_error_over_scale(self) -> float:
        """Of the blocks that are not refused: those are zero."""
        width = self.codec.block_values
        c = self.correct()
        error = torch.nn.functional.pad(c - (self.b - self.a) / 2, (0, -c.numel() % width)).view(-1, width)
        signs = self.codec._signs  # type: ignore[attr-defined]
        rotated = hadamard(error * signs) * (2 / width)
        taken = torch.nn.functional.pad(c, (0, -c.numel() % width)).view(-1, width).any(1)
        return float((rotated.abs().amax(1) / self.scales)[taken].max())


def seconds(job: Callable[[], object], runs: int) -> float:
    """Processor time of the fastest run, after one to warm up."""
    job()
    found = []
    for _ in range(runs):
        begun = time.process_time()
        job()
        found.append(time.process_time() - begun)
    return min(found)


def row(name: str, num_values: int, runs: int) -> dict[str, Any]:
    far, close = Pair(name, num_values, FAR), Pair(name, num_values, CLOSE)
    gigabytes = 4 * num_values / 1e9
    sent_bytes = far.codec.encoded_bytes(num_values) + far.codec.sketch_bytes(num_values)
    return {
        "name": name,
        "bits_per_value": round(8 * sent_bytes / num_values, 3),
        "encode_gb_s": round(gigabytes / seconds(far.encode, runs), 3),
        "decode_gb_s": round(gigabytes / seconds(far.correct, runs), 3),
        "max_error_over_bound": round(far.error_over_bound(), 3),
        "sqnr_db": round(far.sqnr_db(), 1),
        "sqnr_close_db": round(close.sqnr_db(), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a million values, three runs: some seconds")
    parser.add_argument("--values", type=int, default=1 << 24)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    num_values, runs = (1 << 20, 3) if arguments.quick else (arguments.values, arguments.runs)
    torch.set_num_threads(1)
    rows = []
    for name in NAMES:
        rows.append(row(name, num_values, runs))
        print(json.dumps(rows[-1]), flush=True)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
