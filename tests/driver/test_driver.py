"""The driver's life, its timer, seats, records and state: what the machine is told, and what ends the node."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from driver_bench import ME, PEER, SEAT, THERE, THIRD, WALL_MS, Bench, record_of

from noloco_node.core import effects as do
from noloco_node.core import events as ev
from noloco_node.core import limits
from noloco_node.core.flow import MicroBatchFlow
from noloco_node.core.types import ClosedStep, Outcome, SeatRecord, SeatState
from noloco_node.driver.closed_step_notes import noted, recalled
from noloco_node.errors import BadData, BadIdentity, DiskFailed, IdentityInUse, PeerLost, WrongRun
from noloco_node.ports import LoadedState

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
    assert bench.machine.of(ev.StateLoaded) == [ev.StateLoaded(2, 0, 8, "checkpoint", LAST, seat=SEAT)]


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


async def test_hop_turned_away_at_its_header_counts_as_busy(bench: Bench) -> None:
    bench.driver.turned_away()  # no seat, no accounts
    flow = bench.machine.flow = MicroBatchFlow(bench.machine.settings, SEAT)
    bench.driver.turned_away()
    assert flow.accounts.busy == 1


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
