"""What the runtime asks of a storage, of each kind that it supports, with real servers on this machine."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from heterps_runtime.checkpoint import FencedError, Storage, StorageError, find_latest, take_over
from heterps_runtime.data.errors import DataError
from heterps_runtime.data.files import find_files
from heterps_runtime.data.source import Source
from heterps_runtime.storage import PARTIAL
from tests.cluster.building import ROOT
from tests.cluster.http_server import free_address
from tests.cluster.stores import KINDS, Place, open_place
from tests.heterps_runtime.helpers.checkpoint_samples import write_checkpoint
from tests.heterps_runtime.helpers.data_files import make_spec

FOLDERS = itertools.count()
OBJECT_STORES = ("s3", "gs", "abfs")


@pytest.fixture(scope="module", params=("local", *KINDS))
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with (
        pytest.MonkeyPatch.context() as monkeypatch,
        open_place(request.param, tmp_path_factory.mktemp(request.param), monkeypatch) as running,
    ):
        yield running


@pytest.fixture
def storage(place: Place) -> Storage:
    """An empty folder; no other test uses it."""
    return place.storage(f"jobs-{next(FOLDERS)}")


def test_what_is_written_is_read_listed_and_deleted(storage: Storage) -> None:
    assert storage.files() == storage.folders() == []
    storage.write_atomic("a/x.bin", b"hello")
    storage.write_atomic("a/b/y.bin", iter([b"12", b"345"]))
    storage.write_atomic("c/z.bin", b"")
    assert storage.sizes() == {"a/b/y.bin": 5, "a/x.bin": 5, "c/z.bin": 0}
    assert storage.files("a") == ["a/b/y.bin", "a/x.bin"]
    assert storage.files("a/none") == []
    assert storage.folders() == ["a", "c"]
    assert [storage.exists(name) for name in ("a", "a/b", "a/x.bin", "none")] == [True, True, True, False]
    assert [storage.size(name) for name in ("a", "a/x.bin", "none")] == [None, 5, None]
    storage.write_atomic("a/x.bin", b"shorter"[:3])
    assert storage.read("a/x.bin") == b"sho"
    storage.delete("a/x.bin")
    storage.delete("a/x.bin")
    storage.delete_dir("a/b")
    storage.delete_dir("a/b")
    assert storage.files() == ["c/z.bin"]


def test_names_may_have_any_characters_that_tables_have(storage: Storage) -> None:
    """A table's file has its name with quotes, of which each has a percent sign (`publishing.table_file`)."""
    name = "tables/user%20%2F%E2%82%AC+a b#c.safetensors"
    storage.write_atomic(name, b"1")
    assert storage.files() == [name]
    assert storage.read(name) == b"1"


def test_a_large_file_is_read_in_ranges(storage: Storage) -> None:
    """S3 takes it in two parts, Azure in three blocks, and HDFS in pieces."""
    contents = np.random.default_rng(1).bytes(11 << 20)
    storage.write_atomic("large.bin", (contents[at : at + 3_000_001] for at in range(0, len(contents), 3_000_001)))
    assert storage.work.total == len(contents)
    assert storage.read("large.bin") == contents
    with storage.open_file("large.bin") as stream:
        assert stream.size() == len(contents)
        for start, length in ((0, 10), (5_000_000, 1), (4_999_999, 2_000_000), (len(contents) - 7, 7)):
            stream.seek(start)
            assert stream.read_buffer(length).to_pybytes() == contents[start : start + length]
            assert stream.tell() == start + length
        assert stream.read_buffer(100).size == 0
        stream.seek(len(contents) - 7)
        assert stream.read_buffer(100).to_pybytes() == contents[-7:]
        assert stream.tell() == len(contents)


def test_a_folder_with_much_is_deleted_with_all_of_it(storage: Storage) -> None:
    names = [f"step-1/rows-{i}.bin" for i in range(120)]  # a checkpoint's folder has no others in it
    with ThreadPoolExecutor(40) as pool:
        list(pool.map(lambda name: storage.write_atomic(name, b"x"), names))
    storage.write_atomic("step-10/kept.bin", b"x")
    assert storage.files("step-1") == sorted(names)
    storage.delete_dir("step-1")
    assert storage.files() == ["step-10/kept.bin"]
    assert storage.folders() == ["step-10"]


