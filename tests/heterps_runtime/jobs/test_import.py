"""`spec.model.initFrom`: a job begins with the values of another one, on any plan, and again after a failure."""

from __future__ import annotations

import re
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from heterps_runtime.config import RunConfig
from heterps_runtime.contract import FINAL_PHASES, PATH_STOP, JobPhase
from tests.heterps_runtime.helpers.jobs import (
    PATIENCE_SECONDS,
    Stage,
    ThreadedJob,
    configuration,
    finish,
    run_job,
    trained_model,
)
from tests.heterps_runtime.helpers.plain_torch import Again, train
from tests.same_model import assert_same_model

pytestmark = pytest.mark.slow

SLOW = "0.000000000001"  # a learning rate with which a step changes nothing that a test sees
LAST = {"flights": 10, "normed_picture": 8}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("import")


def trained(folder: Path, model: str) -> tuple[str, dict[str, Any]]:
    """The checkpoints and the model of a job; it runs once."""
    document = configuration(folder / f"first-{model}", model, steps=24)
    checkpoints = Path(document["workDirectory"]) / "checkpoints"
    status = run_job(document, [("cpu", LAST[model], 2)], 2) if not checkpoints.exists() else None
    if status is not None:
        MODELS[model] = trained_model(status)
    return str(checkpoints), MODELS[model]


MODELS: dict[str, dict[str, Any]] = {}


def begun_with(path: str, name: str, folder: Path, model: str, **training: Any) -> dict[str, Any]:
    """A job that begins with another one's values, and that learns nothing."""
    optimizers = {"dense": {"name": "adam", "learningRate": SLOW}, "sparse": {"name": "adam", "learningRate": SLOW}}
    document = configuration(folder / name, model, **{"optimizer": optimizers, "steps": 2, **training})
    document["job"]["spec"]["model"]["initFrom"] = {"path": path}
    return document


@pytest.mark.parametrize(
    ("model", "stages", "servers"),
    [
        ("flights", [("cpu", 10, 1)], 3),
        ("flights", [("cpu", 3, 2), ("card", 10, 2)], 1),
        ("normed_picture", [("cpu", 2, 1), ("card", 8, 1)], 1),
        ("normed_picture", [("cpu", 8, 2)], 2),
    ],
)
def test_a_job_begins_with_the_model_of_another(model: str, stages: list[Stage], servers: int, folder: Path) -> None:
    path, expected = trained(folder, model)
    name = f"{model}-{len(stages)}-{servers}"
    status = run_job(begun_with(path, name, folder, model), stages, servers)
    found = trained_model(status)
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        if "running" not in key and "num_batches" not in key:  # statistics follow the batches of any training
            assert np.allclose(found[key], value, rtol=0, atol=1e-9), key
    if model == "normed_picture":
        batches = {key: int(value) for key, value in found.items() if "num_batches" in key}
        assert set(batches.values()) == {24 + 2}
    said = [event["message"] for event in status["events"] if event["reason"] == "ModelImported"]
    assert said == [f"the model begins with the values of {path}/{Path(said[0]).name}"]


@pytest.mark.parametrize(
    ("model", "optimizer", "before", "after"),
    [
        ("flights", "adam", [("cpu", 10, 2)], [("cpu", 3, 1), ("card", 10, 2)]),
        ("flights", "adagrad", [("cpu", 4, 1), ("card", 10, 1)], [("cpu", 10, 1)]),
    ],
)
def test_a_job_goes_on_with_the_optimizers_of_another(
    model: str,
    optimizer: str,
    before: list[Stage],
    after: list[Stage],
    folder: Path,
) -> None:
    """Two jobs of an epoch, the second with the state of the first, train the model of one job of both."""
    steps = 10  # of an epoch
    optimizers = {kind: {"name": optimizer, "learningRate": "0.01"} for kind in ("dense", "sparse")}
    first = configuration(folder / f"day-1-{optimizer}", model, optimizer=optimizers, steps=steps)
    assert run_job(first, before, 2)["phase"] == JobPhase.SUCCEEDED
    second = configuration(folder / f"day-2-{optimizer}", model, optimizer=optimizers, steps=steps)
    path = str(Path(first["workDirectory"]) / "checkpoints")
    second["job"]["spec"]["model"]["initFrom"] = {"path": path, "optimizerState": "Keep"}
    job = ThreadedJob(second)
    job.start(after, 3, hold_at=5)
    job.credentials.request("POST", PATH_STOP)  # it goes on from a checkpoint of its own
    stopped = job.wait()
    job.close()
    assert stopped["committedSteps"] < steps
    said = [event["message"] for event in stopped["events"] if event["reason"] == "ModelImported"]
    assert [message.partition(", ")[2] for message in said] == [f"with its optimizers' state after {steps} steps"]
    status = finish(ThreadedJob(second), after, 2)
    both = configuration(folder / f"both-{optimizer}", model, optimizer=optimizers, steps=2 * steps)
    expected = train(RunConfig.from_json(both), torch.float64, Again(RunConfig.from_json(both), steps))
    assert_same_model(trained_model(status), expected)


