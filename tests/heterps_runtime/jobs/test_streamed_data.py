"""Jobs whose data is read while they train: any plan trains the model that plain PyTorch trains on the same order."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from heterps_runtime.config import RunConfig
from heterps_runtime.contract import PATH_STOP, JobPhase
from tests.counting import assert_every_sample_counted, counting_columns
from tests.heterps_runtime.helpers.jobs import (
    MODELS,
    PATIENCE_SECONDS,
    Stage,
    ThreadedJob,
    configuration,
    counting_configuration,
    finish,
    run_job,
    trained_model,
)
from tests.heterps_runtime.helpers.plain_torch import train
from tests.same_model import assert_same_model

ROWS, WINDOW = 300, 110
PART = 12  # rows of a file, which is a block
COUNTED, BATCH, STEPS = 320, 32, 60  # six epochs


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("streamed")


def write_parts(folder: Path, columns: dict[str, Any], rows_per_file: int = PART) -> str:
    """A data set of many files; returns its folder."""
    table = pa.table(columns)
    folder.mkdir(parents=True, exist_ok=True)
    for part, start in enumerate(range(0, table.num_rows, rows_per_file)):
        pq.write_table(table.slice(start, rows_per_file), folder / f"part-{part:03}.parquet")
    return str(folder)


def streamed(document: dict[str, Any], train: str) -> dict[str, Any]:
    """The job with streamed data."""
    data = document["job"]["spec"]["data"]
    data |= {"train": train, "access": "Streamed", "windowRows": WINDOW}
    if "evaluation" in data:
        data["evaluation"] = train
    return document


CASES: list[tuple[str, list[Stage], int]] = [
    ("flights", [("cpu", 10, 3)], 2),
    ("two_tower", [("cpu", 3, 2), ("card", 9, 2)], 1),
    ("picture", [("card", 8, 2)], 1),
]


@pytest.mark.parametrize(("model", "stages", "servers"), CASES)
def test_any_plan_trains_the_model_of_one_pytorch_process(
    model: str, stages: list[Stage], servers: int, folder: Path
) -> None:
    document = configuration(folder / model, model, ROWS, steps=24)
    streamed(document, write_parts(folder / f"parts-{model}", MODELS[model][0](ROWS)))
    status = run_job(document, stages, servers)
    assert status["evaluation"]["samples"] == ROWS
    assert_same_model(trained_model(status), train(RunConfig.from_json(document), torch.float64))


@pytest.mark.slow
@pytest.mark.parametrize("consistency", ["sync", "async"])
def test_every_sample_counts_once_although_a_worker_dies(consistency: str, folder: Path) -> None:
    stages: list[Stage] = [("cpu", 0, 2), ("cpu", 2, 1)]
    document = counting_configuration(folder / f"dying-{consistency}", consistency, COUNTED, BATCH, steps=STEPS)
    streamed(document, write_parts(folder / "parts-counting", counting_columns(COUNTED)))
    job = ThreadedJob(document)
    victim, point = "worker-0-1", "a worker is about to push"
    process = job.start(stages, 2, as_process=victim, program=("tests.heterps_runtime.helpers.dying", point, "24"))
    assert process is not None
    assert process.wait(timeout=PATIENCE_SECONDS) == -signal.SIGKILL
    job.kill(process, victim)
    status = job.wait()
    job.close()
    assert not job.failures, "\n".join(job.failures)
    assert_every_sample_counted(trained_model(status), BATCH, seed=3, steps=STEPS)


def test_files_that_were_cut_anew_since_the_checkpoint_are_refused(folder: Path) -> None:
    """The order depends on the blocks, so as many rows in other files are other data."""
    columns = MODELS["flights"][0](ROWS)
    document = streamed(configuration(folder / "cut", steps=60), write_parts(folder / "cut-in-12", columns))
    stages: list[Stage] = [("cpu", 10, 1)]
    job = ThreadedJob(document)
    job.start(stages, 1)
    job.wait(lambda status: status["checkpoint"]["lastStep"] is not None)
    job.credentials.request("POST", PATH_STOP)
    job.wait()
    job.close()
    document["job"]["spec"]["data"]["train"] = write_parts(folder / "cut-in-15", columns, 15)
    status = finish(ThreadedJob(document), stages, 1)
    assert status["phase"] == JobPhase.FAILED
    assert status["error"]["reason"] == "DataChanged"
    assert (
        "row groups according to the checkpoint are others than according to worker-0-0" in status["error"]["message"]
    )


def test_a_bad_label_found_late_is_named_by_its_file(folder: Path) -> None:
    columns = MODELS["picture"][0](90)
    columns["late"][40] = 3  # the model has three classes
    document = configuration(folder / "labels", "picture", 90, steps=12)
    streamed(document, write_parts(folder / "parts-labels", columns))
    with pytest.raises(AssertionError) as caught:  # the job fails
        run_job(document, [("cpu", 8, 1)], 1)
    assert re.search(r"spec.data.label: is 3 in row 5 of \S*part-003.parquet of the training data", str(caught.value))
