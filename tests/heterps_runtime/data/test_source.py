"""Reading files: formats, and what is said about each kind of wrong input."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.feather as feather
import pyarrow.ipc as ipc
import pytest

from heterps_runtime.data import DataError, DataSpec, open_dataset, source
from heterps_runtime.data.ids import MISSING_ID, text_id
from heterps_runtime.errors import UserError
from tests.heterps_runtime.helpers.data_files import BINARY, CLASSES, NUMBERS, columns, make_spec, write_parquet

FEATURES = ("flight", "carrier", "tags", "tags_offsets", "dense")


def refused(spec: DataSpec, *words: str) -> None:
    """Opening the data fails with a user's error that holds all `words`."""
    with pytest.raises(DataError) as caught:
        open_dataset(spec, "train")
    assert isinstance(caught.value, UserError)
    for word in words:
        assert word in str(caught.value)
    assert not list(spec.cache_directory.glob("*/meta.json"))


def check_contents(spec: DataSpec, rows: int, tags: bool = True) -> None:
    """The data set holds `columns(rows)`."""
    dataset = open_dataset(spec, "train")
    expected = columns(rows)
    assert dataset.num_rows == rows
    batch = dataset.batch(np.arange(rows), FEATURES if tags else ("flight", "carrier", "dense"))
    assert batch["dense"].tolist() == [
        list(map(float, r)) for r in zip(expected["distance"], expected["hour"], strict=True)
    ]
    assert batch["flight"].tolist() == expected["flight"]
    assert batch["carrier"].tolist() == [text_id(c or "") for c in expected["carrier"]]
    assert batch["label"].tolist() == expected["late"]
    if tags:
        assert batch["tags"].tolist() == [text_id(t) for row in expected["tags"] for t in row]
        lengths = [len(row) for row in expected["tags"]]
        assert batch["tags_offsets"].tolist() == [sum(lengths[:i]) for i in range(rows)]


# --- formats --------------------------------------------------------------------------------------------------------
def test_a_parquet_file_is_read(tmp_path: Path) -> None:
    check_contents(make_spec(tmp_path, write_parquet(tmp_path / "a.parquet", columns())), 10)


def test_a_uri_is_read(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", columns())
    check_contents(make_spec(tmp_path, path.as_uri()), 10)


def test_a_folder_is_read_in_the_order_of_its_paths_without_markers(tmp_path: Path) -> None:
    whole = pa.table(columns(30))
    for name, start in (("b/part-0", 20), ("a/part-0", 0), ("a/part-1", 10)):
        part = whole.slice(start, 10)
        write_parquet(tmp_path / "train" / f"{name}.parquet", {n: part[n] for n in part.column_names})
    (tmp_path / "train" / "_SUCCESS").touch()
    (tmp_path / "train" / ".half-written.parquet").touch()
    (tmp_path / "train" / "_temporary").mkdir()
    (tmp_path / "train" / "_temporary" / "part.parquet").touch()
    check_contents(make_spec(tmp_path, tmp_path / "train"), 30)


def write_days(folder: Path, rows: int = 10) -> None:
    """Days of rows, whose folders are in another order by path than a prefix of their names suggests."""
    whole = pa.table(columns(4 * rows))
    for number, name in enumerate(("day=1-extra/part-0", "day=1/part-0", "day=1/part-1", "day=2/part-0")):
        part = whole.slice(number * rows, rows)
        write_parquet(folder / f"{name}.parquet", {n: part[n] for n in part.column_names})


@pytest.mark.parametrize("access", ["Cached", "Streamed"])
@pytest.mark.parametrize(
    ("after", "through", "expected"),
    [
        (None, None, range(40)),
        ("day=1", None, range(30, 40)),
        ("/day=1/", None, range(30, 40)),
        ("day=1-extra", None, range(10, 40)),
        ("day=1/part-0.parquet", None, range(20, 40)),
        (None, "day=1", range(30)),
        (None, "day=1/part-0.parquet", range(20)),
        ("day=1-extra", "day=1", range(10, 30)),
    ],
)
def test_only_files_between_two_are_trained_on(
    tmp_path: Path, access: str, after: str | None, through: str | None, expected: range
) -> None:
    write_days(tmp_path / "train")
    bounds = {key: value for key, value in (("trainAfter", after), ("trainThrough", through)) if value is not None}
    spec = make_spec(tmp_path, tmp_path / "train", access=access, evaluation=str(tmp_path / "train"), **bounds)
    found = open_dataset(spec, "train")
    assert found.num_rows == len(expected)
    if access == "Cached":
        rows = found.batch(np.arange(len(expected)), ["dense"])["dense"]
        assert rows[:, 0].tolist() == [columns(40)["distance"][row] for row in expected]
    assert open_dataset(spec, "evaluation").num_rows == 40, "the fields are for the training data"


def test_files_that_are_added_after_the_last_one_change_nothing(tmp_path: Path) -> None:
    write_days(tmp_path / "train")
    for access in ("Cached", "Streamed"):
        spec = make_spec(tmp_path, tmp_path / "train", access=access, trainThrough="day=2")
        before = open_dataset(spec, "train")
        write_parquet(tmp_path / "train" / "day=3" / f"{access}.parquet", columns(5))
        after = open_dataset(spec, "train")
        assert (after.num_rows, after.layout) == (before.num_rows, before.layout)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"trainAfter": "day=7"},
            r"trainAfter: .*train has no file or folder 'day=7' with data; .*such as 'day=2/part-0",
        ),
        ({"trainAfter": "day"}, r"trainAfter: .*train has no file or folder 'day' with data"),
        ({"trainThrough": "/"}, r"trainThrough: .*train has no file or folder '/' with data"),
        (
            {"trainAfter": "day=2"},
            r"trainAfter: .*train has no file after 'day=2', in the order of paths; add the new data",
        ),
        (
            {"trainAfter": "day=1", "trainThrough": "day=1-extra"},
            r"has no file after 'day=1' and up to 'day=1-extra' \(spec.data.trainThrough\), in the order of paths",
        ),
    ],
)
def test_bounds_that_leave_no_file_are_refused_by_the_field(
    tmp_path: Path, fields: dict[str, str], message: str
) -> None:
    write_days(tmp_path / "train")
    with pytest.raises(DataError, match=message):
        open_dataset(make_spec(tmp_path, tmp_path / "train", **fields), "train")


