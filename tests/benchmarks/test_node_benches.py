"""What the scripts that watch real nodes make of what they saw, and those that run within seconds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import gpu_bench
import memory_bench
import pipeline_bench
import pytest
import scale_bench
from metrics_page import jobs_s, series_of
from pipeline_bench import Found
from proc import children_of, cpu_s, resident_mib
from scale_bench import LOOK_UPS, RENEWALS, Reading

from noloco_node.core.types import Seat
from noloco_node.telemetry.metrics import NodeMetrics

BENCHMARKS = Path(scale_bench.__file__).parent


def test_the_series_that_are_read_are_those_of_a_node() -> None:
    metrics = NodeMetrics(lambda: 0.0)
    for result in ("confirmed", "unconfirmed"):
        metrics.instruments.records.labels(result).inc()
    metrics.instruments.job.labels("forward").observe(2.0)
    metrics.instruments.job.labels("backward").observe(0.5)
    series = series_of(metrics.render().decode())
    assert {LOOK_UPS, *RENEWALS} <= series.keys()
    assert jobs_s(series) == 2.5


def reading(cpu: float, p2pd: float, look_ups: float, renewals: float) -> Reading:
    return Reading(cpu, p2pd, 500.0, 60.0, {LOOK_UPS: look_ups, RENEWALS[0]: renewals, RENEWALS[1]: 0.0})


def test_an_idle_node_is_itself_and_its_daemon_less_the_baseline() -> None:
    pairs = [(reading(1.0, 1.0, 10, 2), reading(1.1, 1.2, 12, 4)), (reading(3.0, 0.0, 0, 0), reading(3.4, 0.1, 2, 2))]
    row = scale_bench.row_of(8, pairs, 20.0, [1.0, 9.0, 2.0], 400.0)
    assert (row["nodes"], row["idle_cpu_share"], row["idle_cpu_share_max"]) == (8, 0.02, 0.025)
    assert (row["p2pd_cpu_share"], row["rss_above_baseline_mib"], row["ready_s"]) == (0.0075, 160.0, 2.0)
    assert (row["look_ups_per_min"], row["renewals_per_min"]) == (6.0, 6.0)
    assert {"nodes", "idle_cpu_share", "rss_above_baseline_mib", "ready_s"} <= row.keys()


def test_proc_tells_of_a_process_and_its_children() -> None:
    command = [sys.executable, "-c", "sum(range(10**7)); print(flush=True); input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert child.pid in children_of(os.getpid())
        assert cpu_s(child.pid) > 0.0
        assert resident_mib(child.pid) > 1.0
        child.communicate(b"\n")


@pytest.mark.parametrize("nodes", scale_bench.NODES)
def test_all_seats_of_an_idle_swarm_are_held(nodes: int) -> None:
    spec = scale_bench.spec_of(nodes)
    assert spec.swarm.num_stages * spec.swarm.num_replicas == nodes
    assert scale_bench.stage_model(spec)["num_hidden_layers"] * scale_bench.STAGES == spec.model["num_hidden_layers"]


def test_rates_are_those_of_the_steps_after_the_warm_up() -> None:
    lines = [{"tokens": 100, "unix_s": 5.0}, {"tokens": 30, "unix_s": 6.0}, {"tokens": 60, "unix_s": 9.0}]
    assert pipeline_bench.rates_of(lines) == [30.0, 20.0]


def test_ratios_are_to_the_best_unsplit_run_and_to_recompute() -> None:
    unsplit = {1: Found([50.0]), 2: Found([100.0, 80.0, 120.0])}
    swarms = {(2, False): Found([90.0], [(0.9, 0.8)]), (2, True): Found([60.0], [(0.9, 0.8)])}
    rows = {row["contender"]: row for row in pipeline_bench.rows_of(unsplit, swarms, 9)}
    assert rows["unsplit, 1 threads"]["ratio_to_unsplit"] == 0.5
    swarm = rows["swarm"]
    assert (swarm["stages"], swarm["ratio_to_unsplit"], swarm["ratio_to_recompute"]) == (2, 0.9, 1.5)
    assert (swarm["bubble"], swarm["busy_share_min"], rows["recompute"]["ratio_to_recompute"]) == (0.1, 0.8, 1.0)


def test_all_stages_of_the_pipeline_have_layers() -> None:
    for stages in (1, *pipeline_bench.STAGES):
        assert pipeline_bench.spec_of(stages, 2, 8).swarm.num_stages == stages


def test_flop_are_those_of_the_matrices_and_of_attention() -> None:
    model = {"hidden_size": 4, "num_hidden_layers": 3, "vocab_size": 10}
    assert gpu_bench.flop_per_token(model, 100, 1040) == 6 * 1000 + 12 * 3 * 4 * 100
    assert gpu_bench.peak_flops("NVIDIA H100 80GB HBM3", None) == 989e12
    assert gpu_bench.peak_flops("NVIDIA H100 PCIe", None) == 756e12
    assert gpu_bench.peak_flops("cpu", 0.1) == 1e11
    assert gpu_bench.peak_flops("cpu", None) is None
    assert gpu_bench.share_of_peak(5e10, 1e11) == 0.5


def test_a_stage_has_a_gpu_of_its_own(tmp_path: Path) -> None:
    swarm = gpu_bench.DeviceSwarm(tmp_path / "swarm.toml", tmp_path, [Seat(0, 0), Seat(1, 0)])
    command = swarm.command(Seat(1, 0), ())
    assert command[command.index("--device") + 1] == "cuda:1"
    assert [gpu_bench.stages_for(24, devices) for devices in (1, 5, 8)] == [1, 4, 8]


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["float32", "int8"])
def test_memory_of_a_seat_is_what_is_written_down(codec: str) -> None:
    row = memory_bench.run_apart(codec, memory_bench.QUICK_PARAMS)
    assert row["state"] == pytest.approx(row["written_state"], rel=0.1)
    assert 0.75 * row["written_peak"] < row["peak"] < 1.1 * row["written_peak"]


@pytest.mark.slow
def test_the_gpu_script_runs_on_a_cpu(tmp_path: Path) -> None:
    found = tmp_path / "rows.json"
    command = [sys.executable, str(BENCHMARKS / "gpu_bench.py"), "--device", "cpu", "--quick", "--peak-tflops", "0.1"]
    subprocess.run([*command, "--json", str(found)], check=True, timeout=280)
    rows = json.loads(found.read_text())
    assert [row["what"] for row in rows] == ["train_step", "train_step", "pipeline"]
    assert all(row["tokens_per_s"] > 0 and 0 < row["mfu"] < 1 for row in rows)
    assert all(row["peak_bytes_per_parameter"] > 20 for row in rows[:2])