def test_a_missing_file_is_told_from_an_unreadable_one(storage: Storage) -> None:
    for read in (storage.read, storage.open_file):
        with pytest.raises(StorageError, match=r"could not read .*jobs-\d+/no/such\.bin: no such file") as caught:
            read("no/such.bin")
        assert caught.value.missing


@pytest.mark.parametrize("place", OBJECT_STORES, indirect=True)
def test_a_bucket_that_is_missing_is_named(place: Place) -> None:
    storage = Storage.open(place.address("x").replace("team-a", "no-bucket"))
    assert storage.files() == []
    assert storage.folders() == []
    with pytest.raises(StorageError, match=r"could not write .*no-bucket/x/a.bin: .*(bucket|container)"):
        storage.write_atomic("a.bin", b"1")


@pytest.mark.parametrize("place", ["local", "hdfs"], indirect=True)  # object stores have no folders
def test_a_file_where_a_folder_is_needed_is_named(storage: Storage) -> None:
    storage.write_atomic("file", b"1")
    for name in ("file/x.bin", "file/deep/x.bin"):
        with pytest.raises(StorageError, match=rf"could not write .*{name}: a file exists where a folder is needed"):
            storage.write_atomic(name, b"1")


def test_a_producer_that_fails_leaves_no_part_of_its_file(storage: Storage, place: Place) -> None:
    def broken() -> Iterator[bytes]:
        yield b"new"
        raise RuntimeError("the producer's own error")

    storage.write_atomic("a/old.bin", b"old")
    for name in ("a/old.bin", "a/new.bin"):
        with pytest.raises(RuntimeError, match="producer's own"):
            storage.write_atomic(name, broken())
    assert storage.files() == ([] if place.kind in OBJECT_STORES else ["a/old.bin"])
    if place.kind not in OBJECT_STORES:
        assert storage.read("a/old.bin") == b"old"


KILLED = """
import os, signal, sys
from heterps_runtime.checkpoint import Storage

def chunks():
    for _ in range(4):
        yield bytes(3 << 20)
    os.kill(os.getpid(), signal.SIGKILL)

storage = Storage.open(sys.argv[1])
storage.write_atomic("step-000000020.1-00000000/" + sys.argv[2], chunks())
"""


@pytest.mark.parametrize("file", ["rows-0.safetensors", "manifest.json"])
def test_a_process_killed_while_writing_leaves_nothing_that_looks_like_a_checkpoint(
    storage: Storage, place: Place, file: str
) -> None:
    good = write_checkpoint(storage, 10)
    address = f"{storage.address}{place.option}"
    killed = subprocess.run([sys.executable, "-c", KILLED, address, file], check=False, cwd=ROOT)
    assert killed.returncode == -signal.SIGKILL
    left = storage.sizes("step-000000020.1-00000000")
    assert all(PARTIAL in name or size == 0 for name, size in left.items()), "no part under the final name"
    latest, skipped = find_latest(storage)
    assert latest == good
    assert [folder for folder, _ in skipped] == (["step-000000020.1-00000000"] if left else [])
    newest = write_checkpoint(storage, 30, keep=1)
    assert storage.folders() == ["owners", newest.folder]
    assert find_latest(storage)[0] == newest


def test_a_run_is_fenced_by_the_next_one(storage: Storage) -> None:
    first = take_over(storage, "one", 0.0)
    first.check()
    second = take_over(storage, "other", 0.0)
    second.check()
    assert (first.term, second.term) == (1, 2)
    with pytest.raises(FencedError, match="job other"):
        first.check()


# --- training data ----------------------------------------------------------------------------------------------------


def columns(seed: int) -> dict[str, object]:
    random = np.random.default_rng(seed)
    return {"y": random.integers(0, 2, 700), "a": random.integers(0, 99, 700), "x": random.normal(size=700)}


def write_rows(place: Place, name: str) -> None:
    storage = place.storage(name)
    for day in (1, 2):
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table(columns(day)), sink, row_group_size=100)
        storage.write_atomic(f"day={day}/part-0.parquet", sink.getvalue().to_pybytes())
    storage.write_atomic("_SUCCESS", b"")


