"""The driver's state: from the seed, the disk or a donor; what is given to others and kept for later."""

import asyncio
import math
from pathlib import Path
from typing import Any

import pytest
from driver_bench import PEER, SEAT, THERE, THIRD, Bench, BenchTrainer, record_of

from noloco_node.core import effects as do
from noloco_node.core import events as ev
from noloco_node.core import limits
from noloco_node.core.types import ClosedStep, Outcome, Seat, SeatState
from noloco_node.driver import promise_notes
from noloco_node.driver.closed_step_notes import noted
from noloco_node.errors import BadCheckpoint, PeerLost
from noloco_node.ports import LoadedState, StateParts

LAST = ClosedStep(1, Outcome.PAIRED, "", THERE, PEER)
SAVE = do.SaveCheckpoint(2, 0, 8, LAST)
STEP = do.RunInnerStep(tokens=10, position=1, loss_sum=2.0, micro_batches=2)


async def test_state_comes_from_the_seed_or_the_checkpoint(bench: Bench) -> None:
    await bench.tell(do.InitialiseState(SEAT))
    await bench.tell(do.LoadCheckpoint(SEAT))
    assert bench.machine.of(ev.StateLoaded) == [
        ev.StateLoaded(0, 0, 0, "seed", seat=SEAT),
        ev.StateLoaded(3, 1, 9, "checkpoint", seat=SEAT),
    ]


async def test_damaged_checkpoint_is_told_and_is_no_end(bench: Bench) -> None:
    bench.trainer.answers["load_checkpoint"] = BadCheckpoint("cut short")
    await bench.tell(do.LoadCheckpoint(SEAT))
    assert bench.machine.heard[-1] == ev.StateUnavailable("cut short", SEAT)
    await bench.end()


def files_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


async def fetched(bench: Bench) -> None:
    await bench.tell(do.FetchState(SEAT, (PEER, THIRD)))
    for _ in range(20):  # the file is written and read on threads
        await asyncio.sleep(0.01)


async def test_state_is_fetched_from_the_next_donor_when_the_first_is_lost(bench: Bench, tmp_path: Path) -> None:
    bench.network.files[THIRD] = b"weights"
    await fetched(bench)
    assert bench.trainer.done("load_state_file") == [("load_state_file", b"weights")]
    assert bench.machine.of(ev.StateLoaded) == [ev.StateLoaded(4, 0, 0, "peer", seat=SEAT)]
    assert files_in(tmp_path) == []


async def test_donor_may_send_no_more_than_a_state_of_this_stage_holds(bench: Bench) -> None:
    bench.network.files[PEER] = b"weights"
    await fetched(bench)
    assert len(bench.trainer.done("prepare")) == 1  # else its size is not known
    assert bench.network.bytes_max == 6 * bench.trainer.tensor_bytes + 16 * limits.MIB


async def test_donor_is_asked_for_the_parts_needed_and_tells_what_the_seat_promised(bench: Bench) -> None:
    bench.network.files[PEER], bench.network.promised = b"weights", 77
    await fetched(bench)
    assert bench.network.asked == [(PEER, SEAT, StateParts.SLOW)]
    assert [event.data_next for event in bench.machine.of(ev.StateLoaded)] == [77]


async def test_a_donors_state_tells_what_vacant_seats_promised_and_not_how_our_last_step_closed(bench: Bench) -> None:
    """A newcomer that becomes a donor must know the promise of a seat that was vacant before it came."""
    bench.network.files[PEER] = b"weights"
    bench.trainer.answers["load_state_file"] = LoadedState(4, 0, 0, promise_notes.noted(((0, 394),)) | noted(LAST))
    await fetched(bench)
    (loaded,) = bench.machine.of(ev.StateLoaded)
    assert (loaded.promised, loaded.last) == (((0, 394),), None)


