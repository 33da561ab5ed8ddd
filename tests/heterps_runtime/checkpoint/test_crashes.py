"""A crash at any change of the disk leaves the newest complete checkpoint, and a whole model."""

from __future__ import annotations

import json
import shutil
import zlib
from pathlib import Path
from typing import Any

import pytest

from heterps_runtime.checkpoint import Storage, commit, export_model, find_latest, new_folder, publishing, take_over
from tests.heterps_runtime.helpers.checkpoint_samples import (
    Array,
    all_rows,
    collect,
    make_manifest,
    random_groups,
    write_state,
)
from tests.heterps_runtime.helpers.crashes import Crash, CrashingStorage, Disk

pytestmark = pytest.mark.slow


def initial_rows(table: Any, ids: Array) -> Array:
    return (ids[:, None] + [0.0] * table.dim).astype(table.dtype)


def train(work: Path) -> None:
    """A run of a job: take over, go on from the newest checkpoint, write one, export its model."""
    opened = Storage.open(work / "checkpoints")
    storage = CrashingStorage(opened._filesystem, opened.address, opened.address)
    owner = take_over(storage, "job", 0.0)
    latest, _ = find_latest(storage)
    step = 10 + (latest.step if latest else 0)
    folder = new_folder(step, owner.term)
    files = write_state(storage, folder, step, shards=1)
    manifest = make_manifest(step, folder, files, owner.term)
    commit(storage, manifest, 1, owner)
    export_model(storage, manifest, work / "model", owner=owner, initial_rows=initial_rows)


def step_of_the_newest_checkpoint(work: Path) -> int:
    """Read it whole."""
    storage = Storage.open(work / "checkpoints")
    latest, _ = find_latest(storage)
    assert latest is not None
    [rows] = collect(storage, latest, shards=1)
    assert rows == all_rows(random_groups(latest.step))
    return latest.step


def step_of_the_model(model: Path) -> int:
    """Compare all files with their checksums."""
    document = json.loads((model / "model.json").read_text())
    found = {path.relative_to(model).as_posix(): path.read_bytes() for path in model.rglob("*") if path.is_file()}
    del found["model.json"]
    assert {f["name"]: (f["bytes"], f["checksum"]) for f in document["files"]} == {
        name: (len(contents), f"crc32:{zlib.crc32(contents):08x}") for name, contents in found.items()
    }
    step: int = document["step"]
    return step


@pytest.mark.parametrize("exchanges", [True, False], ids=["names can be exchanged", "names cannot be exchanged"])
def test_a_crash_at_any_change_of_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchanges: bool) -> None:
    if not exchanges:
        monkeypatch.setattr(publishing, "_exchange", lambda first, second: False)
    before = tmp_path / "before"
    train(before)
    changes, steps = 0, []
    while True:
        work = tmp_path / f"crash-{changes}"
        shutil.copytree(before, work)
        with monkeypatch.context() as patch:
            disk = Disk(changes)
            disk.attach(patch)
            try:
                train(work)
            except Crash:
                crashed = True
            else:
                crashed = False
        steps.append((step_of_the_newest_checkpoint(work), model_after_a_crash(work, exchanges)))
        train(work)  # the next run puts everything in order
        newest = steps[-1][0] + 10
        assert step_of_the_newest_checkpoint(work) == step_of_the_model(work / "model") == newest
        assert sorted(path.name for path in work.iterdir()) == ["checkpoints", "model"]
        assert len(Storage.open(work / "checkpoints").folders()) == 2, "its owners, and one checkpoint"
        shutil.rmtree(work)
        if not crashed:
            break
        changes += 1
    assert steps == sorted(steps)
    assert set(steps) == {(10, 10), (20, 10), (20, 20)}
    assert changes > 50


def model_after_a_crash(work: Path, exchanges: bool) -> int:
    """The step of the model at its place, or aside where names cannot be exchanged."""
    model, aside = work / "model", work / ".model.replaced"
    assert model.exists() or not exchanges
    return step_of_the_model(model if model.exists() else aside)
