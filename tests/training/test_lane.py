"""The training thread: jobs in call order, the same results as without threads, a clean end."""

import asyncio
import threading
from dataclasses import replace

import pytest
import torch

from noloco_node.core.types import Seat
from noloco_node.errors import BadCheckpoint, BadData, DeviceFailed, LocalProtocolError, TensorReleased
from noloco_node.training import lane as lane_module
from noloco_node.training.initialisation import stage_hash
from noloco_node.training.lane import USUAL_THREADS, TrainingLane
from noloco_node.training.settings import TrainerPlace
from noloco_node.training.trainer import build_trainer


@pytest.fixture
async def lane(settings, tmp_path):
    made = TrainingLane(settings, TrainerPlace(Seat(0, 0), "cpu", tmp_path / "lane", threads=1))
    yield made
    await made.close()


async def test_lane_gives_the_bits_of_the_trainer_without_threads(lane, make_trainer):
    await lane.initialise()
    plain = make_trainer()
    plain.initialise()
    for n in range(4):
        batch = await lane.draw(n)
        result = await lane.forward(n, batch, count=True)
        assert result.loss_sum == plain.forward(n, plain.draw(n), count=True).loss_sum
        await lane.forget(n)
        assert await lane.inner_step(tokens=40, position=n) == plain.inner_step(tokens=40, position=n)
    boundary = await lane.take_boundary(0)
    assert boundary.shape_hash == plain.take_boundary(0).shape_hash
    assert await whole(lane, 0) == bytes(plain.outer.tensor(0).read(0, plain.tensor_bytes))
    assert stage_hash(lane._trainer.stage) == stage_hash(plain.stage)
    assert lane.tensor_bytes == plain.tensor_bytes


async def whole(lane, outer_step) -> bytes:
    """The tensor of that outer step, read in pieces."""
    source, pieces = lane.source(outer_step), []
    while (start := sum(map(len, pieces))) < source.size_bytes:
        pieces.append(bytes(await source.read(start, min(start + 999, source.size_bytes))))
    return b"".join(pieces)


async def test_jobs_run_in_call_order_on_one_thread(lane):
    await lane.prepare()
    seen = []
    jobs = [lane._run(lambda i=i: seen.append((i, threading.current_thread().name))) for i in range(20)]
    await asyncio.gather(*jobs)
    assert [i for i, _ in seen] == list(range(20))
    assert len({name for _, name in seen}) == 1 != threading.current_thread().name


async def test_exchange_of_two_lanes_ends_with_equal_sums(settings, tmp_path):
    both = replace(settings, num_replicas=2)
    lanes = [TrainingLane(both, TrainerPlace(Seat(0, r), "cpu", tmp_path / str(r), threads=1)) for r in range(2)]
    for each in lanes:
        await each.initialise()
        await each.forward(0, await each.draw(0), count=True)
        await each.inner_step(tokens=40, position=0)
    for each in lanes:
        await each.take_boundary(7)
    x = [memoryview(await whole(each, 7)) for each in lanes]
    verdicts = [await each.verify(7, x[1 - r]) for r, each in enumerate(lanes)]
    assert [verdict.reason for verdict in verdicts] == ["", ""]
    assert verdicts[0].norm == verdicts[1].norm > 0
    alone = sum(phi.double().sum() for each in lanes for phi in each._trainer.outer.slow_weights().values())
    for each in lanes:
        await each.add_correction(7)
        await each.release_exchange(7)
    paired = sum(phi.double().sum() for each in lanes for phi in each._trainer.outer.slow_weights().values())
    assert float(paired) == pytest.approx(float(alone), rel=1e-6)
    for each in lanes:
        await each.close()


async def test_checkpoint_is_awaited_twice_copied_then_on_disk(lane, settings, tmp_path):
    await lane.initialise()
    written = await lane.save_checkpoint(outer_step=2, inner_step=1, data_next=5, notes={"partner": "0.1"})
    path = await written
    assert path.name == "step-000002.safetensors"
    loaded = await lane.load_checkpoint()
    assert (loaded.outer_step, loaded.inner_step, loaded.data_next) == (2, 1, 5)
    assert (await lane.load_state_file(path)).outer_step == 2


