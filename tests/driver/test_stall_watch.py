"""A device that hangs ends the node; one that is merely busy does not."""

import asyncio
import itertools
import threading

import pytest

from noloco_node.config.presets import preset
from noloco_node.core import limits
from noloco_node.core.types import Seat
from noloco_node.driver.stall_watch import StallWatch
from noloco_node.errors import ExitCode, TrainingStalled
from noloco_node.training.lane import TrainingLane
from noloco_node.training.settings import TrainerPlace


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STALL_CHECK_S", 0.01)
    monkeypatch.setattr(limits, "DEVICE_STALL_S", 0.1)


async def told_of(job, looks: int = 60) -> list[TrainingStalled]:  # type: ignore[no-untyped-def]
    """What is told until something is, or the job was looked at often enough."""
    told: list[TrainingStalled] = []
    seen = 0

    def look() -> int | None:
        nonlocal seen
        seen += 1
        return job()

    watch = StallWatch(look, told.append)
    watch.start()
    async with asyncio.timeout(60):
        while not told and seen < looks:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    await watch.close()
    return told


async def test_job_that_does_not_end_is_told_once_with_its_exit_code() -> None:
    told = await told_of(lambda: 7)
    assert [error.code for error in told] == [ExitCode.TRAINING_STALLED]
    assert told[0].advice


async def test_jobs_that_follow_one_another_and_a_free_device_are_no_stall() -> None:
    numbers = itertools.count(1)
    assert await told_of(lambda: next(numbers)) == []
    assert await told_of(lambda: None) == []


async def test_the_training_thread_shows_the_job_it_is_at(tmp_path) -> None:  # type: ignore[no-untyped-def]
    lane = TrainingLane(preset("tiny").training_settings(), TrainerPlace(Seat(1, 0), "cpu", tmp_path))
    go_on, begun = threading.Event(), threading.Event()

    def hang() -> None:
        begun.set()
        go_on.wait()

    assert lane.job is None
    hanging = asyncio.create_task(lane._run(hang))
    await asyncio.to_thread(begun.wait)
    first = lane.job
    assert first is not None
    assert len(await told_of(lambda: lane.job)) == 1
    go_on.set()
    await hanging
    assert lane.job is None
    await lane.close()
