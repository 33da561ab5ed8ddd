"""A process dies at one point of a step, and each sample is still applied once per epoch, in every consistency.

The process kills itself at the point (`dying.py`), so that every half-done state is met on purpose; the other members
are threads of this process. What was applied how often is counted in the model that comes out (`tests/counting.py`):
no figure of the job itself is trusted.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.counting import assert_every_sample_counted
from tests.heterps_runtime.helpers.dying import POINTS
from tests.heterps_runtime.helpers.jobs import (
    PATIENCE_SECONDS,
    Stage,
    ThreadedJob,
    counting_configuration,
    trained_model,
)

SAMPLES, BATCH, EVERY = 320, 32, 10  # EVERY: steps of an epoch, and between checkpoints
STEPS = 6 * EVERY
STEP = 24  # at which it dies; the checkpoint before is of step 20

ROWS: list[Stage] = [("cpu", 0, 2), ("cpu", 2, 1)]  # the servers hold all parameters
REPLICAS: list[Stage] = [("cpu", 0, 1), ("card", 2, 2)]  # the second stage all-reduces
LAST_REPLICA: list[Stage] = [("card", 2, 1)]
CASES: list[tuple[str, str, list[Stage], str]] = [
    ("a worker has begun to compute", "worker-0-1", ROWS, "async"),
    ("a worker is about to push", "worker-0-1", ROWS, "hybrid"),
    ("a worker's push has arrived", "worker-0-1", ROWS, "sync"),
    ("a worker hears of a commit", "worker-1-0", REPLICAS, "async"),
    ("a worker has made a commit", "worker-0-0", LAST_REPLICA, "hybrid"),
    ("a server has a push", "ps-1", ROWS, "hybrid"),
    ("a server hears of a commit", "ps-0", REPLICAS, "async"),
    ("a server is in a commit", "ps-1", ROWS, "sync"),
    ("a server has made a commit", "ps-0", ROWS, "hybrid"),
    ("a server saves a checkpoint", "ps-1", REPLICAS, "hybrid"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("deaths")


@pytest.mark.slow
@pytest.mark.parametrize(("point", "victim", "stages", "consistency"), CASES)
def test_every_sample_counts_once_wherever_a_process_dies(
    point: str, victim: str, stages: list[Stage], consistency: str, folder: Path
) -> None:
    work = folder / str(CASES.index((point, victim, stages, consistency)))
    step = STEP if "checkpoint" not in point else 2 * EVERY
    document = counting_configuration(work, consistency, SAMPLES, BATCH, steps=STEPS)
    job = ThreadedJob(document)
    process = job.start(stages, 2, as_process=victim, program=("tests.heterps_runtime.helpers.dying", point, str(step)))
    assert process is not None
    assert process.wait(timeout=PATIENCE_SECONDS) == -signal.SIGKILL
    job.kill(process, victim)  # it is dead; now the coordinator is told
    role, number, *_ = victim.split("-")
    if role == "ps" or stages[int(number)][2] == 1:
        job.start_member(victim, stages)  # a thread will do: the others are idle
    status = job.wait()
    job.close()
    assert not job.failures, "\n".join(job.failures)
    assert [e["message"].split(":")[0] for e in status["events"] if e["reason"] == "MemberLost"] == [victim]
    assert_every_sample_counted(trained_model(status), BATCH, seed=3, steps=STEPS)


def test_a_process_dies_at_every_point_and_in_every_consistency() -> None:
    assert {point for point, *_ in CASES} == set(POINTS)
    for who in ("worker", "server"):
        seen = {consistency for point, _, _, consistency in CASES if point.startswith(f"a {who}")}
        assert seen == {"sync", "hybrid", "async"}, who
