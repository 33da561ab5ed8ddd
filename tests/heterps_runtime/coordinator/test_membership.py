"""Processes are killed while they train; the model that comes out is the one of an undisturbed run.

The process that is killed is a real one, of `python -m heterps_runtime`; the other members are threads of this process,
which saves seconds of imports each. Others of its stage go on without it; the last one of a stage, and a server, get a
successor.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from heterps_planner.balancing import Worker, divide
from heterps_runtime.config import RunConfig
from heterps_runtime.contract import PATH_ALLOCATION
from tests.heterps_runtime.helpers.jobs import Stage, ThreadedJob, configuration, trained_model
from tests.heterps_runtime.helpers.plain_torch import train
from tests.same_model import assert_same_model

STEPS, LAST = 100, 10  # LAST: last layer of models.Flights
WORKERS = [Worker(0.01, 0.002), Worker(0.01, 0.001), Worker(0.01, 0.001)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("membership")


@pytest.fixture(scope="module")
def undisturbed(folder: Path) -> dict[str, Any]:
    """What plain PyTorch trains in one process."""
    return train(RunConfig.from_json(configuration(folder / "reference", steps=STEPS)), torch.float64)


CASES: list[tuple[str, list[Stage], int]] = [
    ("worker-1-0", [("cpu", 4, 1), ("cpu", LAST, 2)], 1),
    ("worker-1-0", [("cpu", 4, 1), ("card", LAST, 2)], 1),  # the first replica also holds the rendezvous of the group
    ("worker-0-0", [("card", LAST, 1)], 1),  # the last replica takes the dense parameters along
    ("ps-1", [("cpu", 4, 1), ("cpu", LAST, 1)], 2),
]


@pytest.mark.slow
@pytest.mark.parametrize(("victim", "stages", "servers"), CASES)
def test_a_killed_process_changes_nothing_in_the_model(
    victim: str, stages: list[Stage], servers: int, folder: Path, undisturbed: dict[str, Any]
) -> None:
    document = configuration(folder / f"{victim}-{CASES.index((victim, stages, servers))}", steps=STEPS)
    job = ThreadedJob(document)
    process = job.start(stages, servers, as_process=victim, hold_at=15)
    assert process is not None
    job.kill(process, victim)
    survivors = job.status()
    assert victim not in [m["name"] for m in survivors["members"] if m["state"] != "absent"]
    job.hold()
    if victim.startswith("ps") or max(workers for _, _, workers in stages) == 1:
        job.start_member(victim, stages)  # a thread will do: the others are idle
    status = job.wait()
    job.close()
    assert not job.failures, "\n".join(job.failures)
    assert [e["message"].split(":")[0] for e in status["events"] if e["reason"] == "MemberLost"] == [victim]
    assert_same_model(trained_model(status), undisturbed)
    assert status["samples"] == 300 * (STEPS // 10)


@pytest.mark.parametrize("stages", [[("cpu", 4, 2), ("cpu", LAST, 2)], [("card", LAST, 3)]])
def test_batch_sizes_may_change_while_training(stages: list[Stage], folder: Path, undisturbed: dict[str, Any]) -> None:
    job = ThreadedJob(configuration(folder / f"batches-{len(stages)}", steps=STEPS))
    job.start(stages, 1, hold_at=15)
    splits = {
        2: [[[1, 31], [32, 0]], [[0, 32], [13, 19]], [[32, 0], [0, 32]]],
        1: [[[0, 31, 1]], [divide("random", WORKERS, 32, seed=4)], [divide("bno", WORKERS, 32)]],
    }
    used = []
    for number, split in enumerate(splits[len(stages)]):
        job.hold_at(15 + 25 * number)
        used.append((job.credentials.request("PUT", PATH_ALLOCATION, {"stages": split})["fromStep"], split))
        job.hold_at(used[-1][0] + 1)
        assert job.status()["allocation"] == split
    job.hold()
    status = job.wait()
    job.close()
    assert not job.failures, "\n".join(job.failures)
    assert used[-1][0] < STEPS
    assert_same_model(trained_model(status), undisturbed)
