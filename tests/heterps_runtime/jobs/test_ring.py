"""Stages on CPU pools whose workers all-reduce: the model is that of plain PyTorch, whatever happens to the members."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch

from heterps_runtime.config import RunConfig
from heterps_runtime.wire.messages import Commit
from heterps_runtime.worker.exchange import replica
from heterps_runtime.worker.steps.delivery import Delivery
from heterps_runtime.worker.steps.runs import StepRun
from tests.counting import assert_every_sample_counted
from tests.heterps_runtime.helpers import small_buckets
from tests.heterps_runtime.helpers.jobs import (
    RING,
    Stage,
    ThreadedJob,
    configuration,
    counting_configuration,
    run_job,
    trained_model,
)
from tests.heterps_runtime.helpers.plain_torch import train
from tests.same_model import assert_same_model

LAST = 10  # layer of models.Flights
PROGRAM = ("tests.heterps_runtime.helpers.small_buckets",)


@pytest.fixture(autouse=True)
def buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica, "BUCKET_BYTES", small_buckets.BYTES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ring")


PLANS: list[tuple[list[Stage], int]] = [
    ([(RING, LAST, 1)], 1),
    ([(RING, LAST, 2)], 1),
    ([(RING, LAST, 3)], 2),
    ([("cpu", 4, 2), (RING, LAST, 2)], 1),
    ([(RING, 6, 3), ("card", 8, 1), (RING, LAST, 2)], 1),
]


@pytest.mark.parametrize(("stages", "servers"), PLANS)
def test_workers_of_cpu_stages_that_all_reduce_train_the_model_of_one_pytorch_process(
    stages: list[Stage], servers: int, folder: Path
) -> None:
    document = configuration(folder / f"plan-{PLANS.index((stages, servers))}", microBatches=3)
    status = run_job(document, stages, servers)
    assert_same_model(trained_model(status), train(RunConfig.from_json(document), torch.float64))


@pytest.mark.parametrize(
    "stages", [[(RING, LAST, 2)], [("cpu", 4, 2), (RING, LAST, 2)], [("cpu", 4, 2), ("cpu", LAST, 1)]]
)
def test_what_a_step_holds_is_freed_at_its_commit(
    stages: list[Stage], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients of all steps would fill the memory before a garbage collection, which may not see them at all."""
    steps: list[weakref.ref[StepRun]] = []
    commit = Delivery.commit

    def committed(delivery: Delivery, order: Commit) -> None:
        steps.append(weakref.ref(delivery._runs[order.step]))
        commit(delivery, order)

    monkeypatch.setattr(Delivery, "commit", committed)
    gc.collect()
    gc.disable()
    try:
        run_job(configuration(folder / f"freed-{len(stages)}-{stages[-1][0]}", microBatches=3), stages, 1)
        alive = sum(step() is not None for step in steps)
    finally:
        gc.enable()
    assert len(steps) > 30
    assert alive <= 2 * sum(number for *_, number in stages), "each worker may hold its last steps"


def test_a_run_in_sync_repeats_to_the_bit(folder: Path) -> None:
    one, two = (
        trained_model(run_job(configuration(folder / f"repeated-{i}", precision="fp32"), [(RING, LAST, 3)], 1))
        for i in range(2)
    )
    assert one.keys() == two.keys()
    assert all(np.array_equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("consistency", ["sync", "hybrid", "async"])
def test_each_sample_counts_once_in_every_mode(consistency: str, folder: Path) -> None:
    document = counting_configuration(folder / f"count-{consistency}", consistency, steps=35)
    status = run_job(document, [(RING, 2, 3)], 1)
    assert_every_sample_counted(trained_model(status), batch=32, seed=3, steps=35)


STEPS = 60
VICTIMS: list[tuple[str, list[Stage]]] = [
    ("worker-0-0", [(RING, LAST, 2)]),  # that holds the rendezvous of the group
    ("worker-0-2", [(RING, LAST, 3)]),
    ("worker-0-0", [(RING, LAST, 1)]),  # the last replica takes the dense parameters along
    ("ps-0", [(RING, LAST, 2)]),
]


@pytest.mark.slow
@pytest.mark.parametrize(("victim", "stages"), VICTIMS)
def test_a_killed_member_changes_nothing_in_the_model(victim: str, stages: list[Stage], folder: Path) -> None:
    document = configuration(folder / f"killed-{VICTIMS.index((victim, stages))}", steps=STEPS)
    job = ThreadedJob(document)
    process = job.start(stages, 1, as_process=victim, program=PROGRAM, hold_at=15)
    assert process is not None
    job.kill(process, victim)
    job.hold()
    if victim.startswith("ps") or stages[0][2] == 1:
        job.start_member(victim, stages)
    status = job.wait()
    job.close()
    assert not job.failures, "\n".join(job.failures)
    assert [e["message"].split(":")[0] for e in status["events"] if e["reason"] == "MemberLost"] == [victim]
    assert_same_model(trained_model(status), train(RunConfig.from_json(document), torch.float64))
