"""Stores that fail: requests are repeated for a while, and then the error names the address and the reason."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from heterps_runtime import filesystems, hdfs
from heterps_runtime.data import files
from heterps_runtime.data.errors import DataUnavailableError
from heterps_runtime.data.files import find_files, patiently
from heterps_runtime.data.source import Source
from heterps_runtime.storage import Storage, StorageError
from tests.cluster.faulty_store import FaultyStore
from tests.cluster.http_server import HttpServer
from tests.cluster.stores import KINDS, Place, open_place
from tests.heterps_runtime.helpers.data_files import make_spec

HTTP = ("s3", "gs", "abfs")
CONTENTS = np.random.default_rng(2).bytes(3_000_000)


@pytest.fixture(scope="module", params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with (
        pytest.MonkeyPatch.context() as monkeypatch,
        open_place(request.param, tmp_path_factory.mktemp(request.param), monkeypatch) as running,
    ):
        yield running


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is repeated for a while is given up soon; the clients of S3 and Azure have no option, and take 6 s."""
    monkeypatch.setattr(filesystems, "_GCS_RETRY_SECONDS", 1)
    monkeypatch.setattr(hdfs, "_RETRIES", {**hdfs._RETRIES, "dfs.client.failover.max.attempts": "2"})
    monkeypatch.setattr(files, "_ATTEMPTS", 2)
    monkeypatch.setattr(files, "_FIRST_WAIT_SECONDS", 0.0)


@pytest.fixture
def faulty(place: Place, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[FaultyStore, Place]]:
    """A proxy, and the place as clients see it through the proxy."""
    assert isinstance(place.server, HttpServer)
    upstream = place.server.url.removeprefix("http://")
    with FaultyStore(upstream) as proxy:
        for name, value in place.server.variables.items():
            monkeypatch.setenv(name, value.replace(upstream, proxy.address))
        yield proxy, Place(place.kind, place.root.replace(upstream, proxy.address), place.option, place.server)


def rows() -> bytes:
    sink = pa.BufferOutputStream()
    random = np.random.default_rng(3)
    pq.write_table(pa.table({"y": random.integers(0, 2, 9000), "x": random.normal(size=9000)}), sink)
    return bytes(sink.getvalue())


def source(folder: Path, place: Place) -> Source:
    return Source(make_spec(folder, place.address("rows"), label="y", dense=["x"], sparse=[]), "train")


def read_all(source: Source) -> pa.Table:
    [file] = source.files

    def read() -> pa.Table:
        return pa.Table.from_batches([batch for unit in source.units(file) for batch in source.read(file, unit)])

    return patiently(read, f"{source.field}: {file.path}")


def test_a_store_that_is_gone_is_told_with_address_and_reason(place: Place, impatient: None, tmp_path: Path) -> None:
    assert place.server is not None
    storage = place.storage("gone")
    storage.write_atomic("x.bin", b"1")
    place.storage("rows").write_atomic("part-0.parquet", rows())
    opened = source(tmp_path, place)
    place.server.kill()
    try:
        attempts: list[tuple[str, Callable[[Storage], object]]] = [
            ("read", lambda storage: storage.read("x.bin")),
            ("write", lambda storage: storage.write_atomic("y.bin", b"1")),
            ("list", lambda storage: storage.files()),
        ]
        with ThreadPoolExecutor(len(attempts) + 2) as pool:
            told = [pool.submit(attempt, place.storage("gone")) for _, attempt in attempts]
            listing = pool.submit(find_files, opened.spec, "train")
            reading = pool.submit(read_all, opened)
        for (doing, _), failed in zip(attempts, told, strict=True):
            with pytest.raises(StorageError, match=rf"could not {doing} {place.root}/gone.*(?i:connect)"):
                failed.result()
        with pytest.raises(DataUnavailableError, match=rf"spec\.data\.train: {place.root}/rows.*: cannot be read: "):
            listing.result()
        with pytest.raises(DataUnavailableError, match=r"spec\.data\.train: .*part-0\.parquet: cannot be read: "):
            reading.result()
    finally:
        place.server.start()
    assert storage.files() == ["x.bin"]


@pytest.mark.parametrize("place", ["gs", "hdfs"], indirect=True)  # pauses of the others' clients are random
def test_a_store_that_comes_back_in_time_is_waited_for(place: Place) -> None:
    assert place.server is not None
    storage = place.storage("back")
    storage.write_atomic("x.bin", CONTENTS)
    place.server.kill()
    with ThreadPoolExecutor(2) as pool:
        reading = pool.submit(storage.read, "x.bin")
        writing = pool.submit(place.storage("back").write_atomic, "y.bin", CONTENTS)
        place.server.start()
    assert reading.result() == CONTENTS
    writing.result()
    assert storage.sizes() == {"x.bin": len(CONTENTS), "y.bin": len(CONTENTS)}


@pytest.mark.parametrize("place", HTTP, indirect=True)
def test_requests_that_are_refused_for_a_moment_are_repeated(faulty: tuple[FaultyStore, Place], tmp_path: Path) -> None:
    proxy, place = faulty
    storage = place.storage("refused")
    for attempt in (
        lambda: storage.write_atomic("x.bin", CONTENTS),
        lambda: storage.read("x.bin"),
        storage.files,
        lambda: place.storage("rows").write_atomic("part-0.parquet", rows()),
        lambda: source(tmp_path, place),
    ):
        proxy.refuse(1)
        attempt()
        assert proxy.left == 0
    assert storage.read("x.bin") == CONTENTS


@pytest.mark.parametrize("place", HTTP, indirect=True)
def test_an_answer_that_is_cut_off_is_no_shorter_file(
    faulty: tuple[FaultyStore, Place], place: Place, impatient: None, tmp_path: Path
) -> None:
    proxy, there = faulty
    place.storage("cut").write_atomic("x.bin", CONTENTS)
    place.storage("rows").write_atomic("part-0.parquet", rows())
    expected = read_all(source(tmp_path, place))
    opened = source(tmp_path, there)
    proxy.cut(1)
    try:
        assert there.storage("cut").read("x.bin") == CONTENTS
    except StorageError as error:
        assert f"could not read {there.root}/cut/x.bin" in str(error)  # noqa: PT017  # either is right
    assert proxy.left == 0
    proxy.cut(1)
    assert read_all(opened).equals(expected)
    assert proxy.left == 0


@pytest.mark.parametrize("place", ["hdfs"], indirect=True)
def test_a_namenode_that_does_not_answer_is_given_up(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client itself would wait for ever."""
    assert place.server is not None
    storage = place.storage("silent")
    storage.write_atomic("x.bin", b"1")
    place.server.process.send_signal(signal.SIGSTOP)
    try:
        monkeypatch.setattr(hdfs, "_PATIENCE_SECONDS", 0.5)
        with pytest.raises(StorageError, match=r"could not read .*silent/x\.bin: connection timed out"):
            storage.read("x.bin")
    finally:
        place.server.process.send_signal(signal.SIGCONT)
    monkeypatch.undo()
    assert storage.read("x.bin") == b"1"