async def test_micro_batches_drawn_after_the_checkpoint_are_counted_when_they_are_drawn_again(lane, settings):
    await lane.initialise()
    for n in range(4):
        await lane.draw(n)
    await (await lane.save_checkpoint(outer_step=1, inner_step=0, data_next=4, notes={}))
    for n in range(4, 9):
        await lane.draw(n)
    crashed = TrainingLane(settings, lane._place)
    assert (await crashed.load_checkpoint()).drawn_again == 5
    await crashed.draw(4)
    again = TrainingLane(settings, lane._place)
    assert (await again.load_checkpoint()).drawn_again == 1  # of this life, not of the one before
    for each in (crashed, again):
        await each.close()


async def test_faults_of_a_job_reach_the_caller_and_the_lane_lives_on(lane, settings, tmp_path):
    with pytest.raises(LocalProtocolError):
        await lane.draw(0)
    with pytest.raises(BadCheckpoint):
        await lane.load_checkpoint()
    await lane.initialise()
    with pytest.raises(LocalProtocolError):
        await lane.drop_graph(99)
    assert (await lane.draw(0)).id.n == 0


async def test_missing_data_and_device_are_said_at_the_start(settings, tmp_path):
    missing = replace(settings, data=replace(settings.data, path="/no/such/place"))
    for made, refusal in (
        (TrainingLane(missing, TrainerPlace(Seat(0, 0), "cpu", tmp_path)), BadData),
        (TrainingLane(settings, TrainerPlace(Seat(0, 0), "cuda:99", tmp_path)), DeviceFailed),
    ):
        with pytest.raises(refusal):
            await made.initialise()
        await made.close()


async def test_device_out_of_memory_is_device_failed(lane):
    def exhaust() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(DeviceFailed, match="out of memory"):
        await lane._run(exhaust)


async def test_threads_are_those_of_the_place(lane):
    assert await lane._run(torch.get_num_threads) == 1


async def test_close_ends_every_thread(settings, tmp_path):
    before = set(threading.enumerate())
    made = TrainingLane(settings, TrainerPlace(Seat(0, 0), "cpu", tmp_path))
    await made.initialise()
    await made.draw(0)
    assert {thread.name for thread in set(threading.enumerate()) - before} >= {"noloco-train_0", "noloco-read_0"}
    await made.close()
    assert not [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("noloco")]


async def test_close_cuts_a_long_read_short_and_does_not_wait_for_it_on_the_device(settings, tmp_path):
    made = TrainingLane(settings, TrainerPlace(Seat(0, 0), "cpu", tmp_path))
    await made.initialise()
    reader, begun, go_on = made._trainer.reader, threading.Event(), threading.Event()
    read_on = reader._packer.read

    def slow(rows: int) -> object:
        begun.set()
        go_on.wait(5)
        return read_on(rows)

    reader._packer.read = slow
    draw = asyncio.ensure_future(made.draw(400))
    await asyncio.to_thread(begun.wait, 5)
    closing = asyncio.ensure_future(made.close())
    await asyncio.wait_for(made._run(lambda: None), 2)  # behind what `close` runs on the device, which is free
    go_on.set()
    await asyncio.wait_for(closing, 5)
    with pytest.raises(asyncio.CancelledError):
        await draw
    assert reader._next < 10


async def test_lane_closed_while_it_is_built_opens_no_data(settings, tmp_path, monkeypatch):
    begun, go_on = threading.Event(), threading.Event()

    def slow_build(*arguments: object) -> object:
        begun.set()
        go_on.wait(5)
        return build_trainer(*arguments)

    monkeypatch.setattr(lane_module, "build_trainer", slow_build)
    made = TrainingLane(settings, TrainerPlace(Seat(0, 0), "cpu", tmp_path))
    starting = asyncio.ensure_future(made.initialise())
    await asyncio.to_thread(begun.wait, 5)
    closing = asyncio.ensure_future(made.close())
    await asyncio.sleep(0)
    go_on.set()
    await asyncio.wait_for(closing, 5)
    with pytest.raises(asyncio.CancelledError):
        await starting