def test_rows_of_many_batches_and_row_groups_keep_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "BATCH_ROWS", 7)
    check_contents(make_spec(tmp_path, write_parquet(tmp_path / "a.parquet", columns(50), row_group_size=20)), 50)


@pytest.mark.parametrize("kind", ["file", "stream", "feather"])
def test_arrow_files_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(source, "BATCH_ROWS", 6)
    table, path = pa.table(columns(20)), tmp_path / "a.arrow"
    if kind == "feather":
        feather.write_feather(table, str(path))
    else:
        with (ipc.new_file if kind == "file" else ipc.new_stream)(str(path), table.schema) as writer:
            writer.write_table(table, max_chunksize=8)
    check_contents(make_spec(tmp_path, path, format="arrow"), 20)


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz"])
def test_csv_files_are_read(tmp_path: Path, suffix: str) -> None:
    table = pa.table(columns(20)).drop_columns(["tags"])
    for part in (0, 1):
        path = tmp_path / "train" / f"part-{part}{suffix}"
        path.parent.mkdir(exist_ok=True)
        with gzip.open(path, "wb") if suffix.endswith(".gz") else path.open("wb") as file:
            pacsv.write_csv(table.slice(10 * part, 10), file)
    spec = make_spec(tmp_path, tmp_path / "train", format="csv", sparse=["flight", "carrier"])
    check_contents(spec, 20, tags=False)


def test_csv_numbers_may_have_decimals_after_the_first_file(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "a.csv").write_text("distance,late\n1,0\n")
    (tmp_path / "train" / "b.csv").write_text("distance,late\n2.5,1\n")
    spec = make_spec(tmp_path, tmp_path / "train", format="csv", dense=["distance"], sparse=[])
    assert open_dataset(spec, "train").batch(np.arange(2), ["dense"])["dense"].tolist() == [[1.0], [2.5]]


