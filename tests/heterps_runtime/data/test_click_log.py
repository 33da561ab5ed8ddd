"""The synthetic click log: what it promises of ids, clicks and determinism, and its command line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from examples.paper.prepare import CHUNK_ROWS, FIELDS, LABEL, NUMBERS, ClickLog, ClickLogSpec, main
from numpy.typing import NDArray

SMALL = ClickLogSpec(seed=3, ids=5_000)


@pytest.fixture(scope="module")
def log() -> ClickLog:
    return ClickLog(ClickLogSpec(seed=1))


def area_under_curve(chances: NDArray[np.float32], clicks: NDArray[np.int8]) -> float:
    ranks = np.argsort(np.argsort(chances)) + 1
    positives = int(clicks.sum())
    return float((ranks[clicks == 1].sum() - positives * (positives + 1) / 2) / positives / (len(clicks) - positives))


def test_a_million_ids_behave_like_a_click_log(log: ClickLog) -> None:
    rows = log.chunk(0)
    assert log.sizes.sum() == 1_000_000
    assert log.sizes.min() >= 4
    assert rows.ids.shape == (CHUNK_ROWS, len(FIELDS))
    begins = np.cumsum(log.sizes) - log.sizes
    assert (rows.ids >= begins).all()
    assert (rows.ids < begins + log.sizes).all()
    counts = np.sort(np.bincount(rows.ids.ravel(), minlength=1_000_000))[::-1]
    assert 0.6 < counts[:10_000].sum() / counts.sum() < 0.9  # 1 % of the ids make most accesses
    unique = len(np.unique(rows.ids[:4096]))
    assert 0.15 < unique / (4096 * len(FIELDS)) < 0.35
    assert 0.2 < rows.clicks.mean() < 0.4
    assert 0.87 < area_under_curve(rows.chances, rows.clicks) < 0.93


def test_ids_follow_the_exponent() -> None:
    log = ClickLog(ClickLogSpec(seed=2, ids=100_000, zipf=1.5))
    field = int(np.argmax(log.sizes))
    ids = log.chunk(0).ids[:, field]
    counts = np.sort(np.unique(ids, return_counts=True)[1])[::-1]
    # Of the continuous law P(rank >= r) ~ r^(1-a) - top: the share of the first rank.
    top = (log.sizes[field] + 1.0) ** -0.5
    assert counts[0] / len(ids) == pytest.approx((1 - 2**-0.5) / (1 - top), rel=0.05)


def test_the_same_seed_gives_the_same_rows_and_a_longer_log_begins_with_them() -> None:
    one, two = ClickLog(SMALL), ClickLog(SMALL)
    short = list(one.chunks(1_000, first_row=500))
    long = list(two.chunks(CHUNK_ROWS, first_row=500))
    assert [len(c.clicks) for c in long] == [CHUNK_ROWS - 500, 500]
    np.testing.assert_array_equal(short[0].ids, long[0].ids[:1_000])
    np.testing.assert_array_equal(short[0].clicks, long[0].clicks[:1_000])
    other = ClickLog(ClickLogSpec(seed=4, ids=5_000)).chunk(0)
    assert (other.ids[:1_000] != one.chunk(0).ids[:1_000]).any()


def test_more_fields_make_clicks_as_predictable_as_few() -> None:
    log = ClickLog(ClickLogSpec(seed=1, fields=100))
    rows = log.chunk(0)
    begins = np.cumsum(log.sizes) - log.sizes
    assert rows.ids.shape == (CHUNK_ROWS, 100)
    assert log.sizes.sum() == 1_000_000
    assert (rows.ids >= begins).all()
    assert (rows.ids < begins + log.sizes).all()
    assert rows.table().column_names == [*(f"c{i}" for i in range(100)), *NUMBERS, LABEL]
    assert 0.2 < rows.clicks.mean() < 0.4
    assert 0.87 < area_under_curve(rows.chances, rows.clicks) < 0.93


def test_drift_brings_ids_that_were_not_popular_before() -> None:
    def shared_favourites(drift: float) -> int:
        log = ClickLog(ClickLogSpec(seed=5, ids=100_000, drift=drift))
        field = int(np.argmax(log.sizes))
        favourites = []
        for index in (0, 4):
            ids, counts = np.unique(log.chunk(index).ids[:, field], return_counts=True)
            favourites.append(set(ids[np.argsort(counts)[-100:]].tolist()))
        return len(favourites[0] & favourites[1])

    assert shared_favourites(0.0) > 80
    assert shared_favourites(0.5) == 0


def test_the_command_writes_both_splits_and_leaves_a_finished_log_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["--out", str(tmp_path / "log"), "--rows", "900", "--held-out", "100", "--seed", "3", "--ids", "5000"]
    assert main(command) == 0
    assert "900 rows to train on, 100 held out" in capsys.readouterr().out
    train, held_out = (pq.read_table(tmp_path / "log" / name) for name in ("train", "held-out"))
    assert train.column_names == [*FIELDS, *NUMBERS, LABEL]
    [expected] = ClickLog(SMALL).chunks(1_000)
    for table, part in ((train, expected.rows(0, 900)), (held_out, expected.rows(900, 1_000))):
        np.testing.assert_array_equal(table["c7"].to_numpy(), part.ids[:, 7])
        np.testing.assert_array_equal(table["x2"].to_numpy(), part.numbers[:, 2])
        np.testing.assert_array_equal(table[LABEL].to_numpy(), part.clicks)
    [file] = (tmp_path / "log" / "train").iterdir()
    before = file.stat().st_mtime_ns
    assert main(command) == 0
    assert file.stat().st_mtime_ns == before
    assert main([*command[:3], "50", "--ids", "5000"]) == 0, "another log replaces it"
    assert pq.read_table(tmp_path / "log" / "train").num_rows == 50
    assert not (tmp_path / "log" / "held-out").exists()


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--rows", "0", "rows must be at least 1, is 0"),
        ("--held-out", "-1", "held-out must be at least 0, is -1"),
        ("--ids", "100", "ids must be at least 104"),
        ("--fields", "0", "fields must be at least 1, is 0"),
        ("--zipf", "1", "zipf must be above 0, at most 4, and not 1"),
        ("--drift", "2", "drift must be 0..1, is 2"),
        ("--seed", "-1", "seed must be at least 0, is -1"),
    ],
)
def test_a_wrong_number_is_named(
    option: str, value: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--out", str(tmp_path / "log"), "--rows", "10", option, value])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "log").exists()


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(SystemExit):
        main(["--out", str(tmp_path), "--rows", "10"])
    assert "holds other files" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]