LATTICE = "lattice4"


@pytest.fixture
async def pair(settings, tmp_path):
    """Two lanes at the boundary of outer step 7, whose tensors begin with a sketch."""
    both = replace(settings, num_replicas=2, codec=LATTICE)
    lanes = [TrainingLane(both, TrainerPlace(Seat(0, r), "cpu", tmp_path / str(r), threads=1)) for r in range(2)]
    for each in lanes:
        await each.initialise()
        await each.forward(0, await each.draw(0), count=True)
        await each.inner_step(tokens=40, position=0)
        await each.take_boundary(7)
    yield lanes
    for each in lanes:
        await each.close()


async def head_of(lane) -> memoryview:
    source = lane.source(7)
    return await source.read(0, source._tensor.head_bytes)


async def test_what_follows_a_sketch_waits_for_the_partners_and_for_no_other(pair):
    one, other = pair
    theirs = await head_of(other)
    one.await_head(7, b"theirs")
    rest = asyncio.create_task(one.source(7).read(len(theirs), len(theirs) + 64))
    one.await_head(7, b"theirs, begun anew")
    await one.meet(7, b"theirs", theirs)  # of the tensor before
    await asyncio.sleep(0.05)
    assert not rest.done()
    await one.meet(7, b"theirs, begun anew", theirs)
    assert len(await rest) == 64


async def test_corrections_are_opposite_though_another_sketch_was_met_before(pair):
    tensors = []
    for lane, partner in (pair, pair[::-1]):
        lane.await_head(7, b"theirs")
        await lane.meet(7, b"theirs", await head_of(partner))
    tensors = [await whole(lane, 7) for lane in pair]
    stale = bytes(len(await head_of(pair[0])))
    await pair[0].beside(lambda: pair[0]._built().outer.tensor(7).meet(memoryview(stale)))
    verdicts = [await lane.verify(7, memoryview(theirs)) for lane, theirs in zip(pair, tensors[::-1], strict=True)]
    assert [verdict.reason for verdict in verdicts] == ["", ""]
    c = [lane._built().outer._open[7].correction for lane in pair]
    assert torch.equal(c[0], -c[1])
    assert float(c[0].abs().max()) > 0


async def test_a_step_released_while_its_tensor_is_read_or_met_harms_nobody(pair):
    one, other = pair
    theirs = await head_of(other)
    one.await_head(7, b"theirs")
    busy = threading.Event()
    held = asyncio.create_task(one.beside(lambda: busy.wait(5)))
    await asyncio.sleep(0.02)
    meeting = asyncio.create_task(one.meet(7, b"theirs", theirs))
    await asyncio.sleep(0.02)
    await one.release_exchange(7)
    busy.set()
    await asyncio.gather(held, meeting)
    await one.meet(7, b"theirs", theirs)
    with pytest.raises(TensorReleased):
        await one.can_encode(7)


async def test_random_bytes_after_a_good_sketch_are_refused(pair):
    one, other = pair
    theirs = await head_of(other)
    size = one.source(7).size_bytes
    draws = torch.randint(0, 256, (size - len(theirs),), generator=torch.Generator().manual_seed(1))
    junk = bytes(theirs) + draws.to(torch.uint8).numpy().tobytes()
    assert "differ by more than the code can tell" in (await one.verify(7, memoryview(junk))).reason


async def test_a_later_lane_trains_with_as_many_threads_as_the_first(settings, tmp_path):
    place = TrainerPlace(Seat(0, 0), "cpu", tmp_path)
    seen = []
    for _ in range(2):
        lane = TrainingLane(settings, place)
        await lane.beside(lambda: None)
        seen.append(await lane._run(torch.get_num_threads))
        await lane.close()
    assert seen == [USUAL_THREADS, USUAL_THREADS]