def test_csv_text_that_looks_like_a_date_or_a_decimal_stays_text(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("day,version,late\n2013-01-01,1.50,0\n,NA,1\n")
    spec = make_spec(tmp_path, tmp_path / "a.csv", format="csv", dense=[], sparse=["day", "version"])
    batch = open_dataset(spec, "train").batch(np.arange(2), ["day", "version"])
    assert batch["day"].tolist() == [text_id("2013-01-01"), MISSING_ID]
    assert batch["version"].tolist() == [text_id("1.50"), text_id("NA")]


def criteo_line(label: int, counts: str, category: str) -> str:
    return "\t".join([str(label), *[counts] * 13, *[category] * 26]) + "\n"


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_criteo_logs_are_read_with_missing_counts_as_zero(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"day_0.tsv{suffix}"
    text = criteo_line(1, "5", "68fd1e64") + criteo_line(0, "", "") + criteo_line(0, "-1", '"')
    path.write_bytes(gzip.compress(text.encode()) if suffix else text.encode())
    spec = make_spec(tmp_path, path, format="criteo-tsv", label="label", dense=["I1", "I13"], sparse=["C1", "C26"])
    batch = open_dataset(spec, "train").batch(np.arange(3), ["dense", "C1", "C26"])
    assert batch["dense"].tolist() == [[5.0, 5.0], [0.0, 0.0], [-1.0, -1.0]]
    assert batch["C26"].tolist() == [text_id("68fd1e64"), MISSING_ID, text_id('"')]
    assert batch["label"].tolist() == [1.0, 0.0, 0.0]


def test_a_criteo_line_with_too_few_fields_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text(criteo_line(1, "5", "x") + "1\t2\t3\n")
    spec = make_spec(tmp_path, tmp_path / "a.tsv", format="criteo-tsv", label="label", dense=["I1"], sparse=["C1"])
    refused(spec, "spec.data.train", "a.tsv", "cannot be read as criteo-tsv", "Expected 40 columns, got 3")


# --- what is not there or cannot be read ----------------------------------------------------------------------------
def test_missing_data_is_refused(tmp_path: Path) -> None:
    refused(
        make_spec(tmp_path, tmp_path / "nowhere"), "spec.data.train", "nowhere", "does not exist", "prepare the data"
    )


def test_missing_evaluation_data_names_that_field(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", columns())
    with pytest.raises(DataError, match=r"spec\.data\.evaluation: .*nowhere does not exist"):
        open_dataset(make_spec(tmp_path, path, evaluation=str(tmp_path / "nowhere")), "evaluation")
    with pytest.raises(DataError, match=r"spec\.data\.evaluation: is missing; name a file"):
        open_dataset(make_spec(tmp_path, path), "evaluation")


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    refused(make_spec(tmp_path, tmp_path / "train"), "spec.data.train", "has no files")


def test_an_unknown_kind_of_address_is_refused(tmp_path: Path) -> None:
    refused(
        make_spec(tmp_path, "nosuch://bucket/a"), "spec.data.train", "nosuch://bucket/a", "not a usable path or address"
    )


@pytest.mark.parametrize("file_format", ["parquet", "arrow", "csv"])
def test_data_without_rows_is_refused(tmp_path: Path, file_format: str) -> None:
    table = pa.table(columns()).drop_columns(["tags"]).slice(0, 0)
    path = tmp_path / "empty"
    if file_format == "parquet":
        write_parquet(path, {n: table[n] for n in table.column_names})
    elif file_format == "arrow":
        feather.write_feather(table, str(path))
    else:
        pacsv.write_csv(table, path)
    refused(make_spec(tmp_path, path, format=file_format, sparse=["flight"]), "spec.data.train", "empty has no rows")


@pytest.mark.parametrize("file_format", ["parquet", "arrow"])
def test_a_truncated_file_is_named(tmp_path: Path, file_format: str) -> None:
    write_parquet(tmp_path / "train" / "a", columns())
    if file_format == "arrow":
        feather.write_feather(pa.table(columns()), str(tmp_path / "train" / "a"))
    content = (tmp_path / "train" / "a").read_bytes()
    (tmp_path / "train" / "b").write_bytes(content[: len(content) // 2])
    spec = make_spec(tmp_path, tmp_path / "train", format=file_format)
    refused(spec, "spec.data.train", "train/b", f"cannot be read as {file_format}", "is it complete")


def test_damaged_pages_are_found_while_reading(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", columns(5000), compression="zstd")
    content = bytearray(path.read_bytes())
    content[100:2000] = bytes(1900)
    path.write_bytes(content)
    refused(make_spec(tmp_path, path), "spec.data.train", "a.parquet", "cannot be read as parquet")


def test_a_wrong_format_is_suspected(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("distance,late\n1,0\n")
    refused(make_spec(tmp_path, tmp_path / "a.csv"), "cannot be read as parquet", "is spec.data.format right?")


def test_a_csv_value_that_changes_its_type_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heterps_runtime.data.text.BLOCK_BYTES", 64)
    lines = [f"{i},{i % 2}" for i in range(50)]
    (tmp_path / "a.csv").write_text("\n".join(["flight,late", *lines, "N/K,1"]) + "\n")
    spec = make_spec(tmp_path, tmp_path / "a.csv", format="csv", dense=[], sparse=["flight"])
    refused(spec, "a.csv", "cannot be read as csv", "invalid value 'N/K'", "write the data as parquet")


# --- columns --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"label": "Late"}, ["spec.data.label", "no column 'Late'", "did you mean 'late'?"]),
        ({"dense": ["distnce"]}, ["spec.data.dense", "no column 'distnce'", "did you mean 'distance'?"]),
        (
            {"sparse": ["zzz"]},
            ["spec.data.sparse", "no column 'zzz'", "columns there: distance, hour, flight, carrier"],
        ),
        (
            {"dense": ["carrier"]},
            ["spec.data.dense", "'carrier'", "type string", "must be numbers", "spec.data.sparse"],
        ),
        ({"dense": ["tags"]}, ["spec.data.dense", "'tags'", "must be numbers"]),
        ({"sparse": ["distance"]}, ["spec.data.sparse", "'distance'", "type double", "list it under spec.data.dense"]),
        ({"label": "carrier", "sparse": ["flight"]}, ["spec.data.label", "'carrier'", "must be a number or a boolean"]),
    ],
)
def test_a_column_that_does_not_fit_is_named(tmp_path: Path, changes: dict[str, Any], words: list[str]) -> None:
    path = write_parquet(tmp_path / "a.parquet", columns())
    refused(make_spec(tmp_path, path, **changes), "a.parquet", *words)


def test_dates_are_no_features(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", columns() | {"day": pa.array([0] * 10, pa.date32())})
    refused(make_spec(tmp_path, path, sparse=["day"]), "column 'day'", "type date32[day]", "cast it to strings")


def test_every_file_of_a_folder_is_checked(tmp_path: Path) -> None:
    write_parquet(tmp_path / "train" / "a.parquet", columns())
    write_parquet(tmp_path / "train" / "b.parquet", {n: v for n, v in columns().items() if n != "hour"})
    refused(make_spec(tmp_path, tmp_path / "train"), "no column 'hour'", "b.parquet")


def test_a_sparse_column_must_have_one_type_in_all_files(tmp_path: Path) -> None:
    write_parquet(tmp_path / "train" / "a.parquet", columns())
    write_parquet(tmp_path / "train" / "b.parquet", columns() | {"flight": [str(i) for i in range(10)]})
    refused(make_spec(tmp_path, tmp_path / "train"), "'flight'", "text values in", "b.parquet", "integer values in")


def test_a_column_that_stands_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("hour,hour,late\n1,2,0\n")
    spec = make_spec(tmp_path, tmp_path / "a.csv", format="csv", dense=["hour"], sparse=[])
    refused(spec, "spec.data.dense", "'hour' occurs 2 times", "must be unique")


# --- values -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("loss", "labels", "words"),
    [
        (BINARY, [0, 1, 2], ["must be 0 or 1 (or a boolean) for a binary loss", "is 2 in row 3 of"]),
        (BINARY, [0.0, 0.5, 1.0], ["must be 0 or 1", "is 0.5 in row 2 of"]),
        (BINARY, [0, None, 1], ["must be 0 or 1", "is missing (null) in row 2 of"]),
        (CLASSES, [3, -1, 0], ["must be a class number 0, 1, 2, ... for this loss", "is -1 in row 2 of"]),
        (CLASSES, [0, 2**53, 0], ["must be a class number", "is 9007199254740992 in row 2 of"]),
        (CLASSES, [3.0, 1.5, 0.0], ["must be a class number", "is 1.5 in row 2 of"]),
        (NUMBERS, [3.0, float("nan"), 0.0], ["must be a finite number", "is nan in row 2 of"]),
    ],
)
def test_a_wrong_label_is_shown_with_its_row(tmp_path: Path, loss: str, labels: list[Any], words: list[str]) -> None:
    path = write_parquet(tmp_path / "a.parquet", columns(3) | {"late": labels})
    refused(make_spec(tmp_path, path, loss), "spec.data.label: column 'late'", "a.parquet", *words)


@pytest.mark.parametrize(
    ("loss", "labels", "dtype"),
    [
        (BINARY, [True, False], np.float32),
        (BINARY, [1.0, 0.0], np.float32),
        (CLASSES, [7, 0], np.int64),
        (CLASSES, [7.0, 0.0], np.int64),
        (NUMBERS, [-2.5, 1e30], np.float32),
    ],
)
def test_labels_have_the_type_that_the_loss_takes(tmp_path: Path, loss: str, labels: list[Any], dtype: type) -> None:
    path = write_parquet(tmp_path / "a.parquet", columns(2) | {"late": labels})
    label = open_dataset(make_spec(tmp_path, path, loss), "train").batch(np.arange(2), ["dense"])["label"]
    assert label.dtype == dtype
    assert label.tolist() == np.array(labels, dtype).tolist()


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (float("nan"), "is nan, which is not finite in float32"),
        (float("-inf"), "is -inf, which is not finite"),
        (1e39, "is 1e+39, which is not finite in float32"),
        (None, "is missing (null)"),
    ],
)
def test_a_number_that_is_none_is_shown_with_its_row_and_a_fix(tmp_path: Path, value: float | None, shown: str) -> None:
    path = write_parquet(tmp_path / "a.parquet", columns(3) | {"distance": [1.0, 2.0, value]})
    refused(
        make_spec(tmp_path, path),
        f"spec.data.dense: column 'distance' {shown}",
        "in row 3 of",
        "fill it when preparing",
    )


def test_rows_are_counted_within_their_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "BATCH_ROWS", 4)
    write_parquet(tmp_path / "train" / "a.parquet", columns(10))
    write_parquet(tmp_path / "train" / "b.parquet", columns(10) | {"late": [0, 1, 0, 1, 0, 1, 3, 1, 4, 1]})
    refused(make_spec(tmp_path, tmp_path / "train"), "is 3 in row 7 of", "b.parquet")


@pytest.mark.parametrize(
    "convert",
    [
        lambda values: pa.array([v > 4 for v in values]),
        lambda values: pa.array([int(v) for v in values], pa.uint8()),
        lambda values: pa.array(values, pa.float32()),
        lambda values: pa.array([int(v) for v in values], pa.decimal128(9, 2)),
    ],
)
def test_dense_columns_may_be_any_numbers_or_booleans(tmp_path: Path, convert: Callable[[list[float]], Any]) -> None:
    values = columns()["distance"]
    path = write_parquet(tmp_path / "a.parquet", columns() | {"distance": convert(values)})
    dense = open_dataset(make_spec(tmp_path, path), "train").batch(np.arange(10), ["dense"])["dense"]
    assert dense.dtype == np.float32
    assert dense[:, 0].tolist() == [float(v.as_py()) for v in convert(values)]


# --- spec.data itself -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"format": "parqet"},
            "spec.data.format: must be one of parquet, arrow, csv, criteo-tsv, is 'parqet'; did you mean",
        ),
        ({"dense": [], "sparse": []}, "spec.data.sparse: there are no features"),
        ({"dense": ["hour", "hour"]}, "spec.data.dense: column 'hour' is listed 2 times"),
        ({"sparse": ["late"]}, "spec.data.sparse: contains the label 'late'"),
        ({"sparse": ["dense"]}, "spec.data.sparse: a column cannot be called 'dense'"),
        ({"sparse": ["a_offsets"]}, "spec.data.sparse: a column cannot be called 'a_offsets'"),
        ({"format": "criteo-tsv", "label": "label"}, "spec.data.dense: criteo-tsv has I1 to I13 there, not 'distance'"),
        (
            {"cache": {"maxBytes": "10 gigs"}},
            "spec.data.cache.maxBytes: must be a quantity such as 10Gi or 500M, is '10 gigs'",
        ),
        ({"cache": {"maxBytes": "0"}}, "spec.data.cache.maxBytes: must be above zero, is '0'"),
    ],
)
def test_wrong_fields_are_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        make_spec(tmp_path, "train", **changes)


