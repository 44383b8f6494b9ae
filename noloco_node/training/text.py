"""Documents, one after another, from the data source that the run spec names.

Owns where text is found and how reading is resumed. Must not know shards, tokens or micro-batches: a predicate on the
document's number says which documents are wanted, so that no source is read for nothing where that can be helped.
"""

from __future__ import annotations

import gc
import os
import sysconfig
from collections.abc import Callable, Iterator
from glob import glob
from pathlib import Path
from typing import Any, Protocol

from noloco_node.errors import BadData
from noloco_node.training.settings import DataSettings

Wanted = Callable[[int], bool]  # of a document's number within one pass over the source

LOCAL_KINDS = {"text": ("text", "*.txt*"), "jsonl": ("json", "*.json*"), "parquet": ("parquet", "*.parquet")}
SKIPPED_FOLDERS = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"})


class TextSource(Protocol):
    """One pass over all documents, in a fixed order."""

    def rewind(self, state: dict[str, Any] | None) -> None:
        """Go to a `state()` of earlier, or to the first document."""
        ...

    def next(self) -> str | None:
        """The next wanted document that is not blank; None at the end of the pass."""
        ...

    def state(self) -> dict[str, Any]:
        """Where reading stands, as JSON."""
        ...

    def close(self) -> None: ...


def build_source(settings: DataSettings, wanted: Wanted) -> TextSource:
    """Raises BadData when the source is unknown or no file is there."""
    if settings.source == "python-stdlib":
        return StandardLibrary(wanted)
    if settings.source in LOCAL_KINDS:
        kind, pattern = LOCAL_KINDS[settings.source]
        return DatasetSource(_open_local(kind, local_files(settings.path, pattern)), _field(settings), wanted)
    if settings.source == "hub":
        return DatasetSource(_open_hub(settings), settings.text_field, wanted)
    raise BadData(f"data source {settings.source!r} is unknown", "use python-stdlib, text, jsonl, parquet or hub")


def local_files(path: str, pattern: str) -> list[str]:
    """The files that `path` (file, folder, or glob) names, sorted. Raises BadData when there is none."""
    place = Path(path).expanduser()
    if place.is_file():
        return [str(place)]
    if place.is_dir():
        found = sorted(str(file) for file in place.rglob(pattern) if file.is_file())
    else:
        found = sorted(file for file in glob(str(place), recursive=True) if Path(file).is_file())
    if not found:
        raise BadData(f"no data at {path!r}", "data.path must name a file, a folder with files, or a glob")
    return found


class StandardLibrary:
    """The .py files of the running interpreter's standard library, one document each; no test folders."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._root = Path(sysconfig.get_paths()["stdlib"])
        self._files: list[Path] = []
        self._index = 0

    def rewind(self, state: dict[str, Any] | None) -> None:
        self._files = self._files or list(_source_files(self._root))
        self._index = state["index"] if state else 0

    def next(self) -> str | None:
        while self._index < len(self._files):
            self._index += 1
            if self._wanted(self._index - 1):
                text = self._files[self._index - 1].read_text(encoding="utf-8", errors="replace")
                if text.strip():
                    return text
        return None

    def state(self) -> dict[str, Any]:
        return {"index": self._index}

    def close(self) -> None:
        self._files = []


class DatasetSource:
    """Rows of a streamed data set of `datasets`, whose own state makes a resume exact (no `.shuffle()`)."""

    def __init__(self, open_stream: Callable[[], Any], text_field: str, wanted: Wanted) -> None:
        self._open_stream = open_stream
        self._text_field = text_field
        self._wanted = wanted
        self._stream: Any = None
        self._rows: Iterator[dict[str, Any]] = iter(())
        self._start: dict[str, Any] = {}
        self._index = 0

    def rewind(self, state: dict[str, Any] | None) -> None:
        if self._stream is None:
            self._stream = _reading(self._open_stream)
            self._start = self._stream.state_dict()
        self._close_rows()
        self._stream.load_state_dict(state["stream"] if state else self._start)
        self._index = state["index"] if state else 0
        self._rows = iter(self._stream)

    def next(self) -> str | None:
        while (row := _reading(lambda: next(self._rows, None))) is not None:
            self._index += 1
            if self._wanted(self._index - 1):
                text = self._text_of(row)
                if text.strip():
                    return text
        return None

    def state(self) -> dict[str, Any]:
        return {"index": self._index, "stream": self._stream.state_dict()}

    def close(self) -> None:
        """A half-read parquet stream that is left to the interpreter's end can abort the process there."""
        self._close_rows()
        self._stream = None
        gc.collect()

    def _close_rows(self) -> None:
        close = getattr(self._rows, "close", None)
        if close is not None:
            close()
        self._rows = iter(())

    def _text_of(self, row: dict[str, Any]) -> str:
        if self._text_field not in row:
            names = ", ".join(sorted(row))
            raise BadData(f"rows have no field {self._text_field!r} (they have: {names})", "set data.text_field")
        return row[self._text_field] or ""


def _field(settings: DataSettings) -> str:
    return "text" if settings.source == "text" else settings.text_field


def _open_local(kind: str, files: list[str]) -> Callable[[], Any]:
    """Text: each file is a document if there are several; of a single one, each paragraph is."""

    def open_stream() -> Any:
        from datasets import load_dataset

        options = {"sample_by": "document" if len(files) > 1 else "paragraph"} if kind == "text" else {}
        return load_dataset(kind, data_files=files, split="train", streaming=True, **options)

    return open_stream


def _open_hub(settings: DataSettings) -> Callable[[], Any]:
    def open_stream() -> Any:
        from datasets import load_dataset

        return load_dataset(settings.path, settings.name or None, split=settings.split, streaming=True)

    return open_stream


def _reading(read: Callable[[], Any]) -> Any:
    """Libraries below raise whatever they meet in a file; a person gets one line."""
    try:
        return read()
    except BadData:
        raise
    except Exception as error:  # a reader's errors have no common base; the cause is kept
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise BadData(f"the data cannot be read: {first}", "check data.source, data.path and data.name") from error


def _source_files(root: Path) -> Iterator[Path]:
    """Sorted by their path below `root`; skipped folders are not entered."""
    found = []
    for folder, below, files in os.walk(root):
        below[:] = [name for name in below if name not in SKIPPED_FOLDERS]
        found += [Path(folder, name) for name in files if name.endswith(".py")]
    return iter(sorted(found, key=lambda file: file.relative_to(root).as_posix()))
