"""Documents of one shard, shuffled within windows and packed into rows; exactly resumable from a small JSON state.

Owns the order of documents and what a row holds: tokens, position ids that restart at every document (and at every
row), labels shifted by one and -100 where the next token belongs to another document. Nothing that is buffered is part
of the state: a resume reads the current window again. Must not know files, replicas or micro-batch numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from noloco_node.core.seed import permutation
from noloco_node.errors import BadData
from noloco_node.training.stage import IGNORED_LABEL
from noloco_node.training.text import TextSource
from noloco_node.training.tokenizer import Encoder

EMPTY_DOCUMENTS_MAX = 10_000  # in a row without a single token: the tokenizer cannot read this data


@dataclass(frozen=True, slots=True)
class Rows:
    """`ids`, `position_ids`, `labels`: int32 (rows, tokens)."""

    ids: NDArray[np.int32]
    position_ids: NDArray[np.int32]
    labels: NDArray[np.int32]


class DocumentOrder:
    """Endless documents: pass after pass over the source, `window` documents at a time in an order of the run seed."""

    def __init__(self, source: TextSource, *, seed: int, shard: int, window: int) -> None:
        self._source = source
        self._seed = seed
        self._shard = shard
        self._size = window
        self._window: list[str] | None = None
        self._after: dict[str, Any] | None = None  # the source's state behind the window in hand
        self._in_place = False  # the source stands where the next window begins
        self.resume(None)

    def resume(self, state: dict[str, Any] | None) -> None:
        """Go to a `state()` of earlier, or to the beginning."""
        state = state or self.pass_state(0)
        self._epoch, self._number = state["epoch"], state["window"]
        self._before, self._place = state["source"], state["place"]
        self._window, self._in_place = None, False

    def pass_state(self, number: int) -> dict[str, Any]:
        """The beginning of pass `number` over the source, from anywhere."""
        return {"epoch": number, "window": 0, "source": None, "place": 0}

    def state(self) -> dict[str, Any]:
        return {"epoch": self._epoch, "window": self._number, "source": self._before, "place": self._place}

    def current(self) -> str:
        """The document at hand. Raises BadData when a whole pass holds none."""
        while self._window is None:
            self._read_window()
        return self._window[self._place]

    def advance(self) -> None:
        self._place += 1
        if self._window is not None and self._place >= len(self._window):
            self._number, self._before, self._place = self._number + 1, self._after, 0
            self._window, self._in_place = None, True

    def close(self) -> None:
        self._source.close()

    def _read_window(self) -> None:
        if not self._in_place:
            self._source.rewind(self._before)
        documents: list[str] = []
        while len(documents) < self._size and (document := self._source.next()) is not None:
            documents.append(document)
        if not documents:
            self._begin_pass()
            return
        self._after = self._source.state()
        self._window = [documents[i] for i in self._order(len(documents))]

    def _begin_pass(self) -> None:
        if self._number == 0:
            raise BadData(
                f"the data holds no document for shard {self._shard}", "give more documents or fewer replicas"
            )
        self._epoch, self._number, self._before, self._place = self._epoch + 1, 0, None, 0
        self._in_place = False

    def _order(self, count: int) -> tuple[int, ...]:
        return permutation(self._seed, "shard", "window", self._shard, self._epoch, self._number, n=count)


class RowPacker:
    """Rows of `tokens` tokens, documents laid end to end; a document may run over several rows."""

    def __init__(self, order: DocumentOrder, encoder: Encoder, tokens: int) -> None:
        self._order = order
        self._encoder = encoder
        self._tokens = tokens
        self._offset = 0
        self._document: NDArray[np.int32] | None = None

    def resume(self, state: dict[str, Any] | None) -> None:
        self._order.resume(state["order"] if state else None)
        self._offset = state["offset"] if state else 0
        self._document = None

    def pass_state(self, number: int) -> dict[str, Any]:
        """The beginning of pass `number` over the source, from anywhere."""
        return {"order": self._order.pass_state(number), "offset": 0}

    def state(self) -> dict[str, Any]:
        """Where the next row begins, as JSON."""
        return {"order": self._order.state(), "offset": self._offset}

    def read(self, count: int) -> Rows:
        rows = empty_rows(count, self._tokens)
        for row in range(count):
            filled = 0
            while filled < self._tokens:
                document = self._current()
                taken = lay(rows, row, filled, document, self._offset)
                filled, self._offset = filled + taken, self._offset + taken
                self._finish(document)
        return rows

    def open(self) -> None:
        """Meet the first document now. Raises BadData."""
        self._current()

    def close(self) -> None:
        self._order.close()

    def _current(self) -> NDArray[np.int32]:
        for _ in range(EMPTY_DOCUMENTS_MAX):
            if self._document is None:
                self._document = self._encoder.encode(self._order.current())
            if self._document.size:
                return self._document
            self._finish(self._document)
        raise BadData(f"{EMPTY_DOCUMENTS_MAX} documents in a row hold no token", "check the tokenizer")

    def _finish(self, document: NDArray[np.int32]) -> None:
        if self._offset >= document.size:
            self._order.advance()
            self._document, self._offset = None, 0


class RowShuffle:
    """Rows of a RowPacker, `window` at a time in an order of the run seed.

    Neighbouring rows are mostly of one document; a micro-batch of them would teach one file at a time.
    """

    def __init__(self, packer: RowPacker, *, seed: int, shard: int, window: int) -> None:
        self._packer = packer
        self._seed = seed
        self._shard = shard
        self._size = window
        self._window: Rows | None = None
        self._order: tuple[int, ...] = ()
        self._place = self._number = 0
        self._before = packer.state()

    def resume(self, state: dict[str, Any] | None) -> None:
        """The window at hand is read again when it is needed."""
        self._packer.resume(state["packer"] if state else None)
        self._before = self._packer.state()
        self._place, self._number = (state["place"], state["window"]) if state else (0, 0)
        self._window = None

    def pass_state(self, number: int) -> dict[str, Any]:
        """The beginning of pass `number` over the source, from anywhere; its windows of rows count on from `number`."""
        return {"packer": self._packer.pass_state(number), "place": 0, "window": number}

    def state(self) -> dict[str, Any]:
        """Where the next row is, as JSON."""
        return {"packer": self._before, "place": self._place, "window": self._number}

    def read(self, count: int) -> Rows:
        picked = [self._next() for _ in range(count)]
        return Rows(*(np.concatenate(parts) for parts in zip(*picked, strict=True)))

    def open(self) -> None:
        """Meet the first document now. Raises BadData."""
        self._packer.open()

    def close(self) -> None:
        self._packer.close()

    def _next(self) -> tuple[NDArray[np.int32], ...]:
        if self._window is None:
            self._window = self._packer.read(self._size)
            self._order = permutation(self._seed, "shard", "rows", self._shard, self._number, n=self._size)
        row = slice(self._order[self._place], self._order[self._place] + 1)
        found = self._window.ids[row], self._window.position_ids[row], self._window.labels[row]
        self._place += 1
        if self._place == self._size:
            self._before, self._place, self._number, self._window = self._packer.state(), 0, self._number + 1, None
        return found


def empty_rows(count: int, tokens: int) -> Rows:
    """Rows in which nothing is trained on yet."""
    shape = (count, tokens)
    padding = np.broadcast_to(np.arange(tokens, dtype=np.int32), shape).copy()
    return Rows(np.zeros(shape, np.int32), padding, np.full(shape, IGNORED_LABEL, np.int32))


def lay(rows: Rows, row: int, filled: int, document: NDArray[np.int32], offset: int) -> int:
    """Put `document` from `offset` on into `row` behind `filled` tokens; returns how many tokens went in."""
    taken = min(rows.ids.shape[1] - filled, document.size - offset)
    place = slice(filled, filled + taken)
    rows.ids[row, place] = document[offset : offset + taken]
    rows.position_ids[row, place] = np.arange(taken, dtype=np.int32)
    targets = document[offset + 1 : offset + taken + 1]
    rows.labels[row, place] = IGNORED_LABEL
    rows.labels[row, filled : filled + targets.size] = targets
    return taken
