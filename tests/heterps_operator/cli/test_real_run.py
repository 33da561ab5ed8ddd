"""Complete runs of the real command: interrupted, killed, damaged, and always with the model that plain PyTorch trains.

Training is synchronous and in float64, so the model is known to many digits, and no test depends on a run's own report.
Each run takes seconds to start, so one run covers several disturbances.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from tests.availability import unavailable
from tests.heterps_operator.helpers.real_job import RealJob, Result, step_of
from tests.heterps_operator.helpers.small_reference import plain_model
from tests.same_model import assert_same_model

pytestmark = pytest.mark.slow

STEPS = 400


def model(job: RealJob) -> dict[str, Any]:
    return dict(load_file(job.work / "model" / "model.safetensors"))


def real_job(folder: Path, **spec: Any) -> RealJob:
    return RealJob(folder, training__precision="fp64", **spec)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The model that plain PyTorch trains."""
    return plain_model(tmp_path_factory.mktemp("plain") / "job")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[RealJob, Result]:
    """An undisturbed job, and how it ended."""
    job = real_job(tmp_path_factory.mktemp("trained") / "here")
    result = job.run("--output", "json")
    assert result.code == 0, result.text
    return job, result


def test_an_undisturbed_run_gives_the_model_that_plain_pytorch_trains(
    trained: tuple[RealJob, Result], expected: dict[str, Any]
) -> None:
    assert_same_model(model(trained[0]), expected)


def test_stdout_is_one_document_and_people_read_stderr(trained: tuple[RealJob, Result]) -> None:
    job, result = trained
    report = result.report()
    assert (report["phase"], report["failure"], report["restarts"]) == ("Succeeded", None, {})
    assert report["progress"]["committedSteps"] == STEPS
    assert report["progress"]["resumedFromStep"] is None
    assert float(report["bill"]["cost"]) > 0
    assert Path(report["model"]) == job.work / "model"
    assert "Training: small" in result.err


def test_servers_are_part_of_the_planned_price_as_they_are_of_the_bill(
    trained: tuple[RealJob, Result],
) -> None:
    plan = trained[1].report()["plan"]
    assert plan["parameterServer"]["units"] == 1
    assert plan["costPerHour"] == pytest.approx(2 * 0.04)


