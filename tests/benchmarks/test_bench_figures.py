"""What the exchange and utilisation benchmarks make of what they measured."""

from __future__ import annotations

from typing import Any, get_args

import exchange_bench
import pytest
import utilisation_bench
from figures import busy_share, exchange_row, own_row, paper_phase_s, saved_share, utilisation_row, with_ratios
from job_record import Cycle, Line, PairStep, cycles_of, in_rounds, median_goodput, median_parts, pair_steps
from model_sizes import FLOAT_BYTES, count_of, llama_of, shapes_of
from pair import Mode, Pace, paired_share, spec_of
from rival_runs import slower_of

from noloco_node.config.sections import Outer

SETTING = {"link_mbps": 100, "params": 16}


def line(what: str, begun_s: float, ended_s: float, **more: Any) -> Line:
    return {"what": what, "begun_s": begun_s, "ended_s": ended_s, **more}


def boundary(step: int, begun_s: float, sent: int) -> Line:
    return line("boundary", begun_s, begun_s + 0.5, outer_step=step, tensor_bytes=1000, sent_bytes=sent)


RECORD = [
    boundary(4, 10.0, 100),
    line("checkpoint", 10.5, 10.75),
    line("forward", 10.75, 11.75),
    line("received", 12.5, 12.5, outer_step=4),
    line("verify", 12.5, 12.75),
    line("correction", 13.0, 13.25),
    line("inner_step", 13.25, 13.5),
    line("forward", 13.5, 14.5),
    boundary(5, 15.0, 1200),
    line("forward", 15.5, 16.5),
]


def cycle(step: int, blocked_s: float, exchanged_s: tuple[float, float] | None = (1.0, 3.0)) -> Cycle:
    return Cycle(step, 1 + blocked_s + 0.5, 1.0, 0.5, 100 * step, 1000, exchanged_s, {})


def test_a_cycle_is_blocked_while_its_thread_neither_computes_nor_saves() -> None:
    (found,) = cycles_of(RECORD)
    assert (found.outer_step, found.wall_s, found.computed_s, found.saved_s) == (4, 5.0, 2.25, 0.25)
    assert found.blocked_s == pytest.approx(2.5)
    assert found.sent_bytes == 1100
    assert found.exchanged_s == (10.5, 12.5)
    assert found.parts == {"boundary": 0.5, "travel": 2.0, "verify": 0.25, "accord": 0.25, "correction": 0.25}


def test_a_tensor_of_another_outer_step_is_not_this_ones() -> None:
    other = [one | {"outer_step": 3} if one["what"] == "received" else one for one in RECORD]
    assert cycles_of(other)[0].exchanged_s is None


def test_steps_of_a_pair_are_those_both_have_less_the_warm_up() -> None:
    records = [[cycle(n, 0.1) for n in (0, 1, 2, 3)], [cycle(n, 0.2) for n in (1, 2, 3, 4)]]
    steps = pair_steps(records)
    assert [step.cycles[0].outer_step for step in steps] == [2, 3]
    assert [step.blocked_s for step in steps] == pytest.approx([0.2, 0.2])


def test_the_slower_node_counts() -> None:
    step = PairStep((cycle(1, 0.25), cycle(2, 1.0)))
    assert step.blocked_s == pytest.approx(1.0)
    assert step.sent_bytes == 200
    assert step.busy_share == pytest.approx(0.5)  # of the time without the checkpoint


def test_goodput_counts_from_the_later_boundary_to_the_later_arrival() -> None:
    step = PairStep((cycle(1, 0.1, (1.0, 3.0)), cycle(1, 0.1, (1.5, 5.5))))
    assert step.goodput == 1000 / 4.0
    assert PairStep((cycle(1, 0.1), cycle(1, 0.1, None))).goodput is None
    assert median_goodput([PairStep((cycle(1, 0.1, None),) * 2)]) is None


def test_parts_are_those_of_the_slower_node_and_of_paired_steps() -> None:
    (whole,) = cycles_of(RECORD)
    assert median_parts([PairStep((whole, cycle(4, 0.1))), PairStep((cycle(5, 0.3),) * 2)]) == whole.parts
    assert median_parts([PairStep((cycle(5, 0.3),) * 2)]) == {}


def test_fragments_are_added_up_to_rounds_of_all_weights() -> None:
    steps = [PairStep((cycle(n, 0.25 * n),)) for n in range(1, 6)]
    assert [len(one) for one in in_rounds(steps, 2)] == [2, 2]
    row = own_row(SETTING, "stream", 2, steps, 1.0, 1000.0)
    assert row["runs"] == [0.75, 1.75]
    assert row["blocking_s"] == 1.25
    assert row["bytes_sent"] == 500
    assert row["goodput_share"] == 0.5


