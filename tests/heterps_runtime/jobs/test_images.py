"""Jobs without tables: convolutions on images, classes, and buffers that training changes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from heterps_runtime.config import RunConfig
from heterps_runtime.contract import PATH_STOP
from heterps_runtime.partition.allocation import Allocation, micro_batches
from tests.heterps_runtime.helpers.jobs import (
    Stage,
    ThreadedJob,
    configuration,
    picture_columns,
    run_job,
    trained_model,
    write_data,
)
from tests.heterps_runtime.helpers.plain_torch import Pieces, evaluate, real_model, train
from tests.same_model import TOLERANCE, assert_same_model, difference

pytestmark = pytest.mark.slow

LAST = 8  # layer of `models.Picture`
NORMS = ("norm", "inner.1", "last_norm")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("images")


def pieces_of(config: RunConfig, stages: Sequence[Stage]) -> Pieces:
    """The division of a batch that a plan makes."""
    allocation = Allocation.even(config.global_batch_size, [workers for _, _, workers in stages])
    return lambda size: [(m.start, m.stop) for m in micro_batches(allocation, size, config.micro_batches)]


@pytest.mark.parametrize(
    ("name", "stages", "servers"),
    [
        ("servers", [("cpu", LAST, 3)], 2),
        ("replicas", [("card", LAST, 2)], 1),
        ("before an identity", [("cpu", 0, 2), ("cpu", LAST, 1)], 1),
        ("between convolutions", [("cpu", 2, 2), ("card", 4, 2), ("cpu", LAST, 1)], 2),
    ],
)
def test_any_plan_trains_the_cnn_that_one_pytorch_process_trains(
    name: str, stages: list[Stage], servers: int, folder: Path
) -> None:
    document = configuration(folder / name, "picture", rows=90, steps=12)
    status = run_job(document, stages, servers)
    assert_same_model(trained_model(status), train(RunConfig.from_json(document), torch.float64))


@pytest.mark.parametrize("pool", ["cpu", "card"])
def test_batches_in_one_piece_give_the_statistics_of_plain_pytorch(pool: str, folder: Path) -> None:
    document = configuration(folder / f"whole-{pool}", "normed_picture", rows=90, steps=12)
    trained = trained_model(run_job(document, [(pool, LAST, 1)], 1))
    expected = train(RunConfig.from_json(document), torch.float64)
    assert_same_model(trained, expected)
    assert [int(trained[f"{name}.num_batches_tracked"]) for name in NORMS] == [12, 12, 12]


@pytest.mark.parametrize(
    ("name", "stages", "servers"),
    [
        ("normed servers", [("cpu", LAST, 3)], 2),
        ("normed replicas", [("card", LAST, 2)], 1),
        ("normed ring", [("ring", LAST, 2)], 1),
        ("normed pipeline", [("cpu", 2, 2), ("card", 4, 1), ("cpu", LAST, 2)], 2),
    ],
)
def test_statistics_are_means_over_the_pieces_of_a_batch(
    name: str, stages: list[Stage], servers: int, folder: Path
) -> None:
    document = configuration(folder / name, "normed_picture", rows=90, steps=12)
    status = run_job(document, stages, servers)
    config = RunConfig.from_json(document)
    trained = trained_model(status)
    assert_same_model(trained, train(config, torch.float64, pieces=pieces_of(config, stages)))
    # The division matters, so the comparison has seen it.
    whole = train(config, torch.float64)
    assert difference(trained["norm.running_var"], whole["norm.running_var"]) > 1e6 * TOLERANCE
    # Evaluation has used the statistics of the exported model.
    expected = evaluate(config, {n: v.astype(np.float32) if v.dtype == np.float64 else v for n, v in trained.items()})
    found = status["evaluation"]
    assert (found["samples"], found["accuracy"]) == (90, expected["accuracy"])
    assert found["crossEntropy"] == pytest.approx(expected["crossEntropy"], rel=1e-4)


@pytest.mark.parametrize(("first", "second"), [("cpu", "card"), ("card", "cpu")])
def test_a_checkpoint_keeps_the_statistics(first: str, second: str, folder: Path) -> None:
    work = folder / f"resumed-from-{first}"
    stages: dict[str, list[Stage]] = {pool: [(pool, 3, 2), (pool, LAST, 1)] for pool in (first, second)}
    run_job(configuration(work, "normed_picture", rows=90, steps=7), stages[first], 2)
    document = configuration(work, "normed_picture", rows=90, steps=12)
    status = run_job(document, stages[second], 1)
    assert status["resumedFromStep"] == 7
    config = RunConfig.from_json(document)
    expected = train(config, torch.float64, pieces=pieces_of(config, stages[first]))
    assert_same_model(trained_model(status), expected)


def test_a_worker_that_dies_and_its_successor_count_no_batch_twice(folder: Path) -> None:
    document = configuration(folder / "dying", "normed_picture", rows=90, steps=40)
    stages: list[Stage] = [("card", LAST, 2)]  # whose workers hold the statistics
    job = ThreadedJob(document)
    process = job.start(stages, 1, as_process="worker-0-1", hold_at=5)
    assert process is not None
    try:
        job.kill(process, "worker-0-1")
        job.start_process("worker-0-1", stages)
        job.wait_for_member("worker-0-1")  # or training is over before it takes part
        job.hold()
        trained = trained_model(job.wait())
    finally:
        job.close()
    assert [int(trained[f"{name}.num_batches_tracked"]) for name in NORMS] == [40, 40, 40]


@pytest.mark.parametrize("split", ["training", "evaluation"])
def test_a_label_without_a_logit_is_named_with_its_row(split: str, folder: Path) -> None:
    document = configuration(folder / f"labels-{split}", "picture", rows=90, steps=3)
    columns = picture_columns(90)
    columns["late"][41] = 3
    field = "train" if split == "training" else "evaluation"
    document["job"]["spec"]["data"][field] = write_data(folder / f"wrong-{split}", columns)
    with pytest.raises(AssertionError) as caught:  # the job fails
        run_job(document, [("cpu", 3, 2), ("cpu", LAST, 1)], 1)
    text = f"spec.data.label: is 3 in row 42 of the {split} data, but the model's logits have 3 classes (0 to 2)"
    assert text in str(caught.value)


def test_a_rest_that_is_too_small_for_batch_normalisation_is_explained(folder: Path) -> None:
    document = configuration(folder / "rest", "normed_picture", rows=65, steps=3)  # batches of 32, 32 and 1
    with pytest.raises(
        AssertionError, match=r"training.globalBatchSize: a worker's part of step 2 has 1 sample, too few"
    ):
        run_job(document, [("cpu", LAST, 1)], 1)


def test_workers_say_what_a_sample_costs_and_how_far_the_servers_are(folder: Path) -> None:
    document = configuration(folder / "meters", "picture", rows=90, steps=1_000_000)
    job = ThreadedJob(document)
    job.start([("cpu", LAST, 2)], 2)
    try:
        status = job.wait(lambda s: sum("round-trip" in member.get("totals", ()) for member in s["members"]) == 2)
        job.credentials.request("POST", PATH_STOP)
        job.wait()
    finally:
        job.close()
    workers = [member["totals"] for member in status["members"] if member["role"] == "worker"]
    module, _ = real_model(job.config, torch.float64)
    with FlopCounterMode(display=False) as reference:
        module(torch.ones(1, 2, 5, 5, dtype=torch.float64)).sum().backward()
    assert [totals["operations"] for totals in workers] == [reference.get_total_flops()] * 2
    assert all(totals["round-trip"] > 0 and totals["memory"] > 0 for totals in workers)
