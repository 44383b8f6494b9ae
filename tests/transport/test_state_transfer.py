"""A newcomer fetches a checkpoint file: whole, resumed, refused."""

from __future__ import annotations

import asyncio
import errno
import random
import time
from dataclasses import replace
from pathlib import Path

import pytest
from loopback_swarm import ALICE, CAROL, Node, Swarm, until

from noloco_node.core import limits
from noloco_node.core.types import PeerId, Seat
from noloco_node.errors import DiskFailed, PeerLost, RemoteProtocolError
from noloco_node.ports import StateParts
from noloco_node.transport import state_service
from noloco_node.transport.pace import Pace
from noloco_node.transport.state_download import DonorBusy, DonorSlow, PartFile
from noloco_node.transport.state_shelf import PinnedFile, StateShelf

CONTENT = random.Random(1).randbytes(5 * limits.MIB + 77)


@pytest.fixture
def donor(bob: Node, tmp_path: Path) -> Node:
    path = tmp_path / "step-12.ckpt"
    path.write_bytes(CONTENT)
    bob.driver.file = (path, 12)
    return bob


@pytest.fixture
def into(tmp_path: Path) -> Path:
    folder = tmp_path / "newcomer"
    folder.mkdir()
    return folder / "state.ckpt"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LINK_REOPEN_S", 0.05)


def read_slowly(monkeypatch: pytest.MonkeyPatch, pause_s: float) -> None:
    """Each chunk that a donor sends takes `pause_s`."""
    read = PinnedFile.read

    def slowly(file: PinnedFile, offset: int, size_bytes: int) -> bytes:
        time.sleep(pause_s if file.digest else 0.0)  # on a thread
        return read(file, offset, size_bytes)

    monkeypatch.setattr(PinnedFile, "read", slowly)


def content_of(path: Path) -> bytes:
    return path.read_bytes()


def assert_whole(into: Path) -> None:
    assert into.read_bytes() == CONTENT
    assert list(into.parent.iterdir()) == [into]


def assert_absent(into: Path) -> None:
    assert not into.exists()


async def test_file_arrives_whole_with_its_outer_step(alice: Node, donor: Node, into: Path) -> None:
    assert (await alice.network.fetch_state(donor.peer, into)).outer_step == 12
    assert_whole(into)
    assert donor.moved("state", "sent") == alice.moved("state", "received") == len(CONTENT)


