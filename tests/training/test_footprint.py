"""Which stages fit: parameters by stage, against what is free."""

from dataclasses import replace

import pytest
import torch

from noloco_node.core.types import Seat
from noloco_node.errors import DeviceFailed
from noloco_node.training import footprint
from noloco_node.training.footprint import GIB, HOST_BYTES_PER_PARAMETER, fitting_stages, stage_parameters

CPU = torch.device("cpu")


@pytest.fixture
def four_stages(settings, tiny_model):
    return replace(settings, num_stages=4, model=tiny_model(layers=8))


def test_every_parameter_is_in_one_stage(four_stages, make_trainer):
    counts = stage_parameters(four_stages)
    whole = make_trainer(model=four_stages.model)
    assert sum(counts) == sum(parameter.numel() for parameter in whole.stage.parameters())
    assert counts[1] == counts[2] < counts[0] < counts[3]  # embeddings; norm and head


def test_stages_fit_by_what_a_limit_or_the_system_leaves(four_stages):
    sizes = [count * HOST_BYTES_PER_PARAMETER for count in stage_parameters(four_stages)]
    assert fitting_stages(four_stages, CPU, sizes[0], None) == {0, 1, 2}
    assert fitting_stages(four_stages, CPU, 0, None) == {0, 1, 2, 3}
    assert fitting_stages(four_stages, CPU, sizes[0], Seat(2, 0)) == {0, 1, 2}


def test_in_mode_prefetch_slow_weights_and_outer_gradients_take_room_beside_each_other(four_stages):
    plain, ahead = (footprint.stage_bytes(replace(four_stages, prefetch=prefetch), CPU) for prefetch in (False, True))
    counts = stage_parameters(four_stages)
    assert [more - less for less, more in zip(plain, ahead, strict=True)] == [16 * count for count in counts]


def test_a_wanted_seat_that_does_not_fit_is_one_clear_line(four_stages):
    small = stage_parameters(four_stages)[1] * HOST_BYTES_PER_PARAMETER
    with pytest.raises(DeviceFailed, match=r"the stage of seat 3\.0 takes .* GiB .* cpu has") as refusal:
        fitting_stages(four_stages, CPU, small, Seat(3, 0))
    assert "memory_max_gib" in refusal.value.advice
    with pytest.raises(DeviceFailed, match="the smallest stage takes"):
        fitting_stages(four_stages, CPU, 10, None)


def test_a_containers_limit_counts(tmp_path, monkeypatch):
    (tmp_path / "memory.max").write_text(f"{2 * GIB}\n")
    (tmp_path / "memory.current").write_text(f"{GIB}\n")
    monkeypatch.setattr(footprint, "CGROUP", tmp_path)
    monkeypatch.setattr(footprint, "MEMINFO", tmp_path / "none")
    assert footprint.free_bytes(CPU) == GIB
    (tmp_path / "memory.max").write_text("max\n")
    assert footprint.free_bytes(CPU) is None