def test_a_quantity_may_be_a_number_or_have_a_unit(tmp_path: Path) -> None:
    for value, expected in ((5000, 5000), ("1.5Ki", 1536), ("2M", 2_000_000), ("1Gi", 1 << 30)):
        assert make_spec(tmp_path, "train", cache={"maxBytes": value}).cache_max_bytes == expected


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_the_progress_of_csv_follows_what_is_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    monkeypatch.setattr("heterps_runtime.data.text.BLOCK_BYTES", 1000)
    text = "hour,late\n" + "".join(f"{i % 10},{i % 2}\n" for i in range(2000))  # 8,010 bytes
    path = tmp_path / f"a.csv{suffix}"
    path.write_bytes(gzip.compress(text.encode()) if suffix else text.encode())
    spec = make_spec(tmp_path, path, format="csv", dense=["hour"], sparse=[])
    batches = list(source.Source(spec, "train").batches())
    assert sum(b.batch.num_rows for b in batches) == 2000
    rows = np.cumsum([b.batch.num_rows for b in batches]) / 2000
    fractions = [b.fraction for b in batches]
    if suffix:
        # How much of so small a packed file the parser's thread has read ahead is a matter of timing, until the end.
        assert all(0 < fraction <= 1 for fraction in fractions)
        assert fractions[-1] == 1
    else:
        assert np.allclose(fractions, rows, atol=0.15)
