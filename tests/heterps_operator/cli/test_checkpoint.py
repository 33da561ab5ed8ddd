"""`heterps checkpoint` on checkpoints as jobs write them, with the real runtime."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from heterps_operator.__main__ import main
from heterps_operator.cli.session import Programs
from heterps_runtime.checkpoint import Storage, find_latest, take_over
from heterps_runtime.checkpoint.retention import retain
from tests.heterps_operator.helpers.in_process import run_tools_in_process
from tests.heterps_runtime.helpers.checkpoint_samples import owner_of, write_checkpoint, write_state


@pytest.fixture(autouse=True)
def _few_processes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """One test uses processes as users do; the others are about what the tools do."""
    if request.function is not test_all_are_listed_newest_first_and_what_is_wrong_with_one:
        run_tools_in_process(monkeypatch)


@pytest.fixture
def storage(job_file: Path, monkeypatch: pytest.MonkeyPatch) -> Storage:
    """Checkpoints of the job file's job in its work directory; the latter is in the current folder."""
    monkeypatch.chdir(job_file.parent)
    monkeypatch.setenv("COLUMNS", "160")
    path = job_file.parent / ".heterps" / "tiny" / "checkpoints"
    path.mkdir(parents=True)
    return Storage.open(path)


def answer(capsys: Any, *arguments: str, code: int = 0) -> dict[str, Any]:
    assert main(["checkpoint", *arguments, "--output", "json"]) == code
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_all_are_listed_newest_first_and_what_is_wrong_with_one(storage: Storage, tmp_path: Path, capsys: Any) -> None:
    old = write_checkpoint(storage, 20)
    damaged = write_checkpoint(storage, 40)
    write_state(storage, "step-000000060.1-00000000", 60, shards=1)
    (tmp_path / storage.path(damaged.folder) / "dense-0.safetensors").unlink()
    document = answer(capsys, "ls", "job.yaml")
    found = [(one["step"], one["health"], one["reason"] or "") for one in document["checkpoints"]]
    assert [(step, health) for step, health, _ in found] == [(60, "Incomplete"), (40, "Damaged"), (20, "Valid")]
    assert found[0][2] == "it is incomplete: manifest.json is missing"
    assert "dense-0.safetensors" in found[1][2]
    assert document["owner"] == "job job (term 1)"
    assert document["checkpoints"][2] | {"bytes": 0, "stored": 0} == {
        "folder": old.folder,
        "step": 20,
        "term": 1,
        "health": "Valid",
        "reason": None,
        "bytes": 0,
        "stored": 0,
        "epoch": 0,
        "samples": 1280,
        "loss": 0.25,
        "rows": 270,
        "tables": 3,
        "files": 4,
    }
    size = sum(entry.bytes for entry in old.files)
    assert document["checkpoints"][2]["bytes"] == size
    assert document["checkpoints"][2]["stored"] > size  # the manifest is there, too
    assert main(["checkpoint", "ls", storage.address]) == 0
    text = capsys.readouterr().out
    assert "last used by job job (term 1)" in text
    assert f"{damaged.folder}: " in text


def test_only_verifying_reads_what_the_files_hold(storage: Storage, tmp_path: Path, capsys: Any) -> None:
    good, bad = write_checkpoint(storage, 20), write_checkpoint(storage, 40)
    path = tmp_path / storage.path(bad.folder) / "rows-1.safetensors"
    contents = bytearray(path.read_bytes())
    contents[-3] ^= 1
    path.write_bytes(contents)
    assert {one["health"] for one in answer(capsys, "ls", "job.yaml")["checkpoints"]} == {"Valid"}
    newest, oldest = answer(capsys, "verify", "job.yaml", code=1)["checkpoints"]
    assert (newest["health"], oldest["health"]) == ("Damaged", "Valid")
    assert newest["reason"].startswith("rows-1.safetensors")
    [only] = answer(capsys, "verify", "job.yaml", "--checkpoint", "20")["checkpoints"]
    assert only["folder"] == good.folder


def test_two_are_compared_the_newest_valid_ones_unless_named(storage: Storage, capsys: Any) -> None:
    for step in (20, 40, 60):
        write_checkpoint(storage, step)
    document = answer(capsys, "diff", "job.yaml")
    assert (document["before"]["step"], document["after"]["step"]) == (40, 60)
    assert {table["name"] for table in document["tables"]} == {"user.weight", "item.weight", "place.weight"}
    document = answer(capsys, "diff", "job.yaml", "--after", "40")
    assert (document["before"]["step"], document["after"]["step"]) == (20, 40)
    document = answer(capsys, "diff", "job.yaml", "--before", "20", "--after", "60")
    assert (document["before"]["step"], document["after"]["step"]) == (20, 60)
    assert main(["checkpoint", "diff", "job.yaml"]) == 0
    text = capsys.readouterr().out
    assert "norm.num_batches_tracked" in text
    assert "0 of 4 arrays are equal in both" in text


