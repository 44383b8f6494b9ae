"""Micro-batches of one stage-0 seat by their running number, and the held-out rows of the run.

Owns which document belongs to whom: held-out or one of `num_replicas` shards, drawn per document number from the run
seed, so that shards are disjoint and nothing held out is trained on. Micro-batch n is rows n*B .. of the shard's packed
stream. Must not know what is done with a micro-batch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from concurrent.futures import CancelledError
from threading import Event, Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from noloco_node.core import limits
from noloco_node.core.seed import key64, permutation
from noloco_node.core.types import MicroBatchId
from noloco_node.errors import BadData, BadModel
from noloco_node.ports import MicroBatch, TensorBlob
from noloco_node.training.packing import DocumentOrder, RowPacker, Rows, RowShuffle, empty_rows, lay
from noloco_node.training.settings import TrainingSettings
from noloco_node.training.text import TextSource, build_source
from noloco_node.training.tokenizer import Encoder, build_encoder

KEY_RANGE = 1 << 64
HELD_OUT_POOL = 8


def is_held_out(settings: TrainingSettings, document: int) -> bool:
    """Whether document number `document` is kept for evaluation."""
    return key64(settings.seed, "heldout", document) < int(settings.data.held_out_fraction * KEY_RANGE)


def shard_of(settings: TrainingSettings, document: int) -> int:
    """The stage-0 replica whose data document number `document` is, if it is not held out."""
    return key64(settings.seed, "shard", document) % settings.num_replicas


class MicroBatchReader:
    """Reads numbers in rising order at full speed; any other number is reached from the nearest position kept.

    A number further ahead than `limits.READ_THROUGH_MAX` is not read through to: micro-batch n then begins pass number
    n over the data (`pass_state(n)`), the same for whoever jumps to the same n, and within one window's reading. What
    lies before the jump belongs to another chain of positions and is forgotten. A position that `state` names is gone
    on from exactly, however far it is behind. `cancel` may come from any thread: reading ends with CancelledError.
    """

    def __init__(
        self, packer: RowPacker | RowShuffle, *, origin: int, rows: int, cancelled: Event | None = None
    ) -> None:
        self._packer = packer
        self._origin = origin
        self._rows = rows
        self._next = 0
        self._positions: dict[int, dict[str, Any]] = {0: packer.pass_state(0)}  # of one chain, by number, rising
        self._read_to = 0  # the chain is known to lead to here without a jump
        self._reading = Lock()
        self._keeping = Lock()
        self._cancelled = cancelled or Event()

    def open(self) -> None:
        """Find the first document now, so that missing data is said at the start. Raises BadData, CancelledError."""
        with self._reading:
            self._packer.open()

    def read(self, n: int) -> MicroBatch:
        """Micro-batch `n`; its schedule position is 0 until its sender sets it. Raises BadData, CancelledError."""
        with self._reading:
            if n != self._next:
                self._go_to(n)
            return self._micro_batch(n, self._read_next())

    def state(self, n: int) -> dict[str, Any]:
        """What `resume` needs to go on with micro-batch `n`: the nearest position kept at or before it, as JSON."""
        with self._keeping:
            number, position = self._nearest(n)
            read_to = min(n, self._read_to) if number in self._positions else 0
            return {"n": number, "stream": position, "read_to": max(number, read_to)}

    def resume(self, state: dict[str, Any]) -> None:
        """Go to a position of an earlier process."""
        with self._reading:
            self._begin_chain(state["n"], state["stream"], state.get("read_to", state["n"]))

    def cancel(self) -> None:
        """End a read under way soon, and every later one at once. Waits for nothing."""
        self._cancelled.set()

    def close(self) -> None:
        """Waits for a read under way: `cancel` it first, and call this where reads are made."""
        self.cancel()
        with self._reading:
            self._packer.close()

    def _go_to(self, n: int) -> None:
        with self._keeping:
            number, position = self._nearest(n)
            read_to = self._read_to if number in self._positions else 0
        is_on_the_way = number <= self._next < n
        if n > max(read_to, (self._next if is_on_the_way else number) + limits.READ_THROUGH_MAX):
            self._begin_chain(n, self._packer.pass_state(n), n)
        elif number not in self._positions:
            self._begin_chain(number, position, number)
        elif not is_on_the_way:
            self._packer.resume(position)
            self._next = number
        while self._next < n:
            self._read_next()

    def _begin_chain(self, n: int, position: dict[str, Any], read_to: int) -> None:
        """Only what is read from here on is reached from here."""
        self._packer.resume(position)
        self._next = n
        with self._keeping:
            self._positions = {n: position}
            self._read_to = read_to

    def _read_next(self) -> Rows:
        if self._cancelled.is_set():
            raise CancelledError
        rows = self._packer.read(self._rows)
        self._next += 1
        self._keep(self._next, self._packer.state())
        return rows

    def _keep(self, n: int, position: dict[str, Any]) -> None:
        with self._keeping:
            self._read_to = max(self._read_to, n)
            self._positions.pop(n, None)
            self._positions[n] = position
            numbers = sorted(self._positions)
            if len(numbers) > limits.READER_STATES_KEPT:
                del self._positions[numbers[1]]  # the chain's beginning stays: all of it can be reached from there

    def _nearest(self, n: int) -> tuple[int, dict[str, Any]]:
        """The last position kept at or before `n`; before the chain that is the run's very beginning."""
        numbers = sorted(self._positions)
        place = bisect_right(numbers, n)
        return (numbers[place - 1], self._positions[numbers[place - 1]]) if place else (0, self._packer.pass_state(0))

    def _micro_batch(self, n: int, rows: Rows) -> MicroBatch:
        return MicroBatch(
            MicroBatchId(self._origin, n), 0, _blob(rows.ids), _blob(rows.position_ids), _blob(rows.labels)
        )