def test_medians_and_ratios_are_per_link_and_size() -> None:
    rows = [
        exchange_row(SETTING, "authors", "float32", [1.0, 9.0, 4.0], [7, 8, 9]),
        exchange_row(SETTING, "noloco-node", "joint", [1.0], [5]),
        exchange_row(SETTING | {"link_mbps": 1000}, "authors", "float32", [2.0], [5]),
        exchange_row(SETTING | {"link_mbps": 1000}, "noloco-node", "joint", [1.0], [5]),
        exchange_row(SETTING | {"params": 64}, "noloco-node", "joint", [1.0], [5]),
    ]
    assert (rows[0]["blocking_s"], rows[0]["bytes_sent"]) == (4.0, 8)
    assert [row["ratio_to_authors"] for row in with_ratios(rows)] == [1.0, 0.25, 1.0, 0.5, None]


def test_ratio_of_compute_to_bytes_is_the_papers() -> None:
    assert paper_phase_s(1_800_000_000) == pytest.approx(164.0)
    bits = paper_phase_s(18_000_000) * 100e6 / 18_000_000
    assert bits == pytest.approx(9.1, abs=0.02)
    authors_s = 100 * (15.26 - 1.64)  # blocked per outer step in the paper
    assert busy_share(164.0, [authors_s])[0] == pytest.approx(1.64 / 15.26)


def test_rows_have_the_fields_that_are_read_by_machine() -> None:
    row = with_ratios([own_row(SETTING, "joint", 1, [PairStep((cycle(1, 0.5),) * 2)], 1.0, 1e6)])[0]
    wanted = {"link_mbps", "params", "contender", "mode", "blocking_s", "bytes_sent", "ratio_to_authors"}
    assert wanted | {"goodput_share"} <= row.keys()
    shown = utilisation_row("table 2", "authors", "bfloat16", [0.1, 0.3, 0.2])
    assert {"ratio_setting", "contender", "mode", "busy_share"} <= shown.keys()
    assert shown["busy_share"] == 0.2


def test_saved_share_is_of_all_time() -> None:
    assert saved_share([PairStep((cycle(1, 0.5), cycle(1, 0.5)))]) == pytest.approx(0.25)


def test_slower_rank_counts_in_each_outer_step() -> None:
    ranks = [{"seconds": [1.0, 4.0], "sent_bytes": [10, 10]}, {"seconds": [3.0, 2.0], "sent_bytes": [5, 20]}]
    found = slower_of(ranks)
    assert (found.seconds, found.sent_bytes) == ([3.0, 4.0], [10, 20])


def test_paired_on_both_sides_is_paired() -> None:
    assert paired_share([{1: "paired", 2: "solo"}, {1: "paired", 2: "paired"}], [1, 2]) == 0.5


@pytest.mark.parametrize("parameters", [2_000_000, 16_000_000, 64_000_000])
def test_shapes_are_those_of_the_stage(parameters: int) -> None:
    from noloco_node.training.architecture import model_config
    from noloco_node.training.stage import cut_stage

    stage = cut_stage(model_config(spec_of(parameters, Mode("joint"), Pace(1, 0.1)).model), 1, 0)
    named = dict(sorted(stage.named_parameters()))
    assert sorted(shapes_of(parameters)) == sorted(tuple(parameter.shape) for parameter in named.values())
    assert count_of(parameters) == pytest.approx(parameters, rel=0.2)
    assert llama_of(parameters)["num_hidden_layers"] >= 1


def test_every_mode_of_the_product_is_measured_and_has_a_spec() -> None:
    modes = exchange_bench.modes(quick=False)
    assert {mode.name for mode in modes} == set(get_args(Outer.model_fields["mode"].annotation))
    for mode in modes:
        pace = exchange_bench.pace_of(mode, 16_000_000, 12.5e6)
        assert spec_of(2_000_000, mode, pace).outer.fragments == mode.fragments


def test_by_the_clock_an_exchange_has_half_an_outer_step() -> None:
    pace = exchange_bench.pace_of(Mode("overlap"), 16_000_000, 12.5e6)
    assert pace.phase_s / 2 > 16_000_000 * FLOAT_BYTES / 12.5e6


def test_at_the_papers_ratio_whole_float32_weights_overlap_on_the_fast_link_only() -> None:
    def names(link_rate: float) -> list[str]:
        return [mode.words for mode in utilisation_bench.modes(False, 16_000_000, link_rate) if mode.codec == "float32"]

    assert names(12.5e6) == ["joint float32", "stream 16 float32"]
    assert names(125e6) == ["joint float32", "overlap float32", "stream 16 float32"]