def test_a_damaged_one_is_not_compared_unless_named(storage: Storage, tmp_path: Path, capsys: Any) -> None:
    for step in (20, 40):
        write_checkpoint(storage, step)
    damaged = write_checkpoint(storage, 60)
    (tmp_path / storage.path(damaged.folder) / "manifest.json").unlink()
    document = answer(capsys, "diff", "job.yaml")
    assert (document["before"]["step"], document["after"]["step"]) == (20, 40)
    answer(capsys, "diff", "job.yaml", "--after", "60", code=2)["failure"]["message"]


def test_old_ones_are_deleted_and_nothing_else(storage: Storage, tmp_path: Path, capsys: Any) -> None:
    manifests = [write_checkpoint(storage, step) for step in (20, 40, 60, 80)]
    (tmp_path / storage.path(manifests[2].folder) / "manifest.json").unlink()
    write_state(storage, "step-000000100.1-00000000", 100, shards=1)  # being written by the job
    (tmp_path / storage.path("model")).mkdir()
    before = storage.files()
    tried = answer(capsys, "prune", "job.yaml", "--keep", "2", "--dry-run")
    assert storage.files() == before
    document = answer(capsys, "prune", "job.yaml", "--keep", "2")
    assert document == tried | {"dryRun": False}
    assert document["deleted"] == [manifests[2].folder, manifests[0].folder]
    assert [one["folder"] for one in document["passedOver"]] == ["step-000000100.1-00000000"]
    assert storage.folders() == sorted(
        ["model", "owners", manifests[1].folder, manifests[3].folder, "step-000000100.1-00000000"]
    )


def test_a_job_that_runs_is_not_disturbed(storage: Storage, capsys: Any) -> None:
    """Deleting takes nothing over, and a job may delete the same checkpoints at the same time."""
    owner = take_over(storage, "job", 0.0)
    for step in (20, 40):
        write_checkpoint(storage, step)
    answer(capsys, "prune", "job.yaml", "--keep", "1")
    owner.check()
    newest = write_checkpoint(storage, 60)
    retain(storage, newest, 1, owner_of(storage))
    assert find_latest(storage) == (newest, ())


def test_without_a_valid_one_nothing_is_deleted(storage: Storage, capsys: Any) -> None:
    write_state(storage, "step-000000020.1-00000000", 20, shards=1)
    document = answer(capsys, "prune", "job.yaml", "--keep", "1", code=2)
    assert document["failure"]["message"].endswith("there is no valid checkpoint, so nothing is deleted")
    assert storage.folders() == ["step-000000020.1-00000000"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("ls", "nowhere"), "nowhere: there is no such folder"),
        (("verify", "job.yaml", "--checkpoint", "21"), "there is no checkpoint 21; steps with one: 20"),
        (("diff", "job.yaml"), "there is no valid checkpoint before step-000000020"),
        (("ls", ".", "--work-directory", "x"), "--work-directory: is for a job file (.yaml); leave it out"),
        (("ls", "other.yaml"), "other.yaml"),
        (("ls", "ftp://host/folder"), "ftp://host/folder"),
    ],
)
def test_a_wrong_command_says_what_is_wrong(
    storage: Storage, capsys: Any, arguments: tuple[str, ...], message: str
) -> None:
    write_checkpoint(storage, 20)
    document = answer(capsys, *arguments, code=2)
    assert message in document["failure"]["message"]


def test_a_store_that_fails_is_no_bad_input(storage: Storage, tmp_path: Path, capsys: Any) -> None:
    """A file in place of a folder stands for every store that refuses to answer."""
    write_checkpoint(storage, 20)
    owners = tmp_path / storage.path("owners")
    for path in owners.iterdir():
        path.unlink()
    owners.rmdir()
    owners.write_text("no folder")
    document = answer(capsys, "ls", "job.yaml", code=1)
    assert document["failure"]["reason"] == "StoreError"


def test_a_runtime_that_says_nothing_is_reported(storage: Storage, capsys: Any) -> None:
    programs = Programs(runtime=(sys.executable, "-c", "raise SystemExit(3)"))
    assert main(["checkpoint", "ls", "job.yaml"], programs) == 1
    assert "ended with exit code 3" in capsys.readouterr().err


def test_ctrl_c_ends_the_process_that_reads(tmp_path: Path) -> None:
    """The store takes a connection and never answers; the connection ends with the process that reads."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        # A name of its own: clients of other tests may call a bucket at the port that they had before.
        address = f"s3://interrupted/job?scheme=http&endpoint_override=127.0.0.1:{server.getsockname()[1]}"
        command = [sys.executable, "-m", "heterps_operator", "checkpoint", "ls", address]
        environment = os.environ | {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "here"}
        # A shell starts commands in the background with Ctrl-C ignored, and processes inherit that.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            process = subprocess.Popen(
                command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
        finally:
            signal.signal(signal.SIGINT, before)
        connection = _connection_of(server, b"interrupted")
        with connection:
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(65536) == b""


def _connection_of(server: socket.socket, word: bytes) -> socket.socket:
    """Return the first connection on which a message with a word has come.

    Clients of other tests may still try to reach what had this port before.
    """
    server.settimeout(60)
    while True:
        connection, _ = server.accept()
        connection.settimeout(60)
        with contextlib.suppress(ConnectionResetError):
            if word in connection.recv(65536):
                return connection
        connection.close()
