"""The cache: built once, shared, bounded, whole or not there."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heterps_runtime.data import DataError, Dataset, DataSpec, open_dataset, source
from heterps_runtime.data.errors import DataCacheError
from heterps_runtime.data.npy import HEADER_BYTES, NpyWriter
from heterps_runtime.errors import UserError
from heterps_runtime.quantity import parse_bytes
from tests.heterps_runtime.helpers.data_files import columns, make_spec, write_parquet


class Messages:
    """A progress callback that keeps what was said."""

    def __init__(self) -> None:
        self.said: list[tuple[float, str]] = []

    def __call__(self, fraction: float, text: str) -> None:
        self.said.append((fraction, text))

    def __contains__(self, words: str) -> bool:
        return any(words in text for _, text in self.said)


def opened(spec: DataSpec) -> tuple[Dataset, Messages]:
    messages = Messages()
    return open_dataset(spec, "train", messages), messages


def folders(spec: DataSpec) -> list[Path]:
    return sorted(p.parent for p in spec.cache_directory.glob("*/meta.json"))


def fixed_spec(folder: Path, rows: int = 100, **changes: Any) -> DataSpec:
    """A data set without lists, so that its size is known: 4 + 2 * 4 + 2 * 8 bytes per row and three headers."""
    path = write_parquet(folder / f"rows-{rows}.parquet", columns(rows))
    return make_spec(folder, path, sparse=["flight", "carrier"], **changes)


def fixed_bytes(rows: int) -> int:
    return 28 * rows + 3 * HEADER_BYTES


def test_the_second_opening_reads_the_first_ones_cache(tmp_path: Path) -> None:
    spec = fixed_spec(tmp_path)
    first, said = opened(spec)
    assert "preparing the data: 100 rows (100%)" in said
    second, said = opened(spec)
    assert said.said == []
    rows = np.array([5, 3, 99])
    a, b = (d.batch(rows, ["flight", "dense"]) for d in (first, second))
    assert {k: v.tolist() for k, v in a.items()} == {k: v.tolist() for k, v in b.items()}
    assert len(folders(spec)) == 1


def test_changed_files_or_columns_get_another_cache(tmp_path: Path) -> None:
    spec = fixed_spec(tmp_path)
    open_dataset(spec, "train")
    open_dataset(make_spec(tmp_path, spec.train, sparse=["carrier", "flight"]), "train")
    assert len(folders(spec)) == 2
    write_parquet(Path(spec.train), columns(100) | {"late": [1] * 100})
    os.utime(spec.train, ns=(1, 1))
    changed, _ = opened(spec)
    assert len(folders(spec)) == 3
    assert changed.batch(np.arange(100), ["dense"])["label"].tolist() == [1.0] * 100


def test_progress_grows_to_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "BATCH_ROWS", 10)
    monkeypatch.setattr("heterps_runtime.data.cache.SAY_SECONDS", 0.0)
    _, messages = opened(fixed_spec(tmp_path))
    fractions = [f for f, _ in messages.said]
    assert fractions == sorted(fractions)
    assert len(fractions) == 10
    assert fractions[-1] == 1.0


# --- damage and interruption ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("file", ["sparse.npy", "dense.npy", "label.npy", "meta.json"])
def test_a_truncated_file_makes_it_built_again_and_said_aloud(tmp_path: Path, file: str) -> None:
    spec = fixed_spec(tmp_path)
    expected = open_dataset(spec, "train").batch(np.arange(100), ["flight", "dense"])
    damaged = folders(spec)[0] / file
    os.truncate(damaged, damaged.stat().st_size // 2)
    dataset, messages = opened(spec)
    assert "is damaged" in messages
    assert "building it again" in messages
    batch = dataset.batch(np.arange(100), ["flight", "dense"])
    assert all(np.array_equal(batch[n], expected[n]) for n in expected)


def test_a_lost_file_makes_it_built_again(tmp_path: Path) -> None:
    spec = fixed_spec(tmp_path)
    open_dataset(spec, "train")
    (folders(spec)[0] / "label.npy").unlink()
    dataset, messages = opened(spec)
    assert "is damaged" in messages
    assert dataset.num_rows == 100


def test_a_build_that_fails_leaves_no_folder(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", columns(3) | {"late": [0, 1, 2]})
    spec = make_spec(tmp_path, path)
    with pytest.raises(DataError):
        open_dataset(spec, "train")
    assert [p for p in spec.cache_directory.iterdir() if p.is_dir()] == []


def test_a_build_that_was_killed_is_replaced(tmp_path: Path) -> None:
    spec = fixed_spec(tmp_path)
    program = (
        "import os, signal, sys; from heterps_runtime.data import open_dataset; from pathlib import Path;"
        "from tests.heterps_runtime.helpers.data_files import make_spec;"
        "spec = make_spec(Path(sys.argv[1]), sys.argv[2], sparse=['flight', 'carrier']);"
        "open_dataset(spec, 'train', lambda f, t: os.kill(os.getpid(), signal.SIGKILL))"
    )
    killed = subprocess.run([sys.executable, "-c", program, str(tmp_path), spec.train], check=False, timeout=60)
    assert killed.returncode == -signal.SIGKILL
    assert list(spec.cache_directory.glob("*.building"))
    dataset, messages = opened(spec)
    assert dataset.num_rows == 100
    assert "waiting" not in messages  # the dead process's lock is gone
    assert not list(spec.cache_directory.glob("*.building"))


# --- several processes ------------------------------------------------------------------------------------------------
def test_a_process_waits_for_the_one_that_builds_and_says_so(tmp_path: Path) -> None:
    spec = fixed_spec(tmp_path)
    open_dataset(spec, "train")
    waiting, finished, said = threading.Event(), threading.Event(), Messages()

    def progress(fraction: float, text: str) -> None:
        said(fraction, text)
        waiting.set()

    def wait() -> None:
        open_dataset(spec, "train", progress)
        finished.set()

    with next(spec.cache_directory.glob("*.lock")).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write("40\n")
        lock.flush()
        thread = threading.Thread(target=wait)
        thread.start()
        assert waiting.wait(30)
        assert not finished.is_set()
    thread.join(30)
    assert finished.is_set()
    assert said.said[0] == (0.4, "waiting: another process is preparing the data (40 %)")


def test_of_several_processes_one_builds(tmp_path: Path) -> None:
    spec = fixed_spec(tmp_path, rows=50_000)
    program = (
        "import sys; from heterps_runtime.data import open_dataset; from pathlib import Path;"
        "from tests.heterps_runtime.helpers.data_files import make_spec;"
        "spec = make_spec(Path(sys.argv[1]), sys.argv[2], sparse=['flight', 'carrier']);"
        "input(); print(open_dataset(spec, 'train', lambda f, t: print(t)).num_rows)"
    )
    command = [sys.executable, "-c", program, str(tmp_path), spec.train]
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    outputs = [process.communicate("go\n", timeout=60)[0] for process in processes]
    assert all(output.endswith("50000\n") for output in outputs)
    assert sum("preparing the data: 50,000 rows (100%)" in output for output in outputs) == 1


# --- space ------------------------------------------------------------------------------------------------------------
def test_too_small_a_limit_is_refused_before_reading_with_the_needed_size(tmp_path: Path) -> None:
    needed = fixed_bytes(1000)
    spec = fixed_spec(tmp_path, rows=1000, cache={"maxBytes": needed - 1})
    messages = Messages()
    with pytest.raises(DataCacheError, match=rf"spec\.data\.cache\.maxBytes: is .*raise it to at least {needed}$"):
        open_dataset(spec, "train", messages)
    assert messages.said == []
    enough = fixed_spec(tmp_path, rows=1000, cache={"maxBytes": needed})
    assert open_dataset(enough, "train").num_rows == 1000


def test_lists_are_counted_while_they_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "BATCH_ROWS", 100)
    path = write_parquet(tmp_path / "a.parquet", columns(1000) | {"tags": [["x"] * 50] * 1000})
    spec = make_spec(tmp_path, path, cache={"maxBytes": "100k"})
    with pytest.raises(
        DataCacheError, match=r"spec\.data\.cache\.maxBytes: is 97.66Ki, but .* needs about 4\d\d\.?\d?Ki"
    ):
        open_dataset(spec, "train")
    assert folders(spec) == []


def test_the_least_recently_used_data_set_makes_room(tmp_path: Path) -> None:
    limit = {"maxBytes": 2 * fixed_bytes(1000) + 4000}
    specs = [fixed_spec(tmp_path, rows=rows, cache=limit) for rows in (1000, 999, 998)]
    for spec in specs[:2]:
        open_dataset(spec, "train")
    recent, old = sorted(folders(specs[0]), key=lambda f: -json.loads((f / "meta.json").read_text())["rows"])
    os.utime(recent, ns=(1, 1))
    os.utime(old, ns=(2, 2))
    open_dataset(specs[0], "train")  # opening is using: the first data set is the more recent one from now on
    _, messages = opened(specs[2])
    assert f"removed the data set {old.name} from the cache" in messages
    assert recent in folders(specs[0])
    assert old not in folders(specs[0])


def test_a_data_set_in_use_is_never_removed(tmp_path: Path) -> None:
    limit = {"maxBytes": fixed_bytes(1000) + 4000}
    in_use = open_dataset(fixed_spec(tmp_path, rows=1000, cache=limit), "train")
    with pytest.raises(DataCacheError, match=r"in addition to .*Ki of data sets in use; raise it to at least"):
        open_dataset(fixed_spec(tmp_path, rows=500, cache=limit), "train")
    assert in_use.batch(np.array([999]), ["flight"])["flight"].tolist() == [1999]


def test_the_rest_of_another_data_sets_killed_build_is_removed_unless_it_goes_on(tmp_path: Path) -> None:
    spec = fixed_spec(tmp_path, cache={"maxBytes": "1Gi"})
    for name in ("killed", "alive"):
        (spec.cache_directory / f"{name}.building").mkdir(parents=True)
        (spec.cache_directory / f"{name}.lock").touch()
    with (spec.cache_directory / "alive.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        open_dataset(spec, "train")
    assert [p.name for p in spec.cache_directory.glob("*.building")] == ["alive.building"]


def test_a_full_disk_is_explained_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: NpyWriter, rows: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(NpyWriter, "append", full)
    spec = fixed_spec(tmp_path)
    with pytest.raises(DataCacheError, match=r"spec\.data\.cache\.directory: the disk of .*cache is full"):
        open_dataset(spec, "train")
    assert [p for p in spec.cache_directory.iterdir() if p.is_dir()] == []


def test_a_cache_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    with pytest.raises(DataCacheError, match=r"spec\.data\.cache\.directory: .*cache cannot be used: File exists; use"):
        open_dataset(fixed_spec(tmp_path), "train")


# --- .npy -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("row_shape", [(), (3,)])
def test_appended_rows_make_an_ordinary_npy_file(tmp_path: Path, row_shape: tuple[int, ...]) -> None:
    parts = [np.arange(n * max(1, sum(row_shape)), dtype=np.int64).reshape(n, *row_shape) for n in (4, 0, 7)]
    with NpyWriter(tmp_path / "a.npy", np.int64, row_shape) as writer:
        for part in parts:
            writer.append(part)
        writer.finish()
        size = writer.nbytes
    assert (tmp_path / "a.npy").stat().st_size == size
    assert np.array_equal(np.load(tmp_path / "a.npy", mmap_mode="r"), np.concatenate(parts))


@pytest.mark.parametrize("text", ["1" + "0" * 400, "1" + "0" * 394 + "M"])
def test_a_quantity_of_any_length_is_read(text: str) -> None:
    assert parse_bytes(text, "field") == 10**400


def test_a_quantity_of_less_than_a_byte_is_refused() -> None:
    with pytest.raises(UserError, match="must be above zero"):
        parse_bytes("0." + "0" * 400 + "1", "field")
