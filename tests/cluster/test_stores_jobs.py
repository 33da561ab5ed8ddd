"""Whole jobs with data, checkpoints and model in a store: they end with the model of the same job on local disks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load

from heterps_runtime.contract import JobPhase
from heterps_runtime.storage import PARTIAL
from tests.cluster.stores import KINDS, Place, open_place
from tests.heterps_runtime.helpers.jobs import Stage, ThreadedJob, configuration, run_job, trained_model

ONE: list[Stage] = [("cpu", 10, 1)]  # all layers of models.Flights
STEPS = 80  # with a checkpoint every ten


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The model of the job on local disks."""
    document = configuration(tmp_path_factory.mktemp("local") / "job", steps=STEPS)
    return trained_model(run_job(document, ONE, 1))


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    folder = tmp_path / "store"
    folder.mkdir()
    with open_place(request.param, folder, monkeypatch) as running:
        yield running


def test_a_job_in_a_store_goes_on_from_its_checkpoint_and_ends_with_the_same_model(
    place: Place, tmp_path: Path, expected: dict[str, Any]
) -> None:
    document = configuration(tmp_path / "job", steps=STEPS)
    spec = document["job"]["spec"]
    for split in ("train", "evaluation"):
        [file] = Path(spec["data"][split]).iterdir()
        place.storage(f"data/{split}").write_atomic(file.name, file.read_bytes())
        spec["data"][split] = place.address(f"data/{split}")
    spec["checkpoint"]["path"] = place.address("runs/one")

    document["modelPath"] = place.address("runs/one/model")

    job = ThreadedJob(document)
    process = job.start(ONE, 1, as_process="ps-0")
    assert process is not None
    job.wait(lambda status: status["checkpoint"]["lastStep"])
    job.kill(process, "ps-0")
    job.start_server(0)
    status = job.wait()
    job.close()
    assert status["phase"] == JobPhase.SUCCEEDED, status["error"]
    assert [event["reason"] for event in status["events"]].count("GenerationFormed") >= 2
    storage = place.storage("runs/one")
    model = load(storage.read("model/model.safetensors"))
    assert model.keys() == expected.keys()
    assert all(np.array_equal(model[name], expected[name]) for name in model)
    assert not [name for name in storage.files() if PARTIAL in name]
