"""Models of the checkpoints of a job that is training, and deltas from each to the next."""

from __future__ import annotations

import json
from argparse import Namespace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from heterps_runtime.checkpoint import Storage, export_model, read_manifest
from heterps_runtime.checkpoint.delta import TableDelta, write_delta
from heterps_runtime.checkpoint.exported import ExportedModel
from heterps_runtime.checkpoint.manifest import checkpoint_folders
from heterps_runtime.checkpoint.patching import Delta, apply_delta
from heterps_runtime.checkpoint.survey import named
from heterps_runtime.config import RunConfig
from heterps_runtime.contract import PATH_STOP
from heterps_runtime.exporting import initial_values
from heterps_runtime.model_tool import run_tool
from heterps_runtime.ps import shard
from tests.heterps_runtime.helpers.jobs import ThreadedJob, configuration, finish

pytestmark = pytest.mark.slow

LAST = 10  # last layer of models.Flights


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A job whose rows go, with increments; one of its checkpoints is exported while it trains."""
    work = tmp_path_factory.mktemp("deltas")
    document = configuration(work, rows=4000, steps=10**6)
    document["job"]["spec"]["checkpoint"] |= {"everySteps": 10, "increments": "Enabled", "keep": 1000}
    document["job"]["spec"]["model"]["tables"] = [{"name": "*", "eviction": {"unusedSteps": 5}}]
    config = RunConfig.from_json(document)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shard, "builds_on", lambda *_: True)
        running = ThreadedJob(document)
        running.start([("cpu", 4, 2), ("cpu", LAST, 1)], 3)
        running.wait(lambda status: (status["checkpoint"]["lastStep"] or 0) >= 20)
        options = Namespace(action="export", address=config.checkpoint_path, checkpoint="20", to=str(work / "early"))
        assert run_tool(options) == 0
        running.credentials.request("POST", PATH_STOP)
        stopped = running.wait()
        running.close()
        assert not running.failures, "\n".join(running.failures)
        document["job"]["spec"]["training"]["steps"] = stopped["committedSteps"] + 10
        status = finish(ThreadedJob(document), [("cpu", LAST, 1)], 2)
    return {"checkpoints": config.checkpoint_path, "model": Path(status["model"]), "early": work / "early"}


def contents(folder: Path) -> dict[str, bytes]:
    """All files, without the figures of the evaluation."""
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    description = json.loads(files.pop("model.json"))
    description["metrics"] = {}
    return files | {"model.json": json.dumps(description).encode()}


@pytest.mark.parametrize("whole", [True, False], ids=["whole tables", "ids and rows"])
def test_deltas_from_one_checkpoint_to_the_next_make_the_model_of_the_job(
    job: dict[str, Any], tmp_path: Path, whole: bool
) -> None:
    storage = Storage.open(job["checkpoints"])
    manifests = [read_manifest(storage, folder) for folder in checkpoint_folders(storage)[3::-1]]  # the newest four
    assert manifests[-1].term > manifests[0].term, "they are of two runs"
    models = []
    for manifest in manifests:
        draw = initial_values(manifest.seed)
        limit = 1 << 30 if whole else 0
        output = tmp_path / str(manifest.step)
        export_model(storage, manifest, output, owner=None, initial_rows=draw, dense_limit_bytes=limit)
        models.append(output)
    changes: list[TableDelta] = []
    for before, after in pairwise(models):
        delta = tmp_path / f"delta-{after.name}"
        opened = [ExportedModel(Storage.open(folder)) for folder in (before, after)]
        changes += write_delta(opened[0], opened[1], Storage.open(delta))[0]
    for after in models[1:]:
        older = ExportedModel(Storage.open(models[0]))
        assert apply_delta(older, Delta(Storage.open(tmp_path / f"delta-{after.name}")))
        assert contents(models[0]) == contents(after)
    assert sum(change.rows for change in changes) > 100
    assert (sum(change.gone for change in changes) > 10) == (not whole)
    if whole:
        assert contents(models[0]) == contents(job["model"])


def test_a_checkpoint_is_exported_while_the_job_trains(job: dict[str, Any], tmp_path: Path) -> None:
    storage = Storage.open(job["checkpoints"])
    manifest = read_manifest(storage, named(storage, "20"))
    export_model(storage, manifest, tmp_path / "later", owner=None, initial_rows=initial_values(manifest.seed))
    assert contents(job["early"]) == contents(tmp_path / "later")