async def test_cut_download_goes_on_at_the_offset(
    alice: Node, donor: Node, peers: Swarm, into: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CHUNK_BYTES_MAX", 64 * 1024)
    fetching = asyncio.create_task(alice.network.fetch_state(donor.peer, into))
    for part in (1, 2):
        await until(lambda part=part: alice.moved("state", "received") > part * len(CONTENT) // 3)
        peers.wires.cut()
    assert (await fetching).outer_step == 12
    assert_whole(into)
    assert alice.moved("state", "received") == len(CONTENT)


async def test_later_attempt_goes_on_with_the_same_donor(
    alice: Node, donor: Node, into: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CHUNK_BYTES_MAX", 64 * 1024)
    fetching = asyncio.create_task(alice.network.fetch_state(donor.peer, into))
    await until(lambda: alice.moved("state", "received") > len(CONTENT) // 2)
    fetching.cancel()
    await asyncio.gather(fetching, return_exceptions=True)
    assert_absent(into)
    await alice.network.fetch_state(donor.peer, into)
    assert_whole(into)
    assert alice.moved("state", "received") < 1.2 * len(CONTENT)


async def test_another_donor_means_starting_again(
    alice: Node, donor: Node, peers: Swarm, into: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CHUNK_BYTES_MAX", 64 * 1024)
    carol = await peers.add(CAROL)
    carol.driver.file = donor.driver.file
    fetching = asyncio.create_task(alice.network.fetch_state(donor.peer, into))
    await until(lambda: alice.moved("state", "received") > len(CONTENT) // 2)
    fetching.cancel()
    await asyncio.gather(fetching, return_exceptions=True)
    await alice.network.fetch_state(carol.peer, into)
    assert_whole(into)
    assert carol.moved("state", "sent") == len(CONTENT)


async def test_donor_that_dies_leaves_no_file(
    alice: Node, donor: Node, peers: Swarm, into: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CHUNK_BYTES_MAX", 64 * 1024)
    read_slowly(monkeypatch, 0.05)
    fetching = asyncio.create_task(alice.network.fetch_state(donor.peer, into))
    await until(lambda: alice.moved("state", "received") > 0)
    peers.wires.unreachable.add(donor.peer)
    peers.wires.cut()
    with pytest.raises(PeerLost):
        await fetching
    assert_absent(into)


async def test_file_deleted_meanwhile_is_still_sent_whole(
    alice: Node, donor: Node, into: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CHUNK_BYTES_MAX", 64 * 1024)
    fetching = asyncio.create_task(alice.network.fetch_state(donor.peer, into))
    await until(lambda: alice.moved("state", "received") > 0)
    assert donor.driver.file is not None
    donor.driver.file[0].unlink()
    assert (await fetching).outer_step == 12
    assert_whole(into)


async def test_donor_without_a_checkpoint_says_so(alice: Node, bob: Node, into: Path) -> None:
    with pytest.raises(PeerLost, match="no checkpoint yet"):
        await alice.network.fetch_state(bob.peer, into)


async def test_upload_beyond_the_cap_is_busy(
    alice: Node, donor: Node, into: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "STATE_UPLOADS_MAX", 0)
    monkeypatch.setattr(limits, "STATE_RESUMES_MAX", 1)
    with pytest.raises(PeerLost, match="busy"):
        await alice.network.fetch_state(donor.peer, into)


async def test_busy_donor_is_left_at_once_for_the_next(alice: Node, donor: Node, into: Path) -> None:
    """Said before a file is read for it, and not tried again and again."""
    assert donor.network._shelf is not None
    donor.network._shelf._uploads = {PeerId(f"other{n}"): int for n in range(limits.STATE_UPLOADS_MAX)}
    with pytest.raises(DonorBusy):
        await alice.network.fetch_state(donor.peer, into)
    assert donor.driver.asked == []


async def test_one_peer_has_one_upload_and_leaves_the_rest_to_others(
    alice: Node, donor: Node, peers: Swarm, into: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many fetches as there are places, all by one peer: the later makes the earlier end."""
    monkeypatch.setattr(limits, "CHUNK_BYTES_MAX", 64 * 1024)
    monkeypatch.setattr(limits, "STATE_RESUMES_MAX", 1)
    read_slowly(monkeypatch, 0.02)
    shelf = donor.network._shelf
    assert shelf is not None
    first = asyncio.create_task(alice.network.fetch_state(donor.peer, into))
    await until(lambda: len(shelf._uploads) == 1)
    others = [
        asyncio.create_task(alice.network.fetch_state(donor.peer, tmp_path / f"again{n}"))
        for n in range(limits.STATE_UPLOADS_MAX)
    ]
    await until(lambda: first.done() or any(other.done() for other in others))
    assert len(shelf._uploads) == 1
    carol = await peers.add(CAROL)
    donor.gate.seats[CAROL] = Seat(0, 1)
    assert (await carol.network.fetch_state(donor.peer, tmp_path / "carol")).outer_step == 12
    for fetching in (first, *others):
        fetching.cancel()
    await asyncio.gather(first, *others, return_exceptions=True)


async def test_guests_leave_one_place_to_holders_of_a_lease_of_the_stage(
    alice: Node, donor: Node, peers: Swarm, into: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A guest turned away may have another guest's place, when that one is slow, and nobody else's."""
    monkeypatch.setattr(limits, "CHUNK_BYTES_MAX", 64 * 1024)
    read_slowly(monkeypatch, 0.02)
    shelf = donor.network._shelf
    assert shelf is not None
    first = asyncio.create_task(alice.network.fetch_state(donor.peer, into))
    await until(lambda: len(shelf._uploads) == 1)
    carol = await peers.add(CAROL)
    for seat in (None, Seat(1, 1)):  # a seat of another stage is as good as none
        donor.gate.seats = {CAROL: seat} if seat else {}
        with pytest.raises(DonorBusy):
            await carol.network.fetch_state(donor.peer, tmp_path / "carol")
    assert (shelf.refused_since(0.0, ALICE), shelf.refused_since(0.0, CAROL)) == (True, False)
    donor.gate.seats = {CAROL: Seat(0, 1)}
    served = asyncio.create_task(carol.network.fetch_state(donor.peer, tmp_path / "carol", Seat(0, 1)))
    await until(lambda: len(shelf._uploads) == 2)
    assert (await asyncio.gather(first, served))[1].outer_step == 12


async def test_slow_reader_makes_way_only_when_others_are_turned_away(
    alice: Node, donor: Node, into: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CHUNK_BYTES_MAX", 64 * 1024)
    monkeypatch.setattr(limits, "STATE_RATE_WINDOW_S", 0.01)
    shelf, sent = donor.network._shelf, Pace.is_too_slow
    assert shelf is not None
    monkeypatch.setattr(Pace, "is_too_slow", lambda pace: sent(pace) or pace._now is not time.monotonic)
    await alice.network.fetch_state(donor.peer, into)
    assert_whole(into)
    monkeypatch.setattr(shelf, "_refused_s", float("inf"))  # somebody is turned away all the time
    monkeypatch.setattr(limits, "STATE_RESUMES_MAX", 1)
    before = alice.moved("state", "received")
    fetching = asyncio.create_task(alice.network.fetch_state(donor.peer, into))
    await until(lambda: alice.moved("state", "received") > before)
    await until(lambda: len(shelf._uploads) == 0)
    assert alice.moved("state", "received") - before < len(CONTENT)
    fetching.cancel()
    await asyncio.gather(fetching, return_exceptions=True)


async def test_newcomer_gets_the_parts_it_asks_for_and_the_promise_of_its_seat(
    alice: Node, donor: Node, into: Path
) -> None:
    head, spans = b"head", ((10, 1000), (limits.MIB, 2 * limits.MIB))
    donor.driver.excerpt = head, spans
    donor.driver.promises[Seat(0, 3)] = 77
    fetched = await alice.network.fetch_state(donor.peer, into, Seat(0, 3), StateParts.SLOW)
    assert (fetched.outer_step, fetched.data_next) == (12, 77)
    assert content_of(into) == head + b"".join(CONTENT[start : start + size] for start, size in spans)
    assert donor.driver.asked == [(0, StateParts.SLOW)]
    whole = await alice.network.fetch_state(donor.peer, into)
    assert (whole.outer_step, whole.data_next) == (12, 0)
    assert_whole(into)


async def test_checkpoint_replaced_while_its_head_was_made_is_not_given(alice: Node, donor: Node, into: Path) -> None:
    described = donor.driver.state_file
    donor.driver.state_file = lambda *asked: replace(described(*asked), stamp_ns=1)  # type: ignore[method-assign]
    with pytest.raises(PeerLost, match="no checkpoint yet"):
        await alice.network.fetch_state(donor.peer, into)


async def test_slow_link_takes_as_long_as_it_must_while_chunks_come(
    alice: Node, donor: Node, into: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole takes many times the deadline of one chunk."""
    monkeypatch.setattr(limits, "CHUNK_BYTES_MAX", 256 * 1024)
    monkeypatch.setattr(limits, "CHUNK_DEADLINE_S", 0.5)
    read_slowly(monkeypatch, 0.1)
    await alice.network.fetch_state(donor.peer, into)
    assert_whole(into)
    assert alice.moved("state", "received") == len(CONTENT)


async def test_slots_of_newcomers_that_vanish_are_free_again(
    alice: Node, donor: Node, peers: Swarm, into: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CHUNK_BYTES_MAX", 64 * 1024)
    shelf = donor.network._shelf
    assert shelf is not None
    for _ in range(3):
        fetching = asyncio.create_task(alice.network.fetch_state(donor.peer, into))
        await until(lambda: len(shelf._uploads) == 1)
        fetching.cancel()
        peers.wires.cut()
        await asyncio.gather(fetching, return_exceptions=True)
        await until(lambda: len(shelf._uploads) == 0)


async def test_changed_bytes_are_refused_with_a_strike(
    alice: Node, donor: Node, into: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    described = await donor.network._shelf.newest()  # type: ignore[union-attr]
    assert described is not None
    monkeypatch.setattr(PinnedFile, "read", lambda self, offset, size: bytes(min(size, self.size_bytes - offset)))
    with pytest.raises(RemoteProtocolError, match="digest"):
        await alice.network.fetch_state(donor.peer, into)
    assert list(into.parent.iterdir()) == []
    assert alice.gate.strikes == [(donor.peer, "the checkpoint's digest is wrong")]


async def test_early_end_is_refused(alice: Node, donor: Node, into: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def at_once(self: object, file: PinnedFile, offset: int, peer: PeerId, context: object) -> None:
        frame = state_service.end_frame(state_service.StateFrame, file.size_bytes, 0, file.digest)
        await context.write(frame)  # type: ignore[attr-defined]

    monkeypatch.setattr(state_service.StateService, "_send", at_once)
    with pytest.raises(RemoteProtocolError, match="ended after"):
        await alice.network.fetch_state(donor.peer, into)


async def test_checkpoint_larger_than_the_stage_is_refused_before_a_byte_is_written(
    alice: Node, donor: Node, into: Path
) -> None:
    with pytest.raises(RemoteProtocolError, match="at most"):
        await alice.network.fetch_state(donor.peer, into, bytes_max=len(CONTENT) - 1)
    assert list(into.parent.iterdir()) == []
    assert alice.moved("state", "received") == 0
    assert [peer for peer, _ in alice.gate.strikes] == [donor.peer]


async def test_full_disk_keeps_no_part(alice: Node, donor: Node, into: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(part: PartFile, frame: object, payload: memoryview) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(PartFile, "add", full)
    with pytest.raises(DiskFailed):
        await alice.network.fetch_state(donor.peer, into)
    assert list(into.parent.iterdir()) == []


async def test_donor_that_trickles_is_left(
    alice: Node, donor: Node, into: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each chunk comes well within its own deadline."""
    monkeypatch.setattr(limits, "CHUNK_BYTES_MAX", 1024)
    monkeypatch.setattr(limits, "STATE_RATE_MIN", 1 << 40)
    monkeypatch.setattr(limits, "STATE_RATE_WINDOW_S", 0.01)
    with pytest.raises(DonorSlow):
        await alice.network.fetch_state(donor.peer, into)
    assert_absent(into)


async def test_unwritable_place_is_a_disk_fault(alice: Node, donor: Node, tmp_path: Path) -> None:
    with pytest.raises(DiskFailed):
        await alice.network.fetch_state(donor.peer, tmp_path / "missing" / "state.ckpt")


async def test_shelf_digests_a_file_once_and_lets_it_go(donor: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = StateShelf(donor.driver)
    first = await shelf.newest()
    assert first is not None
    assert await shelf.newest() is first
    monkeypatch.setattr(limits, "STATE_PIN_S", -1.0)
    second = await shelf.newest()
    assert second is not first
    assert first.handle.closed
    shelf.close()


async def test_shelf_closes_a_file_nobody_asks_for_again(donor: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STATE_PIN_S", 0.02)
    shelf = StateShelf(donor.driver)
    file = await shelf.newest()
    assert file is not None
    with shelf.upload(file.digest, PeerId("guest"), None, int):
        await asyncio.sleep(0.1)
        assert not file.handle.closed
    await until(lambda: file.handle.closed)
    shelf.close()
