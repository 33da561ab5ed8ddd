"""Data that is read while it is trained on: what is read, what is kept, and what is said when it goes wrong."""

from __future__ import annotations

import gzip
import itertools
import os
from collections.abc import Callable
from concurrent.futures import wait
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.feather as feather
import pyarrow.fs
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
import pytest

from heterps_runtime.data import DataError, Dataset, DataSpec, open_dataset
from heterps_runtime.data.errors import DataCacheError, DataUnavailableError
from heterps_runtime.data.files import find_files
from heterps_runtime.data.folder import META
from heterps_runtime.data.ids import MISSING_ID, text_id
from heterps_runtime.data.index import Index
from heterps_runtime.data.source import Source
from heterps_runtime.data.streamed import StreamedDataset
from tests.heterps_runtime.helpers.data_files import CLASSES, columns, make_spec, write_parquet

BATCH = 8
WINDOW = 32
Write = Callable[[Path, dict[str, Any]], None]


def streamed(folder: Path, train: Path, **changes: Any) -> DataSpec:
    """A job's data over the columns of `columns()`, streamed in windows of 32 rows."""
    return make_spec(folder, train, **{"access": "Streamed", "windowRows": WINDOW, **changes})


def opened(spec: DataSpec) -> StreamedDataset:
    dataset = open_dataset(spec, "train")
    assert isinstance(dataset, StreamedDataset)
    return dataset


def write_parts(folder: Path, rows: int = 100, rows_per_file: int = 10) -> Path:
    """`columns(rows)` in files that are a block each."""
    values = columns(rows)
    for part, start in enumerate(range(0, rows, rows_per_file)):
        piece = {name: column[start : start + rows_per_file] for name, column in values.items()}
        write_parquet(folder / f"part-{part:02}.parquet", piece)
    return folder


def read_epoch(dataset: Dataset, epoch: int = 0, start: int = 0, stop: int = BATCH) -> list[int]:
    """Train for an epoch on an interval of each batch; returns the values of a column that tells rows apart."""
    order = dataset.training_order(BATCH, 3)
    values, end = [], (epoch + 1) * order.batches.per_epoch
    for step in range(epoch * order.batches.per_epoch, end):
        size = order.batches.size(step)
        a, b = min(start, size), min(stop, size)
        dataset.read_ahead(order, step, a, b, end)
        values += dataset.batch(order.rows(step, a, b), ("flight",))["flight"].tolist()
    return values


def cached_bytes(cache: Path) -> int:
    """Bytes of the blocks in a cache."""
    return sum(path.stat().st_size for path in cache.glob("*/block-*"))


# --- contents ---------------------------------------------------------------------------------------------------------
def _arrow_file(path: Path, values: dict[str, Any]) -> None:
    with ipc.new_file(path, pa.table(values).schema) as writer:
        writer.write_table(pa.table(values), max_chunksize=7)


def _arrow_stream(path: Path, values: dict[str, Any]) -> None:
    with ipc.new_stream(path, pa.table(values).schema) as writer:
        writer.write_table(pa.table(values), max_chunksize=7)


def _csv(path: Path, values: dict[str, Any]) -> None:
    pacsv.write_csv(pa.table(values), path)


def _gzipped(path: Path, values: dict[str, Any]) -> None:
    _csv(path, values)
    path.write_bytes(gzip.compress(path.read_bytes()))


