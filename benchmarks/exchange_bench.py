"""How long an outer step blocks training, and what it sends, for each mode and for its rivals, on a slow link.

    python benchmarks/exchange_bench.py [--quick] [--mbps M...] [--params P...] [--steps K] [--json FILE]

One stage, two replicas, each in a network namespace of its own; the link between them is held to M megabits per second
each way (token bucket). Root is needed for that. Contenders:

- `noloco-node` in each of its modes: two real nodes (`pair`, `stand_in`) whose device is a stand-in. `blocking_s` is
  the wall time of an outer step less what the stand-in held the training thread for and less the copy for a
  checkpoint, taken from the thread's own record; of the two nodes the slower one counts. In `joint` one micro-batch
  (HOLD_S) may run while the exchange is under way. Of `stream` the outer steps of one round are added up, so that all
  rows have moved all weights once. `goodput_share`: bytes of x per second and direction, both ways at once, from the
  later boundary to the later arrival, of the link's rate (not told of `prefetch`: most bytes came before). `parts_s`:
  where the slower node's exchange spent its time.
- `authors`, `all-reduce`, `hivemind`: `rivals`, float32 like ours.
- `link`: iperf3, what TCP needs at least for the bytes of x.

Medians over K outer steps, the first left out. `ratio_to_authors` is of blocking seconds. The rows say the load of the
machine (`load`, 1 minute): quote ratios.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from figures import Row, exchange_row, own_row, with_ratios
from link import Link, raw_link_rates, shaped_link, stops_as_exits
from model_sizes import FLOAT_BYTES, count_of
from pair import Mode, Pace, run_pair
from rival_runs import run_rivals

from noloco_node.core.codec_sizes import encoded_bytes, slow_codec

MBPS, PARAMS, STEPS = (100, 1000), (16_000_000, 64_000_000), 5
QUICK_MBPS, QUICK_PARAMS, QUICK_STEPS = (100,), (1_000_000,), 2
HOLD_S = 0.25
INNER_STEPS_MIN = 4
SAVING_S = 0.15e-6  # per parameter: so long a checkpoint is being written, beside the next phase
TRAVEL_FACTOR, WORK_S = 1.2, 0.1e-6  # of the link's time for x; on top per parameter: room for a busy machine
OWN_DEADLINE = 2.5  # in overlap an exchange has half an outer step
FRAGMENTS = 4
CODECS = {
    "joint": ("float32", "int8", "int4"),
    "prefetch": ("float32", "int8", "int4"),
    "overlap": ("float32",),
    "stream": ("float32", "int8", "lattice5"),
}
LIMIT_FACTOR, LIMIT_SLACK_S = 4.0, 120.0


def modes(quick: bool) -> list[Mode]:
    """Every mode, with the codecs that tell something new of it."""
    if quick:
        return [Mode("joint"), Mode("stream", 2)]
    fragments = {"stream": FRAGMENTS}
    return [Mode(name, fragments.get(name, 1), codec) for name, codecs in CODECS.items() for codec in codecs]


def pace_of(mode: Mode, parameters: int, link_rate: float) -> Pace:
    """Time enough that a checkpoint is written before the next exchange, and the exchange over in its time; in prefetch
    that slow weights are across before the boundary."""
    part = parameters // mode.fragments
    phase_s = SAVING_S * part
    if mode.name == "prefetch":
        slow_bytes = encoded_bytes(slow_codec(mode.codec), part)
        phase_s += TRAVEL_FACTOR * slow_bytes / link_rate + WORK_S * part + 2 * HOLD_S
    elif mode.name != "joint":
        exchange_s = TRAVEL_FACTOR * encoded_bytes(mode.codec, part) / link_rate + WORK_S * part + 2 * HOLD_S
        phase_s = max(phase_s, OWN_DEADLINE * exchange_s)
    return Pace(max(INNER_STEPS_MIN, math.ceil(phase_s / HOLD_S)), HOLD_S)


def measure(link: Link, parameters: int, steps: int, quick: bool) -> Iterator[Row]:
    real = count_of(parameters)
    setting = {"link_mbps": link.mbps, "params": real}
    tensor_bytes = FLOAT_BYTES * real
    serial_s = steps * 4 * tensor_bytes / link.bytes_per_s
    limit_s = LIMIT_SLACK_S + LIMIT_FACTOR * serial_s
    with tempfile.TemporaryDirectory(prefix="nb") as folder:
        rates = raw_link_rates(link, Path(folder), 2 if quick else 5)
    for mode, rate in rates.items():
        row = exchange_row(setting, "link", f"iperf3 {mode}", [tensor_bytes / rate], [tensor_bytes])
        yield row | {"goodput_share": round(rate / link.bytes_per_s, 3)}
    for together in [["authors", "all-reduce"], *([] if quick else [["hivemind"]])]:
        for contender, found in run_rivals(link, together, parameters, steps, limit_s).items():
            yield exchange_row(setting, contender, "float32", found.seconds, found.sent_bytes)
    for mode in modes(quick):
        pace = pace_of(mode, real, link.bytes_per_s)
        count = steps * mode.fragments
        run = run_pair(link, parameters, mode, pace, count, limit_s + 2 * (count + 2) * pace.phase_s)
        row = own_row(setting, mode.words, mode.fragments, run.steps, run.paired, link.bytes_per_s)
        yield row | {"goodput_share": None} if mode.name == "prefetch" else row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small model on one link, few steps: within 90 s")
    parser.add_argument("--mbps", type=int, nargs="+")
    parser.add_argument("--params", type=int, nargs="+", help="float32 parameters, about")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    quick = options.quick
    rows: list[Row] = []
    with stops_as_exits():
        for mbps in options.mbps or (QUICK_MBPS if quick else MBPS):
            with shaped_link(mbps) as link:
                for parameters in options.params or (QUICK_PARAMS if quick else PARAMS):
                    for row in measure(link, parameters, options.steps or (QUICK_STEPS if quick else STEPS), quick):
                        rows = with_ratios([*rows, row | {"load": round(os.getloadavg()[0], 1)}])
                        print(json.dumps(rows[-1]), flush=True)
                        if options.json is not None:
                            options.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
