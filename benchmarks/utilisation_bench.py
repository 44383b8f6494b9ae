"""What share of its time a training thread does not wait for the network, at the paper's ratio of compute to bytes.

    python benchmarks/utilisation_bench.py [--quick] [--mbps M...] [--params P] [--steps K] [--json FILE]

The setting is the paper's Table 2: 1.3e9 parameters and 0.5e9 of embeddings, 100 inner steps of 1.64 s to an outer
step, links of 100 Mb/s and 1 Gb/s. Bytes fall with the parameters, so a model of P parameters keeps the ratio compute :
bytes : bandwidth when its outer step computes for 164 s * P / 1.8e9 on the same links (`figures.paper_phase_s`; 16e6:
1.46 s). At 100 Mb/s the link then carries 9.1 bits per parameter, outer step and direction, of which 8.2 are payload.

Compute is a stand-in: it holds the training thread for the time and uses no core. Links, bytes and protocol are real,
as in `exchange_bench`. The arithmetic of the outer step is real too and counts as waiting; on the paper's machines it
is small. The copy for a checkpoint counts neither as compute nor as waiting (`saved_share` of all time). Contenders:

- `noloco-node`: its modes, but for those whose bytes the link cannot carry in their time. INNER_STEPS share the compute
  of an outer step. In `stream` an outer step exchanges one of so many fragments (`mode` says how many and the codec),
  so each weight goes once in so many outer steps.
  `paired_share`: outer steps that were exchanged in their time; a solo one costs no wait but mixes nothing.
- `authors`, `all-reduce`: bfloat16, as the paper's; they block for what `rivals` measures, after each phase of compute.

Medians over K outer steps. The paper's own figures for 100 Mb/s: authors 0.107, DiLoCo 0.027 (with 32 replicas).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from figures import busy_share, own_busy_shares, paper_phase_s, saved_share, utilisation_row
from link import Link, shaped_link, stops_as_exits
from model_sizes import FLOAT_BYTES, count_of
from pair import Mode, Pace, run_pair
from rival_runs import run_rivals
from rows import Row, tell

from noloco_node.core.codec_sizes import encoded_bytes

MBPS, PARAMS, STEPS = (100, 1000), 16_000_000, 10
QUICK_MBPS, QUICK_STEPS = (1000,), 3
INNER_STEPS = 5
FRAGMENTS = {"float32": 16, "int8": 8, "lattice5": 8}  # over in half an outer step, also on busy cores
TRAVEL_FACTOR = 1.1  # headers and acknowledgements
LIMIT_S = 300.0


def modes(quick: bool, parameters: int, link_rate: float) -> list[Mode]:
    """Those of this version whose exchange can be over in its time."""
    streams = [Mode("stream", fragments, codec) for codec, fragments in FRAGMENTS.items()]
    wanted = streams[-1:] if quick else [Mode("joint"), Mode("joint", codec="int8"), Mode("overlap"), *streams]
    return [mode for mode in wanted if fits(mode, parameters, link_rate)]


def fits(mode: Mode, parameters: int, link_rate: float) -> bool:
    """By the clock an exchange has half an outer step ; `joint` waits as long as it takes."""
    travel_s = TRAVEL_FACTOR * encoded_bytes(mode.codec, parameters // mode.fragments) / link_rate
    return mode.name == "joint" or travel_s <= paper_phase_s(parameters) / 2


def measure(link: Link, parameters: int, steps: int, quick: bool) -> Iterator[Row]:
    real = count_of(parameters)
    compute_s = paper_phase_s(real)
    setting = f"table 2, {link.mbps} Mb/s"
    size = {"params": real, "compute_s": round(compute_s, 3), "compute": "stand-in"}
    limit_s = LIMIT_S + 4 * steps * (compute_s + 4 * FLOAT_BYTES * real / link.bytes_per_s)
    contenders = ["authors", "all-reduce"]
    found = run_rivals(link, contenders, parameters, steps, limit_s, "--dtype", "bfloat16")
    for contender in contenders:
        shares = busy_share(compute_s, found[contender].seconds)
        yield utilisation_row(setting, contender, "bfloat16", shares, **size)
    for mode in modes(quick, real, link.bytes_per_s):
        run = run_pair(link, parameters, mode, Pace(INNER_STEPS, compute_s / INNER_STEPS), steps, limit_s)
        more = {"paired_share": round(run.paired, 3), "saved_share": round(saved_share(run.steps), 3)}
        yield utilisation_row(setting, "noloco-node", mode.words, own_busy_shares(run.steps), **more, **size)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one link, one mode, few steps: within 90 s")
    parser.add_argument("--mbps", type=int, nargs="+")
    parser.add_argument("--params", type=int, default=PARAMS, help="parameters, about")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    steps = options.steps or (QUICK_STEPS if options.quick else STEPS)
    rows: list[Row] = []
    with stops_as_exits():
        for mbps in options.mbps or (QUICK_MBPS if options.quick else MBPS):
            with shaped_link(mbps) as link:
                for row in measure(link, options.params, steps, options.quick):
                    tell(rows, row, options.json)


if __name__ == "__main__":
    main()