@pytest.mark.parametrize(
    ("kind", "suffix", "write"),
    [
        ("parquet", "parquet", lambda path, values: pq.write_table(pa.table(values), path, row_group_size=9)),
        ("arrow", "arrow", _arrow_file),
        ("arrow", "arrows", _arrow_stream),
        ("arrow", "feather", lambda path, values: feather.write_feather(pa.table(values), path, chunksize=7)),
        ("csv", "csv", _csv),
        ("csv", "csv.gz", _gzipped),
    ],
)
def test_rows_of_each_format_are_those_of_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, suffix: str, write: Write
) -> None:
    monkeypatch.setattr("heterps_runtime.data.index.LEAST_ROWS", 12)  # two small row groups are one block
    monkeypatch.setattr("heterps_runtime.data.text.BLOCK_BYTES", 256)
    values = columns(90)
    if kind == "csv":
        del values["tags"]
    train = tmp_path / "train"
    train.mkdir()
    for part, start in enumerate(range(0, 90, 30)):
        write(train / f"{part}.{suffix}", {name: column[start : start + 30] for name, column in values.items()})
    sparse = ["flight", "carrier"] if kind == "csv" else ["flight", "carrier", "tags"]
    spec = streamed(tmp_path, train, format=kind, sparse=sparse, windowRows=12 * 128)
    dataset, whole = opened(spec), open_dataset(make_spec(tmp_path, train, format=kind, sparse=sparse), "train")
    assert dataset.num_rows == whole.num_rows == 90
    assert dataset.schema == whole.schema
    random = np.random.default_rng(3)
    for rows in (np.arange(90), random.permutation(90), random.integers(0, 90, 20), np.arange(0)):
        expected = whole.batch(rows, whole.schema.features)
        got = dataset.batch(rows, dataset.schema.features)
        assert got.keys() == expected.keys()
        for name, array in expected.items():
            assert array.dtype == got[name].dtype
            assert np.array_equal(array, got[name]), name


def test_criteo_logs_are_read_by_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heterps_runtime.data.index.LEAST_ROWS", 4)
    monkeypatch.setattr("heterps_runtime.data.text.BLOCK_BYTES", 512)
    lines = [
        "\t".join([str(i % 2), *(("" if i % 3 else str(i + k)) for k in range(13)), *(f"{i * k:x}" for k in range(26))])
        for i in range(40)
    ]
    (tmp_path / "day_0").write_text("\n".join(lines))  # the last line has no end
    fields: dict[str, Any] = {
        "format": "criteo-tsv",
        "label": "label",
        "dense": [f"I{i}" for i in range(1, 14)],
        "sparse": [f"C{i}" for i in range(1, 27)],
    }
    dataset = opened(streamed(tmp_path, tmp_path / "day_0", **fields, windowRows=4 * 128))
    whole = open_dataset(make_spec(tmp_path, tmp_path / "day_0", **fields), "train")
    assert dataset.num_rows == 40
    assert len(dataset._index.files) > 3
    for name, array in whole.batch(np.arange(40), whole.schema.features).items():
        assert np.array_equal(array, dataset.batch(np.arange(40), dataset.schema.features)[name]), name


@pytest.mark.parametrize("access", ["Cached", "Streamed"])
def test_the_names_of_folders_give_columns(tmp_path: Path, access: str) -> None:
    for hour, carrier in itertools.product((1, 22), ("AA", "D%20L", "__HIVE_DEFAULT_PARTITION__")):
        values = columns(5)
        del values["hour"], values["carrier"]
        write_parquet(tmp_path / "train" / f"hour={hour}" / f"carrier={carrier}" / "part.parquet", values)
    dataset = open_dataset(streamed(tmp_path, tmp_path / "train", access=access), "train")
    batch = dataset.batch(np.arange(30), ("dense", "carrier"))
    assert batch["dense"][:, 1].tolist() == [1.0] * 15 + [22.0] * 15
    assert batch["carrier"].tolist() == 2 * (5 * [text_id("AA")] + 5 * [text_id("D L")] + 5 * [MISSING_ID])


def test_an_epoch_has_each_row_once_and_another_epoch_another_order(tmp_path: Path) -> None:
    dataset = opened(streamed(tmp_path, write_parts(tmp_path / "train")))
    first, second = read_epoch(dataset, 0), read_epoch(dataset, 1)
    assert sorted(first) == sorted(second) == [1000 + i for i in range(100)]
    assert first != second


# --- what is read and kept --------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("window", "blocks"), [(10**6, [20, 10]), (128 * 6, [8, 8, 8, 6]), (32, [4, 4, 4, 4, 4, 4, 4, 2])]
)
def test_small_row_groups_are_taken_together_unless_windows_need_more_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window: int, blocks: list[int]
) -> None:
    monkeypatch.setattr("heterps_runtime.data.index.LEAST_ROWS", 20)
    write_parquet(tmp_path / "a.parquet", columns(30), row_group_size=4)
    index = opened(streamed(tmp_path, tmp_path / "a.parquet", windowRows=window))._index
    assert index.block_rows.tolist() == blocks