def build_reader(settings: TrainingSettings, origin: int) -> MicroBatchReader:
    """The reader of stage-0 replica `origin`. Raises BadData, and BadModel when the vocabularies do not fit."""
    encoder = _encoder(settings)
    cancelled = Event()

    def own(document: int) -> bool:
        """Asked for every document: where a long search can be ended."""
        if cancelled.is_set():
            raise CancelledError
        return not is_held_out(settings, document) and shard_of(settings, document) == origin

    source = build_source(settings.data, own)
    order = DocumentOrder(source, seed=settings.seed, shard=origin, window=settings.data.shuffle_window)
    packer = RowPacker(order, encoder, settings.sequence_length)
    rows = RowShuffle(packer, seed=settings.seed, shard=origin, window=settings.data.row_window)
    return MicroBatchReader(rows, origin=origin, rows=settings.micro_batch_size, cancelled=cancelled)


def held_out_rows(settings: TrainingSettings, rows_max: int) -> Iterator[Rows]:
    """Up to `rows_max` held-out rows, `micro_batch_size` at a time; the same ones for all who ask. Raises BadData.

    They are drawn from the first HELD_OUT_POOL * rows_max rows of one pass, so that many documents are heard.
    """
    encoder = _encoder(settings)
    source = build_source(settings.data, lambda document: is_held_out(settings, document))
    try:
        batches = list(_packed_once(source, encoder, settings, HELD_OUT_POOL * rows_max))
    finally:
        source.close()
    pool = Rows(*(np.concatenate(parts) for parts in zip(*map(_columns, batches), strict=True)))
    drawn = permutation(settings.seed, "heldout", "rows", n=len(pool.ids))[:rows_max]
    for start in range(0, len(drawn), settings.micro_batch_size):
        rows = list(drawn[start : start + settings.micro_batch_size])
        yield Rows(pool.ids[rows], pool.position_ids[rows], pool.labels[rows])


def _columns(rows: Rows) -> tuple[NDArray[np.int32], ...]:
    return rows.ids, rows.position_ids, rows.labels


def _packed_once(source: TextSource, encoder: Encoder, settings: TrainingSettings, rows_max: int) -> Iterator[Rows]:
    """The last batch is filled up with rows on which nothing is predicted."""
    source.rewind(None)
    made, row, filled, batch = 0, 0, 0, None
    while made < rows_max and (text := source.next()) is not None:
        document, offset = encoder.encode(text), 0
        while offset < document.size and made < rows_max:
            if batch is None:
                batch, row = empty_rows(settings.micro_batch_size, settings.sequence_length), 0
            taken = lay(batch, row, filled, document, offset)
            offset, filled = offset + taken, filled + taken
            if filled == settings.sequence_length:
                made, row, filled = made + 1, row + 1, 0
            if row == settings.micro_batch_size:
                yield batch
                batch = None
    if batch is not None:
        yield batch
    elif made == 0:
        raise BadData("the data holds no held-out document", "raise data.held_out_fraction or give more documents")


def _encoder(settings: TrainingSettings) -> Encoder:
    encoder = build_encoder(settings.tokenizer)
    if encoder.vocab_size > settings.model["vocab_size"]:
        raise BadModel(
            f"the tokenizer has {encoder.vocab_size} tokens, the model's vocab_size is {settings.model['vocab_size']}",
            f"set vocab_size to at least {encoder.vocab_size}",
        )
    return encoder


def _blob(array: NDArray[np.int32]) -> TensorBlob:
    return TensorBlob("int32", array.shape, memoryview(array).cast("B").toreadonly())