@pytest.mark.parametrize("access", ["Cached", "Streamed"])
def test_a_job_goes_on_with_the_days_that_were_added_to_a_folder(access: str, folder: Path) -> None:
    """It trains what a job trains whose folder has these days only."""
    work = folder / f"days-{access}"
    like = configuration(work / "first", epochs=2, steps=None)
    days = pq.read_table(like["job"]["spec"]["data"]["train"])

    def add(place: str, *numbers: int) -> None:
        for number in numbers:
            (work / place / f"day={number}").mkdir(parents=True)
            pq.write_table(days.slice(60 * number, 60), work / place / f"day={number}" / "part-0.parquet")

    def run(name: str, place: str, begin: dict[str, str], **bounds: str) -> dict[str, Any]:
        document = configuration(work / name, epochs=2, steps=None)
        document["job"]["spec"]["data"] |= {"train": str(work / place), "access": access, "windowRows": 50, **bounds}
        document["job"]["spec"]["model"] |= {"initFrom": begin} if begin else {}
        status = run_job(document, [("cpu", 10, 2)], 2)
        assert status["numRows"] == 120
        return trained_model(status)

    add("all", 0, 1)
    first = run("first", "all", {}, trainThrough="day=1")
    add("all", 2, 3, 4)
    again = run("first", "all", {}, trainThrough="day=1")  # it has ended, and its files are the same
    add("new", 2, 3)
    begin = {"path": str(work / "first" / "checkpoints"), "optimizerState": "Keep"}
    later = run("later", "all", begin, trainAfter="day=1", trainThrough="day=3")
    expected = run("expected", "new", begin)
    for name, value in expected.items():
        assert np.array_equal(later[name], value), name
        assert np.array_equal(first[name], again[name]), name
    assert not all(np.array_equal(first[name], value) for name, value in expected.items())


def test_the_state_of_other_optimizers_is_refused_by_the_field(folder: Path) -> None:
    path, _ = trained(folder, "flights")
    document = begun_with(path, "other-optimizers", folder, "flights")
    document["job"]["spec"]["model"]["initFrom"]["optimizerState"] = "Keep"
    status = finish(ThreadedJob(document), [("cpu", 10, 1)], 1)
    assert status["error"]["reason"] == "ImportedModelError"
    message = status["error"]["message"]
    assert message.startswith("model.initFrom.optimizerState: Keep needs the optimizers of step-000000024.")
    assert "in which training.optimizer.sparse is " in message
    assert message.endswith("but it is adam in this job; use Reset, or the same optimizer")


def test_a_job_that_has_checkpoints_goes_on_from_its_own(folder: Path) -> None:
    path, _ = trained(folder, "flights")
    document = begun_with(path, "resumed", folder, "flights", steps=10**6)
    stages: list[Stage] = [("cpu", 10, 1)]
    job = ThreadedJob(document)
    job.start(stages, 1, hold_at=3)
    job.credentials.request("POST", PATH_STOP)
    stopped = job.wait()
    job.close()
    document["job"]["spec"]["training"]["steps"] = stopped["committedSteps"] + 2
    status = finish(ThreadedJob(document), stages, 1)
    assert status["resumedFromStep"] == stopped["committedSteps"]
    assert not [event for event in status["events"] if event["reason"] == "ModelImported"]


