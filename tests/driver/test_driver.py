"""The driver's life, its timer, seats, records and state: what the machine is told, and what ends the node."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from driver_bench import ME, PEER, SEAT, THERE, THIRD, WALL_MS, Bench, BenchTrainer, record_of

from noloco_node.core import effects as do
from noloco_node.core import events as ev
from noloco_node.core import limits
from noloco_node.core.types import ClosedStep, Outcome, Seat, SeatRecord, SeatState
from noloco_node.driver import promise_notes
from noloco_node.driver.closed_step_notes import noted, recalled
from noloco_node.errors import BadCheckpoint, BadData, BadIdentity, DiskFailed, IdentityInUse, PeerLost, WrongRun
from noloco_node.ports import LoadedState, StateParts

LAST = ClosedStep(1, Outcome.PAIRED, "", THERE, PEER)
SAVE = do.SaveCheckpoint(2, 0, 8, LAST)
STEP = do.RunInnerStep(tokens=10, position=1, loss_sum=2.0, micro_batches=2)


# --- life -----------------------------------------------------------------------------------------


async def test_run_ends_with_what_the_machine_says_and_closes_the_trainer(bench: Bench) -> None:
    assert await bench.end() == do.Leave("test over")
    assert bench.trainer.did[-1] == ("close",)


async def test_failing_effect_ends_the_run_with_its_error(bench: Bench) -> None:
    bench.trainer.answers["inner_step"] = RuntimeError("the device is gone")
    await bench.tell(STEP)
    with pytest.raises(RuntimeError, match="the device is gone"):
        await bench.ended()
    assert bench.trainer.did[-1] == ("close",)


async def test_missing_data_ends_the_run_with_its_error(bench: Bench) -> None:
    bench.trainer.answers["draw"] = BadData("no documents")
    await bench.tell(do.DrawMicroBatch(0))
    with pytest.raises(BadData):
        await bench.ended()


async def test_machine_that_breaks_ends_the_run_with_its_error(bench: Bench) -> None:
    def broken(event: ev.TimePassed) -> list[do.Effect]:
        raise AssertionError("a rule is broken")

    bench.machine.rules[ev.TimePassed] = broken
    bench.driver.feed(ev.TimePassed())
    with pytest.raises(AssertionError, match="a rule is broken"):
        await bench.ended()


async def test_no_event_reaches_the_machine_after_the_end(bench: Bench) -> None:
    await bench.end()
    heard = len(bench.machine.heard)
    bench.driver.feed(ev.TimePassed())
    assert len(bench.machine.heard) == heard


async def test_stop_beyond_its_grace_ends_the_run(bench: Bench) -> None:
    bench.machine.rules.clear()
    bench.driver.give_up("SIGTERM")
    assert (await bench.ended()).reason == "SIGTERM: grace time over"


async def test_effects_under_way_are_cancelled_at_the_end(bench: Bench) -> None:
    cancelled = asyncio.Event()

    async def hanging() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    bench.driver.spawn(hanging())
    await bench.settle()
    await bench.end()
    assert cancelled.is_set()


async def test_event_fed_while_another_is_handled_waits_for_its_turn(bench: Bench) -> None:
    seen: list[ev.Event] = []

    def feed_one_more(event: ev.TimePassed) -> list[do.Effect]:
        bench.driver.feed(ev.StateCopied())
        seen.append(bench.machine.heard[-1])
        return []

    bench.machine.rules[ev.TimePassed] = feed_one_more
    bench.driver.feed(ev.TimePassed())
    assert seen == [ev.TimePassed()]
    assert bench.machine.heard[-1] == ev.StateCopied()


async def test_machine_is_woken_when_its_deadline_comes(bench: Bench) -> None:
    bench.machine.deadline_s = 0.02
    bench.driver.feed(ev.StateCopied())
    async with asyncio.timeout(5):
        while not bench.machine.of(ev.TimePassed):  # noqa: ASYNC110 - the timer under test is what wakes us
            await asyncio.sleep(0.005)


# --- checkpoints ----------------------------------------------------------------------------------


async def test_checkpoint_is_copied_then_saved(bench: Bench) -> None:
    await bench.tell(SAVE)
    assert bench.machine.heard[-2:] == [ev.StateCopied(), ev.CheckpointSaved(2)]
    ((_, notes),) = bench.trainer.done("save_checkpoint")
    assert recalled(notes["notes"]) == LAST
    assert (notes["outer_step"], notes["inner_step"], notes["data_next"]) == (2, 0, 8)


async def test_closed_step_in_the_own_checkpoint_is_told_to_the_machine(bench: Bench) -> None:
    bench.trainer.answers["load_checkpoint"] = LoadedState(2, 0, 8, noted(LAST))
    await bench.tell(do.LoadCheckpoint(SEAT))
    assert bench.machine.of(ev.StateLoaded) == [ev.StateLoaded(2, 0, 8, "checkpoint", LAST)]


@pytest.mark.parametrize("note", [None, 7, {}, {"outer_step": "x"}, {**noted(LAST)["closed"], "outcome": "unheard of"}])
def test_note_that_is_not_ours_is_no_closed_step(note: object) -> None:
    assert recalled({"closed": note}) is None


async def test_state_that_is_not_finite_is_not_kept_and_the_device_is_free_again(bench: Bench) -> None:
    bench.trainer.answers["save_checkpoint"] = FloatingPointError("the state is not finite")
    await bench.tell(SAVE)
    assert bench.machine.heard[-2:] == [ev.StateCopied(), ev.CheckpointSaved(2, "the state is not finite")]
    await bench.end()


async def test_node_does_not_end_before_its_last_checkpoint_is_written(bench: Bench) -> None:
    written: asyncio.Future[Path] = asyncio.get_running_loop().create_future()
    bench.trainer.answers["save_checkpoint"] = written
    bench.machine.rules[ev.StateCopied] = lambda event: [do.Leave("stop")]
    await bench.tell(SAVE)
    asyncio.get_running_loop().call_later(0.05, written.set_result, Path("checkpoint"))
    assert (await bench.ended()).reason == "stop"
    assert written.done()
    assert not written.cancelled()


async def test_disk_that_refuses_the_last_checkpoint_is_heard_even_at_the_end(bench: Bench) -> None:
    written: asyncio.Future[Path] = asyncio.get_running_loop().create_future()
    bench.trainer.answers["save_checkpoint"] = written
    bench.machine.rules[ev.StateCopied] = lambda event: [do.Leave("stop")]
    await bench.tell(SAVE)
    asyncio.get_running_loop().call_later(0.05, written.set_exception, DiskFailed("no space"))
    with pytest.raises(DiskFailed):
        await bench.ended()


async def test_inner_step_reports_what_the_optimizer_did_and_counts_as_progress(bench: Bench) -> None:
    bench.now_s = 5.0
    await bench.tell(STEP)
    assert bench.machine.heard[-1] == ev.InnerStepDone(1.0, True, 0.1)
    assert bench.driver.last_progress_s == 5.0


# --- state ----------------------------------------------------------------------------------------


async def test_state_comes_from_the_seed_or_the_checkpoint(bench: Bench) -> None:
    await bench.tell(do.InitialiseState(SEAT))
    await bench.tell(do.LoadCheckpoint(SEAT))
    assert bench.machine.of(ev.StateLoaded) == [
        ev.StateLoaded(0, 0, 0, "seed"),
        ev.StateLoaded(3, 1, 9, "checkpoint"),
    ]


async def test_damaged_checkpoint_is_told_and_is_no_end(bench: Bench) -> None:
    bench.trainer.answers["load_checkpoint"] = BadCheckpoint("cut short")
    await bench.tell(do.LoadCheckpoint(SEAT))
    assert bench.machine.heard[-1] == ev.StateUnavailable("cut short")
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
    assert bench.machine.of(ev.StateLoaded) == [ev.StateLoaded(4, 0, 0, "peer")]
    assert files_in(tmp_path) == []


async def test_donor_is_asked_for_the_parts_needed_and_tells_what_the_seat_promised(bench: Bench) -> None:
    bench.network.files[PEER], bench.network.promised = b"weights", 77
    await fetched(bench)
    assert bench.network.asked == [(PEER, SEAT, StateParts.SLOW)]
    assert [event.data_next for event in bench.machine.of(ev.StateLoaded)] == [77]


async def test_checkpoint_of_another_seat_of_the_stage_is_taken_as_a_donors(bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / "kept"
    write(path, b"weights")
    bench.kept[THERE] = path, 4
    await bench.tell(do.LoadCheckpoint(SEAT, THERE))
    await asyncio.sleep(0.05)
    assert bench.machine.of(ev.StateLoaded) == [ev.StateLoaded(4, 0, 0, "kept")]
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
    for spoiled in ({"promised": 3}, {"promised": {"x": "y"}}, {"promised": None}, {}):
        assert promise_notes.recalled(spoiled) == ()


async def test_state_that_no_donor_has_is_unavailable(bench: Bench, tmp_path: Path) -> None:
    bench.network.files[THIRD] = b"garbage"
    bench.trainer.answers["load_state_file"] = BadCheckpoint("not a checkpoint")
    await fetched(bench)
    assert bench.machine.of(ev.StateLoaded) == []
    assert bench.machine.heard[-1] == ev.StateUnavailable("not a checkpoint")
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
    assert bench.machine.of(ev.StateLoaded) == [ev.StateLoaded(4, 0, 0, "peer")]
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


# --- seats and records ----------------------------------------------------------------------------


async def test_look_up_tells_every_record_before_its_end(bench: Bench) -> None:
    bench.discovery.found[THERE] = [record_of(PEER), record_of(THIRD)]
    await bench.tell(do.ReadSeats((SEAT, THERE)))
    heard = bench.machine.heard
    read = heard.index(ev.SeatsRead((SEAT, THERE), reached=True))
    learnt = [event.record.peer for event in heard[:read] if isinstance(event, ev.RecordLearnt)]
    assert learnt == [PEER, THIRD]


async def test_look_up_without_an_answer_goes_by_what_this_node_keeps(bench: Bench) -> None:
    bench.discovery.is_up = False
    bench.discovery.held[THERE] = [record_of(PEER)]
    await bench.tell(do.ReadSeats((THERE,)))
    assert [event.record.peer for event in bench.machine.of(ev.RecordLearnt)] == [PEER]
    assert bench.machine.of(ev.SeatsRead) == [ev.SeatsRead((THERE,), reached=False)]


async def test_record_is_published_with_what_the_machine_says(bench: Bench) -> None:
    await bench.tell(do.PublishRecord(SEAT, SeatState.ACTIVE, 17, 4, 99, 3))
    (record,) = bench.discovery.published
    assert (record.peer, record.seat, record.state, record.claim) == (ME, SEAT, SeatState.ACTIVE, 17)
    assert (record.outer_step, record.data_next, record.checkpoint_step) == (4, 99, 3)
    (event,) = bench.machine.of(ev.RecordPublished)
    assert event.confirmed
    assert bench.driver.doorkeeper.own_record() == b"signed"


async def test_new_claim_begins_now(bench: Bench) -> None:
    await bench.tell(do.PublishRecord(SEAT, SeatState.JOINING, None, 0, 0, 0))
    assert bench.discovery.published[0].claim == WALL_MS


async def test_record_never_says_a_number_that_is_none(bench: Bench) -> None:
    """Others strike whoever publishes a NaN."""
    bench.driver.around = replace(bench.driver.around, progress=lambda: (float("inf"), float("nan")))
    await bench.tell(do.PublishRecord(SEAT, SeatState.ACTIVE, 17, 4, 99, 3))
    (record,) = bench.discovery.published
    assert (record.tokens_per_s, record.loss) == (0.0, 0.0)


async def test_record_that_could_not_be_published_is_not_confirmed(bench: Bench) -> None:
    bench.discovery.is_up = False
    await bench.tell(do.PublishRecord(SEAT, SeatState.ACTIVE, 17, 4, 99, 3))
    (event,) = bench.machine.of(ev.RecordPublished)
    assert (event.confirmed, event.lives_s) == (False, 0.0)
    assert bench.driver.doorkeeper.own_record() == b""


async def test_record_on_a_call_is_learnt_with_the_time_it_has_left(bench: Bench) -> None:
    bench.discovery.encoded[b"record"] = record_of(PEER, lives_s=12.0)
    assert bench.driver.doorkeeper.admit(PEER, b"record", needs_lease=True) == ""
    (event,) = bench.machine.of(ev.RecordLearnt)
    assert (event.record.peer, event.lives_s) == (PEER, 12.0)


async def test_record_that_has_expired_is_not_learnt(bench: Bench) -> None:
    bench.discovery.encoded[b"old"] = record_of(PEER, lives_s=-1.0)
    bench.driver.doorkeeper.learn(PEER, b"old")
    assert bench.machine.of(ev.RecordLearnt) == []


async def meet(bench: Bench, seq: int) -> None:
    """A new record of the peer comes on a call."""
    encoded = str(seq).encode()
    bench.discovery.encoded[encoded] = record_of(PEER, seq=seq)
    bench.driver.doorkeeper.learn(PEER, encoded)
    await bench.settle()


async def test_peer_is_greeted_seldom_even_if_it_could_not_be_reached(bench: Bench) -> None:
    bench.network.greetings[PEER] = PeerLost("away")
    await meet(bench, 1)
    await meet(bench, 2)
    assert bench.network.greeted == [PEER]
    bench.now_s = limits.HELLO_INTERVAL_S
    await meet(bench, 3)
    assert bench.network.greeted == [PEER, PEER]


async def test_key_in_use_elsewhere_ends_the_run_without_a_goodbye(bench: Bench) -> None:
    bench.machine.membership.leave = lambda now: [do.PublishRecord(SEAT, SeatState.LEAVING, 17, 4, 99, 3)]
    bench.driver.fail(IdentityInUse("another process uses this key"))
    with pytest.raises(IdentityInUse):
        await bench.ended()
    assert bench.discovery.published == []


async def test_goodbye_that_fails_does_not_hide_what_ended_the_run(bench: Bench) -> None:
    async def full(record: SeatRecord) -> tuple[SeatRecord, bytes, bool]:
        raise BadIdentity("the sequence cannot be written")

    bench.machine.membership.leave = lambda now: [do.PublishRecord(SEAT, SeatState.LEAVING, 17, 4, 99, 3)]
    bench.discovery.publish = full  # type: ignore[method-assign]
    bench.driver.fail(DiskFailed("no space"))
    with pytest.raises(DiskFailed):
        await bench.ended()


async def test_peer_of_another_run_gets_a_strike_and_is_no_end(bench: Bench) -> None:
    bench.network.greetings[PEER] = WrongRun("another run")
    await meet(bench, 1)
    assert bench.driver.doorkeeper.strikes_of(PEER) == 1.0
    await bench.end()


async def test_own_record_heard_from_others_is_not_greeted(bench: Bench) -> None:
    bench.discovery.found[SEAT] = [record_of(ME, seat=SEAT)]
    await bench.tell(do.ReadSeats((SEAT,)))
    assert bench.network.greeted == []


async def test_state_file_is_offered_only_for_the_seat_at_work(bench: Bench) -> None:
    assert bench.driver.state_file() is None


async def test_banned_peer_is_not_served(bench: Bench) -> None:
    for _ in range(limits.STRIKES_TO_BAN):
        bench.driver.doorkeeper.strike(PEER, "rule broken")
    assert bench.driver.doorkeeper.admit(PEER, b"", needs_lease=False) == "banned"
