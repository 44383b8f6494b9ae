"""`export --from-swarm`: against a live swarm of real processes, and what is tried again or refused."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from noloco_node.cli import main, swarm_fetch
from noloco_node.cli.local_swarm import LocalSwarm
from noloco_node.config.presets import preset
from noloco_node.config.run_spec import RunSpec
from noloco_node.config.spec_file import dump, load_run_spec
from noloco_node.core.types import PeerId, Seat, SeatRecord, SeatState
from noloco_node.errors import BadConfig, ExitCode, NotAdmitted, PeerLost, PeerRefused, SwarmUnreachable, WrongRun
from noloco_node.ports import NOT_ALLOWED, FetchedState
from noloco_node.training import checkpoint
from noloco_node.training.settings import TrainerPlace
from noloco_node.training.trainer import build_trainer

STRANGER = "/ip4/127.0.0.1/tcp/9/p2p/12D3KooWJ6H8DJ5VwwZr6LKhsGHUyPG8yaYtCMqhKUZ4s8SCnoQM"
SEATS = [Seat(stage, replica) for stage in range(2) for replica in range(2)]
INTERVAL_S = 12.0  # checkpoints stay for two of them: time to compare


# --- one seat ---------------------------------------------------------------------------------------


class Donors:
    """A network whose donors answer as told: an exception, or the seat whose checkpoint they give."""

    def __init__(self, spec: RunSpec, folder: Path, answers: list[Exception | Seat]) -> None:
        self._spec = spec
        self._folder = folder
        self._answers = iter(answers)

    async def fetch_state(self, peer: PeerId, into: Path) -> FetchedState:
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        trainer = build_trainer(self._spec.training_settings(), TrainerPlace(answer, "cpu", self._folder, threads=1))
        trainer.initialise()
        trainer.save_checkpoint(outer_step=1, inner_step=0, data_next=0, notes={})().replace(into)
        trainer.close()
        return FetchedState(1)


async def fetched(folder: Path, monkeypatch: pytest.MonkeyPatch, *answers: Exception | Seat) -> Path | None:
    import asyncio

    monkeypatch.setattr(swarm_fetch, "TRY_PAUSE_S", 0.0)
    spec = preset("tiny")
    guest = swarm_fetch.Guest(spec, None, Donors(spec, folder / "donor", list(answers)))  # type: ignore[arg-type]
    record = SeatRecord("run", Seat(1, 0), PeerId("peer"), 1, 1, 1, 1, SeatState.ACTIVE, checkpoint_step=1)
    return await guest.fetch(record, folder, asyncio.Semaphore(1))


async def test_busy_donor_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = await fetched(tmp_path, monkeypatch, PeerLost("busy"), PeerLost("busy"), Seat(1, 0))
    assert path is not None
    assert checkpoint.read_meta(path).place == Seat(1, 0)


async def test_checkpoint_of_another_seat_or_run_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await fetched(tmp_path, monkeypatch, *[Seat(1, 1)] * swarm_fetch.TRIES_MAX) is None
    assert not (tmp_path / "seat-1.0.safetensors").exists()


async def test_donor_that_never_answers_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await fetched(tmp_path, monkeypatch, *[PeerLost("gone")] * swarm_fetch.TRIES_MAX) is None


# --- who is not admitted ----------------------------------------------------------------------------


@pytest.mark.parametrize(("is_fresh", "advice"), [(True, "--data-dir DATA_DIR"), (False, "tell the owner")])
async def test_guest_that_a_list_excludes_hears_which_key_to_show(is_fresh: bool, advice: str) -> None:
    async def refuse(peer: PeerId) -> None:
        raise PeerRefused("permission denied", NOT_ALLOWED)

    network, discovery = SimpleNamespace(hello=refuse), SimpleNamespace(peer_id="guest")
    guest = swarm_fetch.Guest(preset("tiny"), discovery, network, is_fresh=is_fresh)  # type: ignore[arg-type]
    with pytest.raises(NotAdmitted, match="does not admit guest: not allowed") as refused:
        await guest.greet([PeerId("donor")])
    assert advice in refused.value.advice


def test_key_of_a_data_directory_goes_with_the_swarm_only(tmp_path: Path) -> None:
    out = ["--out", str(tmp_path / "model")]
    assert main(["export", "--checkpoints", str(tmp_path), "--data-dir", str(tmp_path), *out]) == ExitCode.USAGE


def test_data_directory_without_a_key_is_a_fault_and_gets_none(tmp_path: Path) -> None:
    (tmp_path / "swarm.toml").write_text(dump(preset("tiny")))
    source = ["--from-swarm", "--peer", STRANGER, "--spec", str(tmp_path / "swarm.toml")]
    chosen = ["--data-dir", str(tmp_path / "nobody"), "--out", str(tmp_path / "model")]
    assert main(["export", *source, *chosen]) == ExitCode.BAD_IDENTITY
    assert [path.name for path in tmp_path.iterdir()] == ["swarm.toml"]


# --- a live swarm -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def swarm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalSwarm]:
    """Two stages of two replicas on the time clock, each with a checkpoint."""
    folder = tmp_path_factory.mktemp("swarm")
    outer: dict[str, Any] = {"clock": "time", "outer_interval_s": INTERVAL_S, "start_unix_s": time.time()}
    (folder / "swarm.toml").write_text(dump(preset("tiny", outer=outer | {"total_outer_steps": 10_000})))
    with LocalSwarm(folder / "swarm.toml", folder, SEATS) as running:
        running.start()
        deadline = time.monotonic() + 120
        while not all(list(running.folder_of(seat).rglob("step-*.safetensors")) for seat in SEATS):
            assert time.monotonic() < deadline, running.poll()
            assert running.failed() is None
            time.sleep(0.5)
        yield running


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where temporary files go; a short path, for unix sockets."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        monkeypatch.setattr(tempfile, "tempdir", name)
        yield Path(name)


def peers(swarm: LocalSwarm) -> tuple[str, ...]:
    return tuple(swarm.nodes[0].info["addresses"])


@pytest.mark.slow
def test_every_seats_newest_checkpoint_is_fetched_whole(swarm: LocalSwarm, temporary: Path, tmp_path: Path) -> None:
    paths = swarm_fetch.fetch_checkpoints(load_run_spec(swarm.spec_file), peers(swarm), tmp_path)
    metas = [checkpoint.read_meta(path) for path in paths]
    assert [meta.place for meta in metas] == SEATS
    for path, meta in zip(paths, metas, strict=True):
        own = next(swarm.folder_of(meta.place).rglob(checkpoint.file_name(meta.outer_step)))
        assert path.read_bytes() == own.read_bytes()
    assert list(temporary.iterdir()) == []


@pytest.mark.slow
def test_export_from_the_swarm_is_the_export_of_its_checkpoints(swarm: LocalSwarm, tmp_path: Path) -> None:
    """Exactly, unless an outer step closes between the two exports: then the next try."""
    for attempt in range(3):
        live, local = tmp_path / f"live-{attempt}", tmp_path / f"local-{attempt}"
        from_swarm = ["--from-swarm", "--peer", peers(swarm)[0]]
        from_files = [part for seat in SEATS for part in ("--checkpoints", str(swarm.folder_of(seat)))]
        for source, out in ((from_swarm, live), (from_files, local)):
            assert main(["export", *source, "--spec", str(swarm.spec_file), "--out", str(out)]) == ExitCode.OK
        assert names(live) == names(local)
        if all((live / name).read_bytes() == (local / name).read_bytes() for name in names(live)):
            return
    pytest.fail("three exports, none equal to that of the files")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.slow
def test_other_run_bad_address_and_silence_are_told_apart(swarm: LocalSwarm, temporary: Path, tmp_path: Path) -> None:
    spec = load_run_spec(swarm.spec_file)
    with pytest.raises(WrongRun, match="belongs to run"):
        swarm_fetch.fetch_checkpoints(preset("tiny", swarm={"seed": 9}), peers(swarm), tmp_path)
    with pytest.raises(BadConfig, match="/p2p/"):
        swarm_fetch.fetch_checkpoints(spec, ("/ip4/127.0.0.1/tcp/4001",), tmp_path)
    with pytest.raises(SwarmUnreachable, match="no peer answers"):
        swarm_fetch.fetch_checkpoints(spec, (STRANGER,), tmp_path)
    assert list(temporary.iterdir()) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_stage_without_a_live_replica_is_named(swarm: LocalSwarm, tmp_path: Path) -> None:
    for node in swarm.nodes:
        if node.seat.stage == 1:
            node.process.terminate()
            assert node.process.wait(60) == ExitCode.OK
    with pytest.raises(SwarmUnreachable, match="no replica of stage 1 announces a checkpoint"):
        swarm_fetch.fetch_checkpoints(load_run_spec(swarm.spec_file), peers(swarm), tmp_path, patience_s=5)