async def test_checkpoint_of_another_seat_of_the_stage_is_taken_as_a_donors(bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / "kept"
    write(path, b"weights")
    bench.kept[THERE] = path, 4
    await bench.tell(do.LoadCheckpoint(SEAT, THERE))
    await asyncio.sleep(0.05)
    assert bench.machine.of(ev.StateLoaded) == [ev.StateLoaded(4, 0, 0, "kept", seat=SEAT)]
    assert path.exists()
    await bench.tell(do.LoadCheckpoint(SEAT, Seat(1, 5)))
    assert "no complete checkpoint of seat 1.5" in bench.machine.of(ev.StateUnavailable)[-1].reason


async def test_a_node_gives_the_newest_checkpoint_of_the_asked_stage(bench: Bench, tmp_path: Path) -> None:
    for seat, step in ((SEAT, 3), (THERE, 5), (Seat(0, 0), 9)):
        write(tmp_path / str(seat), b"weights")
        bench.kept[seat] = tmp_path / str(seat), step
    given = bench.driver.state_file(1, StateParts.SLOW)
    assert given is not None
    assert (given.path.name, given.outer_step, given.head) == (str(THERE), 5, b"slow")
    assert bench.driver.state_file(3) is None
    assert bench.driver.state_file() is None  # no seat yet
    await bench.tell(do.InitialiseState(SEAT))
    own = bench.driver.state_file()
    assert own is not None
    assert (own.outer_step, own.head) == (3, b"")


async def test_kept_checkpoint_is_announced_and_not_shown_as_our_seat(bench: Bench) -> None:
    await bench.tell(do.AnnounceCheckpoint(Seat(0, 1), 6, 70))
    told = bench.discovery.published[-1]
    assert (told.seat, told.state, told.checkpoint_step, told.data_next) == (Seat(0, 1), SeatState.LEAVING, 6, 70)
    assert bench.discovery.carried == [False]
    assert bench.machine.of(ev.RecordPublished) == []


async def test_record_is_shown_to_peers_when_the_dht_is_gone(bench: Bench) -> None:
    bench.network.greetings[THIRD] = PeerLost("away")
    await bench.tell(do.ShowRecord((PEER, THIRD)))
    assert bench.network.greeted == [PEER, THIRD]
    assert bench.machine.of(ev.PeerAnswered) == [ev.PeerAnswered(PEER)]


async def test_promises_in_a_checkpoint_are_told_to_the_machine(bench: Bench) -> None:
    bench.trainer.answers["load_checkpoint"] = LoadedState(3, 1, 9, promise_notes.noted(((0, 5), (1, 77))), 4)
    await bench.tell(do.LoadCheckpoint(SEAT))
    loaded = bench.machine.of(ev.StateLoaded)[-1]
    assert (loaded.promised, loaded.drawn_again) == (((0, 5), (1, 77)), 4)
    for spoiled in ({"promised": 3}, {"promised": {"x": "y"}}, {"promised": None}, {"promised": {"0": math.inf}}, {}):
        assert promise_notes.recalled(spoiled) == ()
    assert promise_notes.recalled({"promised": {"0": 10**40}}) == ((0, limits.DATA_NEXT_MAX),)


async def test_state_that_no_donor_has_is_unavailable(bench: Bench, tmp_path: Path) -> None:
    bench.network.files[THIRD] = b"garbage"
    bench.trainer.answers["load_state_file"] = BadCheckpoint("not a checkpoint")
    await fetched(bench)
    assert bench.machine.of(ev.StateLoaded) == []
    assert bench.machine.heard[-1] == ev.StateUnavailable("not a checkpoint", SEAT)
    assert files_in(tmp_path) == []


@pytest.mark.parametrize("first", [BadCheckpoint("not finite"), LoadedState(9, 0, 0)])
async def test_donor_of_a_bad_state_is_struck_and_the_next_one_is_asked(bench: Bench, first: object) -> None:
    """The state is damaged, or further than the run's last outer step."""
    bench.network.files = {PEER: b"bad", THIRD: b"good"}
    answers = [LoadedState(4, 0, 0), first]
    load = bench.trainer.load_state_file

    async def load_next(path: Path) -> LoadedState:
        bench.trainer.answers["load_state_file"] = answers.pop()
        return await load(path)

    bench.trainer.load_state_file = load_next  # type: ignore[method-assign]
    await fetched(bench)
    assert [call[1] for call in bench.trainer.done("load_state_file")] == [b"bad", b"good"]
    assert bench.machine.of(ev.StateLoaded) == [ev.StateLoaded(4, 0, 0, "peer", seat=SEAT)]
    assert [bench.driver.doorkeeper.strikes_of(peer) for peer in (PEER, THIRD)] == [1.0, 0.0]


async def test_checkpoint_of_a_seat_held_before_is_not_taken_for_one_of_this_seat(bench: Bench) -> None:
    await bench.tell(do.InitialiseState(SEAT))
    written: asyncio.Future[Path] = asyncio.get_running_loop().create_future()
    bench.trainer.answers["save_checkpoint"] = written
    await bench.tell(SAVE)
    bench.trainer = BenchTrainer()
    await bench.tell(do.InitialiseState(THERE))
    written.set_result(Path("checkpoint"))
    await bench.settle()
    assert bench.machine.of(ev.CheckpointSaved) == []


async def test_a_fetch_ends_when_a_state_of_another_seat_is_asked_for(bench: Bench, tmp_path: Path) -> None:
    """It would swap the trainer, or hand its weights to the seat that is held now."""
    bench.network.files[PEER] = b"weights"
    go_on, ended = asyncio.Event(), []
    fetch = bench.network.fetch_state

    async def slow(*arguments: Any) -> Any:
        try:
            await go_on.wait()
        finally:
            ended.append(bench.driver.states.seat)
        return await fetch(*arguments)

    bench.network.fetch_state = slow  # type: ignore[method-assign]
    await bench.tell(do.FetchState(SEAT, (PEER,)))
    await bench.tell(do.InitialiseState(THERE))
    assert ended == [SEAT]  # before the trainer is another one
    go_on.set()
    await asyncio.sleep(0.05)
    assert bench.machine.of(ev.StateLoaded) == [ev.StateLoaded(0, 0, 0, "seed", seat=THERE)]
    assert files_in(tmp_path) == []
    await bench.end()


@pytest.mark.parametrize("after", [None, THERE])
async def test_a_fetch_ends_when_its_seat_is_lost(bench: Bench, after: Seat | None) -> None:
    """Nothing else is asked for: a spare would hold a donor's place and its own line for a state nobody waits for."""
    ended = []

    async def endless(*arguments: Any) -> Any:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(arguments[2])

    bench.network.fetch_state = endless  # type: ignore[method-assign]
    await bench.tell(do.FetchState(SEAT, (PEER, THIRD)))
    await asyncio.sleep(0.05)
    bench.driver.feed(ev.TimePassed())
    await bench.settle()
    assert ended == []
    bench.machine.membership.seat = after
    bench.driver.feed(ev.TimePassed())
    await bench.settle()
    assert ended == [SEAT]
    assert bench.machine.of(ev.StateUnavailable)[1:] == []  # the first is what `tell` feeds
    await bench.end()


async def test_a_fetch_goes_on_when_the_seat_it_is_for_is_won(bench: Bench) -> None:
    """The seat changes, and the state is asked for, in one answer of the machine."""
    bench.network.files[PEER] = b"weights"
    bench.machine.membership.seat = THERE
    await bench.tell(do.FetchState(THERE, (PEER,)))
    for _ in range(20):
        await asyncio.sleep(0.01)
    assert [event.seat for event in bench.machine.of(ev.StateLoaded)] == [THERE]


async def test_a_load_given_up_while_the_old_trainer_closes_leaves_none_half_closed(bench: Bench) -> None:
    await bench.tell(do.InitialiseState(SEAT))
    old, bench.trainer = bench.trainer, BenchTrainer()
    go_on, closed = asyncio.Event(), []

    async def close() -> None:
        await go_on.wait()
        closed.append(old)

    old.close = close  # type: ignore[method-assign]
    await bench.tell(do.InitialiseState(THERE))
    await bench.tell(do.InitialiseState(SEAT))
    assert bench.driver.trainer is not old
    go_on.set()
    await bench.settle()
    assert closed == [old]
    assert [event.seat for event in bench.machine.of(ev.StateLoaded)] == [SEAT, SEAT]


async def test_donor_whose_file_is_far_older_than_it_announced_is_struck_and_the_next_one_is_asked(
    bench: Bench,
) -> None:
    bench.network.files = {PEER: b"old", THIRD: b"good"}
    for peer, step in ((PEER, 5 + limits.STALE_STEPS_MAX), (THIRD, 4 + limits.STALE_STEPS_MAX)):
        assert bench.machine.membership.roster.learn(record_of(peer, checkpoint_step=step), 60.0, 0.0)
    await fetched(bench)
    assert [call[1] for call in bench.trainer.done("load_state_file")] == [b"old", b"good"]
    assert bench.machine.of(ev.StateLoaded) == [ev.StateLoaded(4, 0, 0, "peer", seat=SEAT)]
    assert [bench.driver.doorkeeper.strikes_of(peer) for peer in (PEER, THIRD)] == [1.0, 0.0]
