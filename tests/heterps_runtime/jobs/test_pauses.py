"""A process is stopped (SIGSTOP) until it counts as lost, and goes on: each sample is applied once all the same.

As in test_deaths.py the process is a real one, the others are threads, and the model itself says how often each sample
was applied. Members count as lost after a few seconds here. `python -m tests.pauses` stops processes of real jobs for
up to a minute, as `heterps run` starts them.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.counting import assert_every_sample_counted
from tests.heterps_runtime.helpers.jobs import Stage, ThreadedJob, counting_configuration, trained_model

SAMPLES, BATCH, EVERY = 320, 32, 10
STEPS = 6 * EVERY
HEARTBEAT_SECONDS = 4.0

ROWS: list[Stage] = [("cpu", 0, 2), ("cpu", 2, 1)]  # the servers hold all parameters
REPLICAS: list[Stage] = [("cpu", 0, 1), ("card", 2, 2)]  # the second stage all-reduces
LAST_REPLICA: list[Stage] = [("card", 2, 1)]
CASES: list[tuple[str, list[Stage], str]] = [
    ("worker-0-1", ROWS, "sync"),
    ("worker-0-0", ROWS, "hybrid"),
    ("ps-1", ROWS, "async"),
    ("worker-1-1", REPLICAS, "hybrid"),  # the other one waits for it in an all-reduce
    ("ps-0", LAST_REPLICA, "sync"),
    ("worker-0-0", LAST_REPLICA, "async"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pauses")


@pytest.mark.slow
@pytest.mark.parametrize(("victim", "stages", "consistency"), CASES)
def test_a_process_that_was_given_up_for_lost_comes_back(
    victim: str, stages: list[Stage], consistency: str, folder: Path
) -> None:
    work = folder / str(CASES.index((victim, stages, consistency)))
    job = ThreadedJob(counting_configuration(work, consistency, SAMPLES, BATCH, steps=STEPS), HEARTBEAT_SECONDS)
    (work / "held").touch()  # training cannot end meanwhile
    process = job.start(stages, 2, as_process=victim)
    assert process is not None
    job.wait(lambda status: status["committedSteps"] >= 3)
    process.send_signal(signal.SIGSTOP)
    try:
        job.wait(lambda status: victim in lost(status))
    finally:
        process.send_signal(signal.SIGCONT)
    returned = job.wait(lambda status: status["running"] and victim in ready(status))
    (work / "held").unlink()
    status = job.wait()
    job.close()
    assert not job.failures, "\n".join(job.failures)
    assert process.returncode == 0, "the very process took part until the end"
    assert "RolledBack" not in [e["reason"] for e in returned["events"]], "it still had what it held"
    assert_every_sample_counted(trained_model(status), BATCH, seed=3, steps=STEPS)


def lost(status: dict[str, Any]) -> set[str]:
    return {e["message"].split(":")[0] for e in status["events"] if e["reason"] == "MemberLost"}


def ready(status: dict[str, Any]) -> set[str]:
    return {m["name"] for m in status["members"] if m["state"] == "ready"}
