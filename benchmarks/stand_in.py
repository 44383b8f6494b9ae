"""A real node whose device is a stand-in: it holds the training thread for a given time and computes nothing.

    python benchmarks/stand_in.py --spec FILE --data-dir DIR --seat S.R --listen ADDRESS --hold-s T --record FILE

Forward (with loss and backward) takes `--hold-s`; an inner step scales the weights a little, by another factor on each
replica, so that there is something to exchange. All else is the node as it is: the state machine, gRPC in libp2p, the
outer state and its arithmetic, checkpoints. `--record` gets a line for each job of the training thread (`job_record`),
one when the imports are over and one when the weights are in place.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

import torch  # noqa: E402
from job_record import link_sent_bytes  # noqa: E402

from noloco_node.config.node_config import NodeConfig  # noqa: E402
from noloco_node.config.run_spec import RunSpec  # noqa: E402
from noloco_node.core.limits import STOP_GRACE_S  # noqa: E402
from noloco_node.core.types import Seat  # noqa: E402
from noloco_node.node import Node  # noqa: E402
from noloco_node.ports import (  # noqa: E402
    Boundary,
    ForwardResult,
    LoadedState,
    MicroBatch,
    StepResult,
    Trainer,
    Verdict,
)
from noloco_node.training.lane import TrainingLane  # noqa: E402
from noloco_node.training.settings import TrainerPlace, TrainingSettings  # noqa: E402
from noloco_node.training.trainer import StageTrainer, build_trainer  # noqa: E402

SHRINK = 1e-4  # per inner step, times the replica's number plus one
LOSS = 1.0


class Record:
    """Lines of one node, from any of its threads."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def note(self, what: str, begun_s: float, ended_s: float, **more: Any) -> None:
        line = {"what": what, "begun_s": begun_s, "ended_s": ended_s, **more}
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def moment(self, what: str, **more: Any) -> None:
        now_s = time.monotonic()
        self.note(what, now_s, now_s, **more)

    @contextmanager
    def job(self, what: str) -> Iterator[None]:
        begun_s = time.monotonic()
        yield
        self.note(what, begun_s, time.monotonic())


class StandInTrainer(StageTrainer):
    """`built`: the real trainer, whose parts it takes over."""

    def __init__(
        self, built: StageTrainer, settings: TrainingSettings, place: TrainerPlace, hold_s: float, record: Record
    ) -> None:
        super().__init__(settings, place, built.stage, built.optimizer, built.outer, built._graphs, built.reader)
        self._factor = 1 - SHRINK * (place.seat.replica + 1)
        self._hold_s = hold_s
        self._record = record

    def forward(self, call: int, batch: MicroBatch, *, count: bool) -> ForwardResult:
        with self._record.job("forward"):
            time.sleep(self._hold_s)
        return ForwardResult(finite=True, loss_sum=LOSS)

    @torch.no_grad()
    def inner_step(self, *, tokens: int, position: int) -> StepResult:
        with self._record.job("inner_step"):
            for parameter in self.stage.parameters():
                parameter.mul_(self._factor)
        return StepResult(1.0, 0.0, applied=True)

    def take_boundary(self, outer_step: int) -> Boundary:
        sent, begun_s = link_sent_bytes(), time.monotonic()
        boundary = super().take_boundary(outer_step)
        more = {"outer_step": outer_step, "tensor_bytes": boundary.tensor_bytes, "sent_bytes": sent}
        self._record.note("boundary", begun_s, time.monotonic(), **more)
        return boundary

    def verify(self, outer_step: int, tensor: memoryview) -> Verdict:
        with self._record.job("verify"):
            return super().verify(outer_step, tensor)

    def add_correction(self, outer_step: int) -> None:
        with self._record.job("correction"):
            super().add_correction(outer_step)

    def save_checkpoint(
        self, *, outer_step: int, inner_step: int, data_next: int, notes: dict[str, Any]
    ) -> Callable[[], Path]:
        with self._record.job("checkpoint"):
            return super().save_checkpoint(
                outer_step=outer_step, inner_step=inner_step, data_next=data_next, notes=notes
            )


class StandInLane(TrainingLane):
    def __init__(self, settings: TrainingSettings, place: TrainerPlace, hold_s: float, record: Record) -> None:
        super().__init__(settings, place)
        self._wrap = partial(StandInTrainer, settings=settings, place=place, hold_s=hold_s, record=record)
        self._record = record

    async def initialise(self) -> LoadedState:
        loaded = await super().initialise()
        self._record.moment("ready")
        return loaded

    async def verify(self, outer_step: int, tensor: memoryview) -> Verdict:
        self._record.moment("received", outer_step=outer_step)
        return await super().verify(outer_step, tensor)

    def _build(self) -> StageTrainer:
        if self._trainer is None:
            self._trainer = self._wrap(build_trainer(self._settings, self._place))
        return self._trainer


class StandInNode(Node):
    def __init__(self, config: NodeConfig, spec: RunSpec, hold_s: float, record: Record) -> None:
        super().__init__(config, spec)
        self._hold_s = hold_s
        self._record = record

    def _trainer(self, seat: Seat) -> Trainer:
        place = self.config.trainer_place(seat, self._folders.of(seat))
        return StandInLane(self.spec.training_settings(), place, self._hold_s, self._record)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for flag in ("--spec", "--data-dir", "--record"):
        parser.add_argument(flag, type=Path, required=True)
    parser.add_argument("--seat", required=True)
    parser.add_argument("--listen", required=True)
    parser.add_argument("--initial-peers", action="append", default=[])
    parser.add_argument("--hold-s", type=float, required=True)
    parser.add_argument("--stop-grace-s", type=float, default=STOP_GRACE_S)
    options = parser.parse_args()

    import uvloop

    from noloco_node.config.spec_file import load_run_spec
    from noloco_node.telemetry.logs import open_log

    config = NodeConfig(
        spec=options.spec,
        data_dir=options.data_dir,
        seat=options.seat,
        listen=(options.listen,),
        initial_peers=tuple(options.initial_peers),
        metrics_port=0,
        device="cpu",
        threads=1,
        reachability="public",
        relay=False,
        log_format="json",
        stop_grace_s=options.stop_grace_s,
    )
    open_log(config.log_format, config.log_level)
    with options.record.open("a") as file:
        record = Record(file)
        record.moment("imported")
        sys.exit(uvloop.run(StandInNode(config, load_run_spec(options.spec), options.hold_s, record).run()))


if __name__ == "__main__":
    main()