def test_training_data_in_a_store_are_those_on_a_disk(place: Place, tmp_path: Path) -> None:
    name = f"data-{next(FOLDERS)}"
    write_rows(place, name)
    write_rows(Place("local", str(tmp_path)), "data")
    tables = []
    for folder in (place.address(name), str(tmp_path / "data")):
        source = Source(make_spec(tmp_path, folder, label="y", dense=["x"], sparse=["a", "day"]), "train")
        assert [file.partition for file in source.files] == [{"day": "1"}, {"day": "2"}]
        units = [(file, unit) for file in source.files for unit in source.units(file)]
        tables.append(pa.Table.from_batches([batch for file, unit in units for batch in source.read(file, unit)]))
    assert tables[0].num_rows == 1400
    assert tables[0].equals(tables[1])


def test_data_that_are_not_there_are_the_users_error(place: Place, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"spec\.data\.train: .*/nothing.* does not exist"):
        find_files(make_spec(tmp_path, place.address("nothing")), "train")


# --- credentials ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["abfs"], indirect=True)
def test_a_key_of_azure_comes_from_the_environment(
    place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    place.storage("keyed").write_atomic("x.bin", b"1")
    monkeypatch.setenv("AZURE_STORAGE_KEY", "A" * 86 + "==")
    with pytest.raises(StorageError, match="403 Server failed to authenticate"):
        place.storage("keyed").read("x.bin")
    with pytest.raises(DataError, match=r"cannot be listed: .*403 Server failed to authenticate"):
        find_files(make_spec(tmp_path, place.address("keyed")), "train")
    monkeypatch.delenv("AZURE_STORAGE_KEY")
    with pytest.raises(DataError, match=r"cannot be listed: .*not permitted for non TLS"):
        find_files(make_spec(tmp_path, place.address("keyed")), "train")


@pytest.mark.parametrize("place", ["gs"], indirect=True)
def test_a_key_file_of_google_is_used(place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The client signs its token itself; without a key, it asks the machine's metadata server and fails."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    account = {"type": "service_account", "client_email": "me@tests.iam", "private_key_id": "1", "private_key": pem}
    account["token_uri"] = "http://127.0.0.1:1/no-token-is-fetched"
    file = tmp_path / "key.json"
    file.write_text(json.dumps(account))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
    storage = Storage.open("gs://team-a/with-key")
    storage.write_atomic("x.bin", b"1")
    assert storage.read("x.bin") == b"1"


@pytest.mark.parametrize("place", ["hdfs"], indirect=True)
def test_a_user_of_hdfs_comes_from_the_environment(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.storage("owned").write_atomic("x.bin", b"1")
    monkeypatch.setenv("HADOOP_USER_NAME", "stranger")
    assert place.storage("owned").read("x.bin") == b"1"
    with pytest.raises(StorageError, match=r"could not write .*owned/y\.bin: Permission denied: user=stranger"):
        place.storage("owned").write_atomic("y.bin", b"1")


@pytest.mark.parametrize("place", ["hdfs"], indirect=True)
def test_a_name_service_is_read_from_hadoops_configuration(
    place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The first of its two namenodes is away."""
    namenode = place.root.removeprefix("hdfs://").partition("/")[0]
    settings = {
        "dfs.nameservices": "both",
        "dfs.ha.namenodes.both": "one,other",
        "dfs.namenode.rpc-address.both.one": free_address(),
        "dfs.namenode.rpc-address.both.other": namenode,
    }
    items = "".join(f"<property><name>{k}</name><value>{v}</value></property>" for k, v in settings.items())
    (tmp_path / "hdfs-site.xml").write_text(f"<configuration>{items}</configuration>")
    (tmp_path / "core-site.xml").write_text(
        "<configuration><property><name>fs.defaultFS</name><value>hdfs://both</value></property></configuration>"
    )
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    Storage.open("hdfs://both/service").write_atomic("x.bin", b"1")
    assert Storage.open("hdfs:///service").read("x.bin") == b"1"
    assert Storage.open(f"hdfs://{namenode}/service").read("x.bin") == b"1"