def test_interrupted_then_killed_then_damaged_the_job_ends_with_the_same_model(
    expected: dict[str, Any], tmp_path: Path
) -> None:
    """All runs keep what the planner has chosen for the first one.

    Only fp64 is allowed, so that this choice is known: it is not what processes compute in without one. The choice of
    the exchange depends on what is measured here; the model does not depend on it.
    """
    # Ctrl-C writes its own checkpoint.
    job = RealJob(
        tmp_path / "job",
        profiled=False,
        checkpoint__everySteps=10_000,
        training__precision="Auto",
        training__allowedPrecisions=["fp64"],
        training__denseExchange="Auto",
    )
    process = job.start("run", "job.yaml", "--output", "json")
    job.await_step(process, 30)
    os.killpg(process.pid, signal.SIGINT)
    stopped = job.finish(process)
    assert stopped.code == 130, stopped.text
    report = stopped.report()
    assert report["precision"]["name"] == "fp64"
    assert report["precision"]["reason"].startswith("fp64 is the choice: fp64 costs $")
    exchange = report["denseExchange"]["name"]
    assert report["denseExchange"]["reason"].startswith(f"{exchange} is the choice: ParameterServer costs $")
    assert {stage.get("denseExchange", "ParameterServer") for stage in report["plan"]["stages"]} == {exchange}
    step = report["checkpoint"]["lastStep"]
    assert report["phase"] == "Suspended"
    assert step == report["progress"]["committedSteps"]
    assert 30 <= step < STEPS
    assert f"small: stopped at step {step} of {STEPS}; checkpoint at step {step}" in stopped.err

    # The next run resumes there. It is killed, and leaves no running process.
    job.change(checkpoint__everySteps=20)
    process = job.start("run", "job.yaml")
    job.await_line(process, f"resuming from step {step} of {STEPS}")
    job.await_status(process, lambda status: (status["checkpoint"]["lastStep"] or 0) >= step + 40)
    children = job.survivors()
    process.kill()
    process.communicate()
    assert len(children) >= 4  # heterps itself, coordinator, server, worker
    await_none(job)

    # The newest checkpoint is damaged: the last run starts from the previous one.
    *_, before, newest = job.checkpoints()
    largest = max(newest.glob("*.safetensors"), key=lambda path: path.stat().st_size)
    os.truncate(largest, largest.stat().st_size // 2)
    last = job.run("--output", "json")
    assert last.code == 0, last.text
    step = step_of(before.name)
    assert re.search(rf"warning: CheckpointSkipped: {newest.name}: .*{largest.name}", last.err), last.err
    assert f"resuming from step {step} of {STEPS}" in last.err
    assert last.report()["progress"]["resumedFromStep"] == step
    assert last.report()["precision"] == report["precision"]
    assert last.report()["denseExchange"] == report["denseExchange"]
    assert_same_model(model(job), expected)


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """A separate disk for a folder."""
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        unavailable(f"a small disk cannot be mounted here: {mounted.stderr.decode().strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        while True:
            try:
                file.write(bytes(4096))
            except OSError:
                return


def test_a_full_disk_costs_checkpoints_and_in_the_end_the_model_but_not_what_was_saved(
    expected: dict[str, Any], tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    with small_disk(disk):
        job = real_job(tmp_path / "job", checkpoint__path=str(disk / "checkpoints"))
        process = job.start("run", "job.yaml")
        job.await_status(process, lambda status: bool(status["checkpoint"]["lastStep"]))
        fill(disk / "something")
        failed = job.await_status(process, lambda status: status["checkpoint"]["failures"] >= 2)
        result = job.finish(process)
        kept = sorted(step_of(path.parent.name) for path in disk.glob("checkpoints/*/manifest.json"))
        # After making room, the run resumes at the last good checkpoint.
        (disk / "something").unlink()
        again = job.run()
    assert failed["checkpoint"]["lastStep"] >= 20
    assert re.search(
        r"warning: CheckpointFailed: step \d+: .*the disk is full .*; checkpoint of step \d+ stays", result.out
    )
    assert result.code == 1, result.text
    assert re.search(r"CheckpointFailed: training has ended but the model could not be saved: .*; checkpoint of step "
                     r"\d+ stays", result.text)  # fmt: skip
    assert kept
    assert again.code == 0, again.text
    assert f"resuming from step {kept[-1]} of {STEPS}" in again.out
    assert_same_model(model(job), expected)


def test_a_trained_job_starts_over_only_when_asked_and_its_processes_may_die(
    trained: tuple[RealJob, Result], expected: dict[str, Any]
) -> None:
    """Runs last: it starts the job over that the others compare with."""
    job, result = trained
    again = job.run("--output", "json")
    assert "small is already trained; to start over: heterps run job.yaml --fresh" in again.err
    assert (again.code, again.report()["bill"]) == (0, result.report()["bill"])
    job.change(training__steps=20)
    refused = job.run("--quiet")
    assert (refused.code, refused.out) == (2, "")
    assert f"up to step {STEPS}; start over with --fresh" in refused.err

    job.change(training__steps=STEPS, runPolicy={"backoffLimit": 3})
    process = job.start("run", "job.yaml", "--fresh")
    job.await_step(process, 1)
    assert STEPS not in [step_of(path.name) for path in job.checkpoints()]
    # The server last: a coordinator that is killed soon after a rollback takes the news of it along.
    for step, name in ((30, "worker-0-0"), (90, "coordinator"), (150, "ps-0")):
        pid = job.kill(process, name, at_step=step)
        job.await_replaced(process, name, pid)
    result = job.finish(process)
    assert result.code == 0, result.text
    assert (
        "worker-0-0 ended (killed by SIGKILL (the kernel does this when memory runs out)): it restarts now"
        in result.out
    )
    assert re.search(r"ps-0 ended \(killed by SIGKILL .*\): it restarts now", result.out)
    assert re.search(r"RolledBack: from step \d+ to \d+ \(checkpoint\)", result.out)
    assert re.search(r"coordinator ended \(killed by SIGKILL .*\): everything restarts from the last", result.out)
    assert "restarts" in result.out
    assert_same_model(model(job), expected)


def test_a_process_that_is_told_to_end_costs_no_step_in_a_run_that_encrypts(
    expected: dict[str, Any], tmp_path: Path
) -> None:
    job = real_job(
        tmp_path / "job", encryption="Required", runPolicy={"backoffLimit": 0}, checkpoint__everySteps=10_000
    )
    process = job.start("run", "job.yaml")
    job.await_step(process, 20)
    assert json.loads((job.work / "coordinator.json").read_text())["http"].startswith("https://")
    for step, name in ((30, "ps-0"), (150, "coordinator")):
        pid = job.kill(process, name, at_step=step, number=signal.SIGTERM)
        job.await_replaced(process, name, pid)
    result = job.finish(process)
    assert result.code == 0, result.text
    assert "RolledBack" not in result.out
    told = r"a process was told to end: the job has saved a checkpoint, and continues from it in \d+ s"
    assert re.search(told, result.out)
    resumed = [int(step) for step in re.findall(r"resuming from step (\d+) of", result.out)]
    assert len(resumed) == 2
    assert resumed[0] >= 30, resumed
    assert resumed[1] >= 150, resumed
    token = (job.work / "token").read_bytes()
    assert all(token not in log.read_bytes() for log in (job.work / "logs").iterdir())
    assert_same_model(model(job), expected)


def await_none(job: RealJob) -> None:
    """Wait until the kernel has killed the children of a killed command."""
    for _ in range(500):
        if not job.survivors():
            return
        signal.sigtimedwait([], 0.01)
    raise AssertionError(f"still running: {job.survivors()}")
