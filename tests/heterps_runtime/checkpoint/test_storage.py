"""Files appear whole or not at all, and errors name the path."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from pyarrow import fs as pafs

from heterps_runtime.checkpoint import CheckpointWriter, Origin, StateFile, Storage, StorageError, find_latest
from heterps_runtime.checkpoint.format import TensorSpec, create_tensor_file
from heterps_runtime.storage import PARTIAL, StorageAddressError
from tests.availability import unavailable
from tests.heterps_runtime.helpers.checkpoint_samples import write_checkpoint


@pytest.fixture(params=["local", "remote"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "local":
        return Storage.open(tmp_path / "jobs")
    return Storage(pafs._MockFileSystem(), "jobs", "mock://jobs")


def test_what_is_written_is_read_listed_and_deleted(storage: Storage) -> None:
    assert storage.files() == []
    storage.write_atomic("a/x.bin", b"hello")
    storage.write_atomic("a/b/y.bin", iter([b"12", b"345"]))
    storage.write_atomic("c/z.bin", b"")
    assert storage.files() == ["a/b/y.bin", "a/x.bin", "c/z.bin"]
    assert [storage.size(name) for name in storage.files()] == [5, 5, 0]
    assert storage.files("a") == ["a/b/y.bin", "a/x.bin"]
    assert storage.folders() == ["a", "c"]
    assert storage.read("a/b/y.bin") == b"12345"
    with storage.open_file("a/b/y.bin") as stream:
        stream.seek(1)
        assert stream.read_buffer(3).to_pybytes() == b"234"
    assert storage.exists("a/b")
    assert storage.size("a/b") is None
    storage.delete("a/x.bin")
    storage.delete("a/x.bin")
    storage.delete_dir("a/b")
    storage.delete_dir("a/b")
    assert storage.files() == ["c/z.bin"]


def test_a_producer_that_fails_leaves_the_old_file_and_nothing_else(storage: Storage) -> None:
    storage.write_atomic("a/x.bin", b"old")

    def broken() -> Iterator[bytes]:
        yield b"new"
        raise RuntimeError("the producer's own error")

    with pytest.raises(RuntimeError, match="producer's own"):
        storage.write_atomic("a/x.bin", broken())
    assert storage.read("a/x.bin") == b"old"
    assert storage.files() == ["a/x.bin"]


def test_an_upload_to_an_object_store_that_breaks_off_is_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heterps_runtime.storage._ONE_PUT", frozenset({"mock"}))
    filesystem = pafs._MockFileSystem()
    filesystem.create_dir("jobs/a", recursive=True)  # object stores have no folders to make
    storage = Storage(filesystem, "jobs", "mock://jobs")

    def broken() -> Iterator[bytes]:
        yield b"half"
        raise RuntimeError("cable pulled")

    with pytest.raises(RuntimeError, match="cable"):
        storage.write_atomic("a/x.bin", broken())
    assert storage.files() == []
    storage.write_atomic("a/x.bin", b"whole")
    assert storage.read("a/x.bin") == b"whole"


def test_a_missing_file_is_told_from_an_unreadable_one(storage: Storage) -> None:
    with pytest.raises(StorageError, match=r"could not read .*jobs/no/such\.bin") as caught:
        storage.read("no/such.bin")
    assert caught.value.missing
    with pytest.raises(StorageError) as caught:
        storage.open_file("no/such.bin")
    assert caught.value.missing


def test_a_folder_that_cannot_be_made_is_reported_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match=r"could not write .*file/x\.bin: a file exists where a folder"):
        Storage.open(tmp_path).write_atomic("file/x.bin", b"1")


@pytest.mark.parametrize("address", ["", "nosuch://bucket/path", "ftp://host/path", "s3://[bucket/path"])
def test_an_address_that_names_no_storage_is_the_users_error(address: str) -> None:
    with pytest.raises(StorageAddressError) as caught:
        Storage.open(address)
    assert isinstance(caught.value, ValueError)
    assert address in str(caught.value)


@pytest.mark.parametrize("scheme", ["s3", "S3", "nosuch", "hdfs", "abfs"])
def test_an_address_with_credentials_is_refused_without_repeating_them(scheme: str) -> None:
    with pytest.raises(StorageAddressError, match="environment variables") as caught:
        Storage.open(f"{scheme}://key:secret@bucket/path?token=secret")
    assert "secret@" not in str(caught.value)
    assert "key" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_the_options_of_an_address_do_not_reach_messages() -> None:
    with pytest.raises(StorageAddressError) as caught:
        Storage.open("nosuch://bucket/path?token=secret")
    assert "nosuch://bucket/path" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert Storage.open("s3://bucket/path?region=eu-west-1").path("x") == "s3://bucket/path/x"


def test_file_addresses_and_relative_paths_are_local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Storage.open(f"file://{tmp_path}/a").write_atomic("x", b"1")
    monkeypatch.chdir(tmp_path)
    assert Storage.open("a").read("x") == b"1"
    assert Storage.open(f"file://{tmp_path}/a").address == str(tmp_path / "a")
    assert Storage.open("a/").address == str(tmp_path / "a")


def test_reading_and_writing_count_as_work(storage: Storage) -> None:
    storage.write_atomic("a/x.bin", iter([b"12", b"345"]))
    assert storage.work.total == 5
    storage.read("a/x.bin")
    assert storage.work.total == 10


def test_a_new_folder_and_its_file_are_flushed_with_the_folders_that_name_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[str] = []
    fsync = os.fsync

    def note(descriptor: int) -> None:
        flushed.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    Storage.open(tmp_path / "jobs").write_atomic("step/x.bin", b"1")
    folders = [path for path in flushed if PARTIAL not in path]
    assert folders == [str(tmp_path), str(tmp_path / "jobs"), str(tmp_path / "jobs" / "step")]
    assert len(flushed) == 4, "and the file itself, under its temporary name"
    flushed.clear()
    Storage.open(tmp_path / "jobs").write_atomic("step/y.bin", b"1")
    assert [path for path in flushed if PARTIAL not in path] == [str(tmp_path / "jobs" / "step")]


def test_uploads_to_s3_are_waited_for_piece_by_piece() -> None:
    """In the background they would fill memory, and no progress would be seen until the end."""
    _, (options,) = Storage.open("s3://bucket/path?region=eu-west-1")._filesystem.__reduce__()
    assert options["background_writes"] is False
    assert (options["region"], options["allow_delayed_open"]) == ("eu-west-1", True)


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of one megabyte."""
    if os.geteuid() != 0:
        unavailable("mounting a tmpfs of one megabyte needs root")
    folder = tmp_path / "tiny"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        unavailable(f"cannot mount a tmpfs here: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_said_plainly_and_leaves_no_rest(tiny_disk: Path) -> None:
    storage = Storage.open(tiny_disk)
    storage.write_atomic("old.bin", bytes(1000))
    with pytest.raises(
        StorageError, match=r"could not write .*tiny/new\.bin: the disk is full \(\d+ MB free\)"
    ) as caught:
        storage.write_atomic("new.bin", (bytes(100_000) for _ in range(20)))
    assert caught.value.errno == errno.ENOSPC
    assert [path.name for path in tiny_disk.iterdir()] == ["old.bin"]
    storage.write_atomic("new.bin", bytes(100_000))


def test_a_disk_that_runs_full_while_checkpointing_keeps_the_last_good_checkpoint(tiny_disk: Path) -> None:
    storage = Storage.open(tiny_disk)
    good = write_checkpoint(storage, 10)
    writer = CheckpointWriter(storage)
    files = [
        StateFile("dense-0.safetensors", {"dense/a": np.zeros(10_000)}, Origin(20, 1), "dense"),
        StateFile("rows-0.safetensors", {"group-1/keys": np.zeros(1_000_000, dtype=np.int64)}, Origin(20, 1), "rows"),
    ]
    error = writer.write("step-000000020.1-00000000", files).exception(timeout=60)
    writer.close()
    assert isinstance(error, StorageError)
    assert re.search(
        r"could not write .*tiny/step-000000020\.1-00000000/rows-0\.safetensors: the disk is full", str(error)
    )
    assert storage.files("step-000000020.1-00000000") == []
    assert find_latest(storage)[0] == good


def test_a_disk_too_small_for_a_model_is_an_error_and_not_a_crash(tiny_disk: Path) -> None:
    """Writing to mapped pages that the disk has no room for would end the process by SIGBUS."""
    specs = {"rows": TensorSpec(np.dtype(np.float64), (1_000_000,))}
    with pytest.raises(StorageError, match="the disk is full"):
        create_tensor_file(tiny_disk / "model.safetensors", specs)
    assert list(tiny_disk.iterdir()) == []


KILLED = """
import os, signal, sys
from heterps_runtime.checkpoint import Storage

def chunks():
    yield bytes(100_000)
    os.kill(os.getpid(), signal.SIGKILL)

Storage.open(sys.argv[1]).write_atomic("step-000000020.1-00000000/rows-0.safetensors", chunks())
"""


def test_a_process_killed_while_writing_leaves_nothing_that_looks_like_a_checkpoint(tmp_path: Path) -> None:
    storage = Storage.open(tmp_path)
    good = write_checkpoint(storage, 10)
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    [rest] = storage.files("step-000000020.1-00000000")
    assert PARTIAL in rest
    latest, skipped = find_latest(storage)
    assert latest == good
    assert [folder for folder, _ in skipped] == ["step-000000020.1-00000000"]
    newest = write_checkpoint(storage, 30, keep=1)
    assert storage.folders() == ["owners", newest.folder]