def test_a_worker_reads_the_blocks_of_its_share(tmp_path: Path) -> None:
    dataset = opened(streamed(tmp_path, write_parts(tmp_path / "train", 400, 5), windowRows=200))
    assert len(read_epoch(dataset, stop=BATCH // 4)) == 100
    assert 100 <= dataset.rows_read <= 100 + 2 * 2 * 5  # in each of two windows a block more at each end


def test_the_workers_of_a_machine_share_a_cache_that_is_bounded(tmp_path: Path) -> None:
    train = write_parts(tmp_path / "train", 800, 10)
    whole = opened(streamed(tmp_path, train, windowRows=800))
    read_epoch(whole)
    limit = cached_bytes(tmp_path / "cache") * 6 // 10  # of four windows, that of the time and the next fit
    spec = replace(streamed(tmp_path, train, windowRows=200), cache_directory=tmp_path / "small", cache_max_bytes=limit)
    halves = [opened(spec), opened(spec)]
    orders = [dataset.training_order(BATCH, 3) for dataset in halves]
    seen = []
    for step in range(orders[0].batches.per_epoch):
        for i, (dataset, order) in enumerate(zip(halves, orders, strict=True)):
            own = (4 * i, 4 * i + 4)
            dataset.read_ahead(order, step, *own, orders[0].batches.per_epoch)
            seen += dataset.batch(order.rows(step, *own), ("flight",))["flight"].tolist()
        wait([future for dataset in halves for future in dataset._expected.values()])
        assert 0 < cached_bytes(tmp_path / "small") <= limit
    assert sorted(seen) == [1000 + i for i in range(800)]
    assert sum(dataset.rows_read for dataset in halves) == 800


def test_the_next_window_is_read_at_an_even_pace(tmp_path: Path) -> None:
    dataset = opened(streamed(tmp_path, write_parts(tmp_path / "train", 320, 10), windowRows=160))
    order = dataset.training_order(BATCH, 3)
    expected = []
    for step in range(20):
        dataset.read_ahead(order, step, 0, BATCH, order.batches.per_epoch)
        expected.append(len(dataset._expected))
    # 16 blocks of the window, and as many of the next one by three quarters of the 20 steps.
    assert (expected[0], expected[9], expected[14]) == (16 + 2, 16 + 11, 16 + 16)
    assert expected[15:] == [32] * 5
    assert all(0 <= b - a <= 2 for a, b in itertools.pairwise(expected))


def test_data_that_fits_into_the_cache_is_read_once(tmp_path: Path) -> None:
    dataset = opened(streamed(tmp_path, write_parts(tmp_path / "train")))
    for epoch in range(3):
        read_epoch(dataset, epoch)
    assert dataset.rows_read == 100
    again = opened(streamed(tmp_path, tmp_path / "train"))
    read_epoch(again)
    assert again.rows_read == 0


def test_the_index_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = streamed(tmp_path, write_parts(tmp_path / "train"))
    said: list[str] = []
    open_dataset(spec, "train", lambda fraction, text: said.append(text))
    assert said[-1] == "reading the index of the data: 10 of 10 files"

    def opened_again(*_: Any) -> None:
        raise AssertionError("a file was opened")

    monkeypatch.setattr(Source, "_schema", opened_again)
    monkeypatch.setattr(Source, "units", opened_again)
    assert opened(spec).num_rows == 100


@pytest.mark.parametrize("damage", ["", "{", '{"version": 9}', '{"version": 1}', '{"version": 1, "schemas": {}}'])
def test_a_damaged_index_is_made_again(tmp_path: Path, damage: str) -> None:
    spec = streamed(tmp_path, write_parts(tmp_path / "train"))
    assert opened(spec).num_rows == 100
    [meta] = tmp_path.glob(f"cache/*/{META}")
    meta.write_text(damage)
    assert opened(spec).num_rows == 100


@pytest.mark.parametrize(
    "blocks", [[], [[77, 0, 1, 5]], [[1, 0, 1, 5], [0, 0, 1, 5]], [[0, 0, 1, 0]], [[0, 0, 1]], [[0.5] * 4]]
)
def test_a_damaged_list_of_blocks_is_made_again(tmp_path: Path, blocks: list[Any]) -> None:
    spec = streamed(tmp_path, write_parts(tmp_path / "train"))
    assert opened(spec).num_rows == 100
    [path] = tmp_path.glob("cache/*/blocks.npy")
    np.save(path, np.array(blocks))
    assert opened(spec).num_rows == 100
    path.write_bytes(path.read_bytes()[:-8])
    assert opened(spec).num_rows == 100


def test_a_damaged_block_is_read_again(tmp_path: Path) -> None:
    spec = streamed(tmp_path, write_parts(tmp_path / "train"))
    expected = read_epoch(opened(spec))
    for path in tmp_path.glob("cache/*/block-*"):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    dataset = opened(spec)
    assert read_epoch(dataset) == expected
    assert dataset.rows_read == 100


def test_a_full_disk_costs_the_cache_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = opened(streamed(tmp_path, write_parts(tmp_path / "train")))

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pa.ipc, "write_tensor", full)
    assert sorted(read_epoch(dataset)) == [1000 + i for i in range(100)]
    assert not list(tmp_path.glob("cache/*/block-*"))


def test_a_cache_that_cannot_hold_a_share_of_a_window_is_refused(tmp_path: Path) -> None:
    dataset = opened(streamed(tmp_path, write_parts(tmp_path / "train"), cache={"maxBytes": 1000}))
    with pytest.raises(
        DataCacheError, match=r"maxBytes: is 1000 bytes, but this worker's share of a window of 32 rows"
    ):
        read_epoch(dataset)


# --- wrong input ------------------------------------------------------------------------------------------------------
def test_a_file_that_changes_or_disappears_is_named(tmp_path: Path) -> None:
    train = write_parts(tmp_path / "train")
    dataset = opened(streamed(tmp_path, train))
    changed = train / "part-03.parquet"
    os.utime(changed, ns=(1, 1))
    with pytest.raises(DataError, match=r"part-03.parquet has changed since the job's data was listed; put it back"):
        read_epoch(dataset)
    changed.unlink()
    dataset.forget()
    with pytest.raises(DataError, match=r"spec.data.train: .*part-03.parquet has disappeared"):
        read_epoch(dataset)


def test_a_schema_that_differs_in_one_file_is_named(tmp_path: Path) -> None:
    train = write_parts(tmp_path / "train")
    values = columns(10)
    del values["hour"]
    write_parquet(train / "part-07.parquet", values)
    with pytest.raises(DataError, match=r"spec.data.dense: there is no column 'hour' in .*part-07.parquet"):
        opened(streamed(tmp_path, train))
    assert not list(tmp_path.glob(f"cache/*/{META}"))


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    train = write_parts(tmp_path / "train")
    path = train / "part-05.parquet"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(DataError, match=r"part-05.parquet: cannot be read as parquet: .* is it complete"):
        opened(streamed(tmp_path, train))


def test_a_page_that_is_damaged_is_named(tmp_path: Path) -> None:
    train = write_parts(tmp_path / "train")
    path = train / "part-05.parquet"
    stored, times = bytearray(path.read_bytes()), path.stat()
    stored[4:200] = bytes(196)  # the first pages; the footer is whole
    path.write_bytes(stored)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(DataError, match=r"part-05.parquet: cannot be read"):
        read_epoch(opened(streamed(tmp_path, train)))


def test_a_bad_value_is_named_by_its_row_and_file(tmp_path: Path) -> None:
    train = write_parts(tmp_path / "train")
    values = columns(10)
    values["late"][4] = 7
    write_parquet(train / "part-08.parquet", values)
    with pytest.raises(DataError, match=r"column 'late' must be 0 or 1 .* in row 5 of .*part-08.parquet"):
        read_epoch(opened(streamed(tmp_path, train)))


def test_rows_are_found_in_their_files(tmp_path: Path) -> None:
    for part in range(3):
        write_parquet(tmp_path / "train" / f"{part}.parquet", columns(10), row_group_size=4)
    dataset = opened(streamed(tmp_path, tmp_path / "train"))
    assert [dataset.location(row).split("/")[0] for row in (0, 9, 10, 29)] == [
        "row 1 of ",
        "row 10 of ",
        "row 1 of ",
        "row 10 of ",
    ]
    assert dataset.location(19).endswith("train/1.parquet")


def test_a_line_break_in_quotes_is_explained(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('hour,late,carrier\n1,0,"A\nA"\n2,1,B\n')
    spec = streamed(tmp_path, tmp_path / "a.csv", format="csv", dense=["hour"], sparse=["carrier"])
    with pytest.raises(
        DataError, match=r"a.csv: 3 lines from byte 18 on are 2 rows; a value has a line break in quotes"
    ):
        opened(spec).batch(np.arange(3), ("dense",))


def test_a_text_among_later_numbers_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heterps_runtime.data.text.BLOCK_BYTES", 64)
    lines = [f"{i / 2},{i % 2}" for i in range(40)]
    lines[30] = "unknown,0"
    (tmp_path / "a.csv").write_text("hour,late\n" + "\n".join(lines))
    dataset = opened(streamed(tmp_path, tmp_path / "a.csv", format="csv", dense=["hour"], sparse=[]))
    dataset.batch(np.arange(10), ("dense",))
    with pytest.raises(DataError, match=r"a.csv: cannot be read as csv: .*invalid value 'unknown'; correct the value"):
        dataset.batch(np.arange(40), ("dense",))


def test_empty_lines_are_no_rows(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"hour,late\n1,0\n\n2,1\r\n\r\n3,1")
    dataset = opened(streamed(tmp_path, tmp_path / "a.csv", format="csv", dense=["hour"], sparse=[]))
    assert dataset.batch(np.arange(3), ("dense",))["dense"].ravel().tolist() == [1.0, 2.0, 3.0]


def test_a_large_file_that_must_be_read_whole_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heterps_runtime.data.source._WHOLE_FILE_BYTES", 100)
    _arrow_stream(tmp_path / "a.arrows", columns(90))
    with pytest.raises(DataError, match=r"a.arrows has [0-9,]+ bytes, but .* the stream format of Arrow as a whole"):
        opened(streamed(tmp_path, tmp_path / "a.arrows", format="arrow"))


@pytest.mark.parametrize("suffix", ["csv", "csv.gz", "parquet", "arrows"])
def test_data_without_rows_is_refused(tmp_path: Path, suffix: str) -> None:
    path, values = tmp_path / f"a.{suffix}", {name: pa.array([], pa.int64()) for name in ("hour", "late")}
    if suffix == "parquet":
        write_parquet(path, values)
    elif suffix == "arrows":
        _arrow_stream(path, values)
    else:
        path.write_bytes(gzip.compress(b"hour,late\n") if suffix == "csv.gz" else b"hour,late\n")
    kind = {"parquet": "parquet", "arrows": "arrow"}.get(suffix, "csv")
    with pytest.raises(DataError, match=r"spec.data.train: .*a\..* has no rows"):
        opened(streamed(tmp_path, path, format=kind, dense=["hour"], sparse=[]))


# --- a store that fails -----------------------------------------------------------------------------------------------
class Flaky(pyarrow.fs.FileSystemHandler):  # type: ignore[misc]
    """A filesystem whose files cannot be opened for `failures` times, with the errors of an object store."""

    def __init__(self, failures: int, listings: int = 0, text: str = "") -> None:
        self.failures, self.listings, self.text = failures, listings, text
        self._local = pa.fs.LocalFileSystem()

    def get_type_name(self) -> str:
        return "flaky"

    def get_file_info(self, paths: list[str]) -> Any:
        if self.listings:
            self.listings -= 1
            raise OSError(self.text)
        return self._local.get_file_info(paths)

    def get_file_info_selector(self, selector: Any) -> Any:
        return self._local.get_file_info(selector)

    def open_input_stream(self, path: str) -> Any:
        return self._local.open_input_stream(path)

    def open_input_file(self, path: str) -> Any:
        if self.failures:
            self.failures -= 1
            raise OSError("AWS Error SLOW_DOWN during GetObject operation: Please reduce your request rate")
        return self._local.open_input_file(path)

    def _not_used(self, *_: Any) -> None:
        raise AssertionError

    open_output_stream = open_append_stream = _not_used
    create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = delete_file = _not_used
    move = copy_file = normalize_path = _not_used


@pytest.mark.parametrize("failures", [4, 1000])
def test_a_store_that_fails_is_asked_again_and_then_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    monkeypatch.setattr("heterps_runtime.data.files._FIRST_WAIT_SECONDS", 0.0)
    dataset = opened(streamed(tmp_path, write_parts(tmp_path / "train")))
    monkeypatch.setattr(dataset._source, "filesystem", pa.fs.PyFileSystem(Flaky(failures)))
    if failures == 4:
        assert sorted(read_epoch(dataset)) == [1000 + i for i in range(100)]
        return
    with pytest.raises(
        DataUnavailableError, match=r"part-\d\d.parquet: cannot be read: AWS Error SLOW_DOWN .*6 attempts"
    ):
        read_epoch(dataset)


def test_classes_are_checked_when_their_block_is_read(tmp_path: Path) -> None:
    train = write_parts(tmp_path / "train")
    spec = streamed(tmp_path, train, loss=CLASSES, classes=2)
    read_epoch(opened(spec))
    values = columns(10)
    values["late"][9] = 2
    write_parquet(train / "part-01.parquet", values)
    with pytest.raises(DataError, match=r"from 0 to 1 \(spec.data.classes is 2\), but is 2 in row 10 of .*part-01"):
        read_epoch(opened(spec))


def test_the_layout_tells_apart_data_of_as_many_rows(tmp_path: Path) -> None:
    one = opened(streamed(tmp_path, write_parts(tmp_path / "one", 40, 10)))
    same = opened(streamed(tmp_path, write_parts(tmp_path / "same", 40, 10)))
    other = opened(streamed(tmp_path, write_parts(tmp_path / "other", 40, 8)))
    assert one.layout == same.layout != other.layout
    assert isinstance(one._index, Index)


@pytest.mark.parametrize("access", ["Cached", "Streamed"])
def test_a_store_that_is_down_is_asked_again_for_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, access: str
) -> None:
    monkeypatch.setattr("heterps_runtime.data.files._FIRST_WAIT_SECONDS", 0.0)
    spec = streamed(tmp_path, write_parts(tmp_path / "train"), access=access)

    def down(failures: int, text: str) -> None:
        store = pa.fs.PyFileSystem(Flaky(0, failures, text))
        monkeypatch.setattr("heterps_runtime.data.files._resolve", lambda *_: (store, str(tmp_path / "train")))

    down(5, "AWS Error NETWORK_CONNECTION during HeadObject operation")
    assert open_dataset(spec, "train").num_rows == 100
    down(1000, "AWS Error NETWORK_CONNECTION during HeadObject operation")
    with pytest.raises(DataUnavailableError, match=r"spec.data.train: .*train: cannot be read: AWS Error NETWORK"):
        open_dataset(spec, "train")
    down(1000, "AWS Error ACCESS_DENIED during HeadObject operation: No response body.")
    with pytest.raises(DataError, match=r"spec.data.train: .*train: cannot be listed: AWS Error ACCESS_DENIED"):
        open_dataset(spec, "train")


def test_the_index_is_made_although_a_store_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heterps_runtime.data.files._FIRST_WAIT_SECONDS", 0.0)
    spec = streamed(tmp_path, write_parts(tmp_path / "train"))
    listed = replace(find_files(spec, "train"), filesystem=pa.fs.PyFileSystem(Flaky(5)))
    monkeypatch.setattr("heterps_runtime.data.index.find_files", lambda *_: listed)
    assert opened(spec).num_rows == 100
    listed = replace(listed, filesystem=pa.fs.PyFileSystem(Flaky(1000)))
    other = replace(spec, cache_directory=tmp_path / "other")
    with pytest.raises(DataUnavailableError, match=r"part-\d\d.parquet: cannot be read: AWS Error SLOW_DOWN"):
        opened(other)