def test_a_model_of_another_shape_is_refused_by_name(folder: Path) -> None:
    path, _ = trained(folder, "flights")
    document = begun_with(path, "dim", folder, "flights")
    document["job"]["spec"]["model"]["arguments"] = {"dim": 5}
    with pytest.raises(AssertionError, match=r"table 'embeddings.carrier.weight' has embedding_dim 4 in .*, but 5 in"):
        run_job(document, [("cpu", 10, 1)], 1)
    model = str(Path(path).parent / "model")
    document = begun_with(model, "dim-of-model", folder, "flights")
    document["job"]["spec"]["model"]["arguments"] = {"dim": 5}
    with pytest.raises(
        AssertionError, match=f"table 'embeddings.carrier.weight' has embedding_dim 4 in {model}, but 5 in"
    ):
        run_job(document, [("cpu", 10, 1)], 1)
    document = begun_with(path, "hidden", folder, "flights")
    document["job"]["spec"]["model"]["arguments"] = {"hidden": [16, 9]}
    with pytest.raises(AssertionError, match=r"'head.weight' has the shape \[1, 8\] in .*, but \[1, 9\] in this"):
        run_job(document, [("card", 10, 1)], 1)


def test_what_a_server_finds_wrong_ends_the_job_at_once(folder: Path) -> None:
    path, _ = trained(folder, "flights")
    document = begun_with(path, "at-once", folder, "flights")
    document["job"]["spec"]["model"]["arguments"] = {"dim": 5}
    job = ThreadedJob(document)
    job.start([("cpu", 10, 1)], 1)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (status := job.status())["phase"] not in FINAL_PHASES:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    job.close()
    assert status["error"]["reason"] == "ImportedModelError"  # otherwise it would hang, and be ended for that
    assert status["error"]["message"].startswith("ps-0: model.initFrom.path: table 'embeddings.carrier.weight'")


@pytest.mark.parametrize(
    ("model", "stages", "servers"),
    [("flights", [("cpu", 3, 2), ("card", 10, 2)], 2), ("normed_picture", [("cpu", 2, 1), ("card", 8, 1)], 1)],
)
def test_an_exported_model_and_the_checkpoint_that_it_is_of_begin_the_same_job(
    model: str, stages: list[Stage], servers: int, folder: Path
) -> None:
    """With the same initial values of rows that were never trained, too, whose seed is another one in this job."""
    path, expected = trained(folder, model)
    found = []
    for source in (path, str(Path(path).parent / "model")):
        document = begun_with(source, f"{model}-of-{Path(source).name}", folder, model)
        document["job"]["spec"]["training"]["seed"] = 99
        status = run_job(document, stages, servers)
        found.append(trained_model(status))
    assert found[0].keys() == found[1].keys() == expected.keys()
    for name, value in found[0].items():
        assert np.array_equal(value, found[1][name]), name
        if not any(word in name for word in ("embeddings", "running", "num_batches")):
            assert np.allclose(value, expected[name], rtol=0, atol=1e-9), name
    said = [event["message"] for event in status["events"] if event["reason"] == "ModelImported"]
    assert said == [f"the model begins with the values of {source}"]


@pytest.mark.parametrize("harm", ["keep", "change"])
def test_an_exported_model_that_cannot_be_used_is_refused_by_the_field(harm: str, folder: Path) -> None:
    path, _ = trained(folder, "flights")
    model = shutil.copytree(Path(path).parent / "model", folder / f"model-{harm}")
    document = begun_with(str(model), f"refused-{harm}", folder, "flights")
    if harm == "keep":
        document["job"]["spec"]["model"]["initFrom"]["optimizerState"] = "Keep"
        expected = (
            "model.initFrom.optimizerState: Keep needs checkpoints, but .* is an exported model, .*; use Reset, or"
        )
    else:
        (model / "README.md").write_text("another text")
        expected = "model.initFrom.path: .* cannot be used: .*README.md differs from what model.json says; export it"
    status = finish(ThreadedJob(document), [("cpu", 10, 1)], 1)
    assert status["error"]["reason"] == "ImportedModelError"
    assert re.search(expected, status["error"]["message"]), status["error"]["message"]


def test_a_path_without_checkpoints_is_refused(folder: Path) -> None:
    (folder / "empty").mkdir()
    document = begun_with(str(folder / "empty"), "from-nothing", folder, "flights")
    status = finish(ThreadedJob(document), [("cpu", 10, 1)], 1)
    assert status["phase"] == JobPhase.FAILED
    assert status["error"]["reason"] == "ImportedModelError"
    assert "model.initFrom.path: " in status["error"]["message"]
    assert (
        "has no valid checkpoint and no exported model; name the checkpoint.path of a job" in status["error"]["message"]
    )
    assert RunConfig.from_json(document).init_from == str(folder / "empty")
