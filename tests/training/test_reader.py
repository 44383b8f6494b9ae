"""Order, packing, shards and exact resumption of the data."""

import json
from collections import Counter
from concurrent.futures import CancelledError
from dataclasses import replace

import datasets
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from noloco_node.core import limits
from noloco_node.errors import BadData, BadModel
from noloco_node.training import reader as reader_module
from noloco_node.training.reader import build_reader, held_out_rows, is_held_out, shard_of
from noloco_node.training.settings import DataSettings, TokenizerSettings
from noloco_node.training.tokenizer import BYTE_VOCABULARY

END = BYTE_VOCABULARY - 1
TEXTS = [f"<{number}>" + "abcdefgh" * (number % 11) for number in range(120)]

datasets.disable_progress_bars()


def ids_of(batch) -> np.ndarray:
    return np.frombuffer(batch.inputs.data, np.int32).reshape(batch.inputs.shape)


def parts_of(batch) -> tuple[bytes, bytes, bytes]:
    return bytes(batch.inputs.data), bytes(batch.position_ids.data), bytes(batch.labels.data)


def one_pass(settings, origin: int) -> list[str]:
    """The documents of a shard's first pass, in its order."""
    own = [n for n in range(len(TEXTS)) if not is_held_out(settings, n) and shard_of(settings, n) == origin]
    reader, tokens = build_reader(settings, origin), []
    for n in range(10_000):
        tokens += ids_of(reader.read(n)).ravel().tolist()
        if tokens.count(END) >= len(own):
            break
    reader.close()
    return decode(tokens)[: len(own)]


def decode(tokens: list[int]) -> list[str]:
    ends = [place for place, token in enumerate(tokens) if token == END]
    starts = [0, *(end + 1 for end in ends)]
    return [bytes(tokens[start:end]).decode() for start, end in zip(starts, ends, strict=False)]


def test_rows_hold_documents_end_to_end_with_positions_and_labels_per_document(settings):
    reader = build_reader(settings, 0)
    for n in range(40):
        batch = reader.read(n)
        assert (batch.id.origin, batch.id.n, batch.inputs.dtype) == (0, n, "int32")
        ids = ids_of(batch)
        positions, labels = (
            np.frombuffer(part.data, np.int32).reshape(ids.shape) for part in (batch.position_ids, batch.labels)
        )
        for row in range(ids.shape[0]):
            starts = np.flatnonzero(positions[row] == 0)
            assert starts[0] == 0
            assert (ids[row, starts[1:] - 1] == END).all()
            place = np.arange(ids.shape[1])
            latest_start = np.maximum.accumulate(np.where(positions[row] == 0, place, 0))
            np.testing.assert_array_equal(positions[row], place - latest_start)
            inner = labels[row, :-1] != -100
            np.testing.assert_array_equal(labels[row, :-1][inner], ids[row, 1:][inner])
            np.testing.assert_array_equal(labels[row] == -100, ids[row] == END)
    reader.close()


def test_a_pass_holds_each_own_document_once_and_shuffles_within_windows(settings):
    wide = replace(settings, num_replicas=2, data=replace(settings.data, row_window=1))
    shards = [one_pass(wide, origin) for origin in range(2)]
    held_out = [text for n, text in enumerate(TEXTS) if is_held_out(wide, n)]
    assert Counter(shards[0] + shards[1] + held_out) == Counter(TEXTS)
    assert 0 < len(held_out) < 30
    in_order = [text for text in TEXTS if text in set(shards[0])]
    assert shards[0] != in_order
    assert sorted(shards[0][:8]) == sorted(in_order[:8])


def test_another_run_seed_gives_another_order_and_split(settings):
    other = replace(settings, seed=8)
    assert one_pass(settings, 0)[:20] != one_pass(other, 0)[:20]
    assert {n for n in range(120) if is_held_out(settings, n)} != {n for n in range(120) if is_held_out(other, n)}


def test_held_out_rows_hold_the_held_out_documents_and_nothing_else(settings):
    expected = [text for n, text in enumerate(TEXTS) if is_held_out(settings, n)]
    batches = list(held_out_rows(settings, 10_000))
    rows = [np.where(row == END, 0, row).astype(np.uint8).tobytes().rstrip(b"\0") for b in batches for row in b.ids]
    held_out = b"\0".join(text.encode() for text in expected)
    assert all(row in held_out for row in rows)
    assert sum(map(len, rows)) >= len(held_out) - len(rows)
    trained = sum(int((batch.labels != -100).sum()) for batch in batches)
    assert 0 < trained < sum(map(len, expected)) + 1
    assert len(list(held_out_rows(settings, 4))) == 2


def test_packer_resumes_exactly_at_every_one_of_400_places(settings):
    """Several passes over the data, windows of 8, from each of 400 micro-batches on: the next three are the same."""
    shuffled = replace(settings, data=replace(settings.data, row_window=16))
    straight = build_reader(shuffled, 0)
    expected = [parts_of(straight.read(n)) for n in range(403)]
    resumed = build_reader(shuffled, 0)
    for n in range(400):
        state = json.loads(json.dumps(straight.state(n)))
        resumed.resume(state)
        assert [parts_of(resumed.read(n + ahead)) for ahead in range(3)] == expected[n : n + 3], n
    assert straight.state(402)["stream"]["packer"]["order"]["epoch"] >= 2
    straight.close()
    resumed.close()


def test_rows_of_a_window_each_come_once_and_not_in_order(settings):
    plain, shuffled = (replace(settings, data=replace(settings.data, row_window=window)) for window in (1, 32))
    rows = [[row.tobytes() for n in range(64 // s.micro_batch_size) for row in ids_of(build_reader(s, 0).read(n))]
            for s in (plain, shuffled)]  # fmt: skip
    assert Counter(rows[0][:32]) == Counter(rows[1][:32])
    assert Counter(rows[0][32:64]) == Counter(rows[1][32:64])
    assert rows[0][:32] != rows[1][:32]


def test_any_number_can_be_read_from_any_other(settings):
    reader, fresh = build_reader(settings, 0), build_reader(settings, 0)
    expected = [parts_of(fresh.read(n)) for n in range(60)]
    for n in (5, 6, 50, 2, 2, 59, 0, 30):
        assert parts_of(reader.read(n)) == expected[n]


@pytest.fixture
def near(monkeypatch) -> None:
    """Jumps of more than 20 begin a new pass; 8 positions are kept."""
    monkeypatch.setattr(limits, "READ_THROUGH_MAX", 20)
    monkeypatch.setattr(limits, "READER_STATES_KEPT", 8)


def test_far_jump_begins_within_one_window(settings, monkeypatch):
    asked: list[int] = []
    monkeypatch.setattr(reader_module, "is_held_out", lambda s, n: asked.append(n) or False)
    reader = build_reader(settings, 0)
    assert reader.read(limits.READ_THROUGH_MAX + 1).id.n == limits.READ_THROUGH_MAX + 1
    assert max(asked) <= 2 * settings.data.shuffle_window
    reader.close()


def test_all_who_jump_to_the_same_number_read_the_same_from_there(settings, near):
    fresh, busy, beyond, other = (build_reader(settings, 0) for _ in range(4))
    expected = [parts_of(fresh.read(n)) for n in range(300, 320)]
    for n in range(50):
        busy.read(n)
    beyond.read(400)
    assert [parts_of(busy.read(n)) for n in range(300, 320)] == expected
    assert [parts_of(beyond.read(n)) for n in range(300, 320)] == expected
    assert parts_of(other.read(301)) != expected[1]


def test_reader_that_jumped_is_resumed_exactly_from_every_number(settings, near):
    """Also from one so far behind that only the beginning of the pass is kept, and from one not read yet."""
    shuffled = replace(settings, data=replace(settings.data, row_window=16))
    straight = build_reader(shuffled, 0)
    not_read_yet = json.loads(json.dumps(straight.state(100)))
    expected = {n: parts_of(straight.read(n)) for n in range(100, 200)}
    states = {n: json.loads(json.dumps(straight.state(n))) for n in range(100, 200)}
    assert (states[150]["n"], states[199]["n"]) == (100, 199)
    for n in (100, 101, 121, 150, 192, 193, 197):
        fresh = build_reader(shuffled, 0)
        fresh.resume(states[n])
        again = json.loads(json.dumps(fresh.state(n)))  # a second stop before anything is read
        assert [parts_of(fresh.read(n + ahead)) for ahead in range(3)] == [expected[n + ahead] for ahead in range(3)]
        fresh.resume(again)
        assert parts_of(fresh.read(n)) == expected[n]
    fresh.resume(not_read_yet)
    assert parts_of(fresh.read(100)) == expected[100]


def test_number_before_the_jump_is_read_from_the_beginning(settings, near):
    plain, jumped = build_reader(settings, 0), build_reader(settings, 0)
    expected = [parts_of(plain.read(n)) for n in range(12)]
    jumped.read(300)
    assert jumped.state(5)["n"] == 0
    assert [parts_of(jumped.read(n)) for n in (5, 6, 11, 2)] == [expected[n] for n in (5, 6, 11, 2)]


def test_cancelled_reader_ends_in_the_middle_of_its_search(settings, monkeypatch):
    reader, asked = build_reader(settings, 0), []

    def held_out(of_run: object, document: int) -> bool:
        asked.append(document)
        if document == 30:
            reader.cancel()
        return True

    monkeypatch.setattr(reader_module, "is_held_out", held_out)
    with pytest.raises(CancelledError):
        reader.read(0)
    assert asked == list(range(31))
    with pytest.raises(CancelledError):
        reader.read(0)


@pytest.mark.parametrize("source", ["text", "jsonl", "parquet"])
def test_local_sources_resume_in_a_new_process_state(settings, tmp_path, source):
    read_from = replace(settings, data=replace(settings.data, source=source, path=write_source(tmp_path, source)))
    straight = build_reader(read_from, 0)
    expected = [parts_of(straight.read(n)) for n in range(90)]
    assert straight.state(89)["stream"]["packer"]["order"]["epoch"] >= 1
    for n in (1, 41, 85):
        fresh = build_reader(read_from, 0)
        fresh.resume(straight.state(n))
        assert parts_of(fresh.read(n)) == expected[n]
        fresh.close()
    straight.close()


def write_source(tmp_path, source: str) -> str:
    folder = tmp_path / source
    folder.mkdir()
    for part in range(3):
        texts = TEXTS[part * 20 : part * 20 + 20]
        if source == "text":
            for number, text in enumerate(texts):
                (folder / f"{part}-{number:02d}.txt").write_text(text)
        elif source == "jsonl":
            (folder / f"{part}.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
        else:
            pyarrow.parquet.write_table(pyarrow.table({"text": texts}), folder / f"{part}.parquet", row_group_size=7)
    return str(folder)


def test_each_file_of_several_is_a_document_and_each_paragraph_of_one(settings, tmp_path):
    folder = write_source(tmp_path, "text")
    data = DataSettings(source="text", path=folder, held_out_fraction=0.0, shuffle_window=1, row_window=1)
    many = replace(settings, data=data)
    assert decode(ids_of(build_reader(many, 0).read(0)).ravel().tolist())[:2] == TEXTS[:2]
    single = tmp_path / "single.txt"
    single.write_text("one\n\ntwo\nlines\n\nthree\n\n" + "x" * 60)
    one = replace(many, data=replace(many.data, path=str(single)))
    assert decode(ids_of(build_reader(one, 0).read(0)).ravel().tolist())[:3] == ["one", "two\nlines", "three"]


def test_standard_library_is_text_that_needs_no_download(settings):
    stdlib = replace(settings, data=DataSettings(shuffle_window=4), num_replicas=2)
    first, second = (build_reader(stdlib, origin) for origin in range(2))
    assert parts_of(first.read(3)) != parts_of(second.read(3))
    again = build_reader(stdlib, 0)
    again.resume(first.state(4))
    assert parts_of(again.read(4)) == parts_of(first.read(4))
    assert len(list(held_out_rows(stdlib, 6))) == 3


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"path": "/no/such/place"}, "no data at"),
        ({"path": "{empty}"}, "no document for shard 0|cannot be read"),
        ({"source": "parquet"}, "cannot be read"),
        ({"text_field": "body"}, "no field 'body'"),
        ({"source": "carrier-pigeon"}, "unknown"),
        ({"held_out_fraction": 1.0}, "no document for shard 0"),
    ],
)
def test_missing_or_empty_data_is_said_in_one_line(settings, tmp_path, change, words):
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    change = {name: str(empty) if value == "{empty}" else value for name, value in change.items()}
    with pytest.raises(BadData, match=words) as refusal:
        build_reader(replace(settings, data=replace(settings.data, **change)), 0).open()
    assert "\n" not in refusal.value.cause


def test_no_held_out_document_is_said(settings):
    with pytest.raises(BadData, match="no held-out document"):
        list(held_out_rows(replace(settings, data=replace(settings.data, held_out_fraction=0.0)), 4))


def test_vocabulary_larger_than_the_models_is_refused(settings):
    small = replace(settings, model=settings.model | {"vocab_size": 200}, tokenizer=TokenizerSettings())
    with pytest.raises(BadModel, match="257 tokens"):
        build_reader(small, 0)
