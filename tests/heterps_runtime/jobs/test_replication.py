"""Servers hold copies of each other's rows: one that dies costs no committed step, whenever it dies."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from heterps_runtime.config import RunConfig
from heterps_runtime.contract import EXIT_INTERRUPTED, PATH_LOST
from heterps_runtime.ps.recovery import Recovery
from heterps_runtime.store import keyed
from tests.counting import assert_every_sample_counted
from tests.heterps_runtime.helpers.held_copies import HeldCopies
from tests.heterps_runtime.helpers.jobs import (
    PATIENCE_SECONDS,
    Stage,
    ThreadedJob,
    configuration,
    counting_configuration,
    trained_model,
)
from tests.heterps_runtime.helpers.plain_torch import train
from tests.heterps_runtime.helpers.state_moves import (
    BATCH,
    COUNTING,
    MIXED,
    SAMPLES,
    STEPS,
    TWO,
    ended,
    reasons,
    with_all_state,
)
from tests.same_model import assert_same_model

pytestmark = pytest.mark.slow

NEVER = 1000  # steps between checkpoints: so nothing but a copy can help


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("replication")


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy takes many messages."""
    monkeypatch.setattr(keyed, "rows_of_piece", lambda row_nbytes: 64)


def _replicated(document: dict[str, Any]) -> dict[str, Any]:
    document["job"]["spec"]["parameterServer"]["replication"] = 2
    document["job"]["spec"]["checkpoint"]["everySteps"] = NEVER
    return document


def _die(job: ThreadedJob, stages: list[Stage], servers: int, victim: str, point: str, step: int) -> None:
    """Let a server die at one point of a step, and replace it."""
    process = job.start(
        stages, servers, as_process=victim, program=("tests.heterps_runtime.helpers.dying", point, str(step))
    )
    assert process is not None
    assert process.wait(timeout=PATIENCE_SECONDS) == -signal.SIGKILL
    job.kill(process, victim)
    job.start_member(victim, stages)


@pytest.mark.parametrize(
    ("point", "victim", "servers", "consistency"),
    [
        ("a server has a push", "ps-1", 2, "hybrid"),
        ("a server hears of a commit", "ps-0", 2, "async"),
        ("a server is in a commit", "ps-2", 3, "sync"),
        ("a server has made a commit", "ps-0", 3, "hybrid"),
    ],
)
def test_no_committed_step_is_lost_wherever_a_server_dies(
    point: str, victim: str, servers: int, consistency: str, folder: Path
) -> None:
    document = counting_configuration(folder / point, consistency, SAMPLES, BATCH, steps=STEPS)
    job = ThreadedJob(_replicated(document))
    _die(job, COUNTING, servers, victim, point, 24)
    status = ended(job)
    assert [e["message"].split(":")[0] for e in status["events"] if e["reason"] == "MemberLost"] == [victim]
    assert "RolledBack" not in reasons(status)
    assert_every_sample_counted(trained_model(status), BATCH, seed=3, steps=STEPS)


def _with_everything(work: Path) -> dict[str, Any]:
    return _replicated(with_all_state(work, 90))


@pytest.fixture(scope="module")
def with_everything(folder: Path) -> dict[str, Any]:
    """The model of `_with_everything`, as plain PyTorch trains it."""
    return train(RunConfig.from_json(_with_everything(folder / "with-everything")), torch.float64)


@pytest.mark.parametrize("stages", [TWO, MIXED])
def test_one_server_after_the_other_may_lose_its_state(
    stages: list[Stage],
    folder: Path,
    with_everything: dict[str, Any],
    lose: Callable[..., None],
) -> None:
    """Servers encrypt what they copy from one another if the job asks for it."""
    document = _with_everything(folder / f"in-turn-{stages[1][0]}")
    job = ThreadedJob(document)
    job.start(stages, 2, hold_at=15)
    for victim, steps in (("ps-1", 15), ("ps-0", 45)):  # the second one copies what the first one has copied
        job.hold_at(steps)
        lose(job, victim)
    job.hold()
    status = ended(job)
    assert status["generation"] >= 3
    assert "RolledBack" not in reasons(status)
    assert_same_model(trained_model(status), with_everything)


def test_what_both_servers_have_lost_comes_from_a_checkpoint(folder: Path, lose: Callable[..., None]) -> None:
    document = _replicated(configuration(folder / "both", steps=STEPS))
    expected = train(RunConfig.from_json(document), torch.float64)
    document["job"]["spec"]["checkpoint"]["everySteps"] = 5
    job = ThreadedJob(document)
    job.start(TWO, 2, hold_at=12)
    lose(job, "ps-0", "ps-1")
    job.hold()
    status = ended(job)
    assert status["generation"] >= 2
    assert_same_model(trained_model(status), expected)


@pytest.mark.parametrize("victim", ["worker-0-1", "ps-1"])
def test_a_recovery_that_is_interrupted_begins_again(
    victim: str, folder: Path, lose: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the loss of a worker, or of the server that the state is copied from: then it comes from a checkpoint."""
    document = _replicated(configuration(folder / f"interrupted-{victim}", steps=STEPS))
    document["job"]["spec"]["checkpoint"]["everySteps"] = 5
    expected = train(RunConfig.from_json(document), torch.float64)
    begun: list[Recovery] = []

    def holds(recovery: Recovery) -> bool:
        """The first recovery stops half-way, until it is given up."""
        if recovery not in begun:
            begun.append(recovery)
        return recovery is begun[0] and bool(recovery.num_rows)

    HeldCopies(monkeypatch, holds)
    job = ThreadedJob(document)
    job.start(TWO, 2, hold_at=12)
    lose(job, "ps-0")
    job.hold()
    job.wait(lambda status: bool(begun and begun[0].num_rows))
    assert not any(m["state"] == "ready" for m in job.status()["members"] if m["name"] == "ps-0")
    if victim == "ps-1":
        lose(job, victim)
    else:
        job.credentials.request("POST", PATH_LOST, {"member": victim, "reason": "lost by a test"})
    status = ended(job)
    assert ("RolledBack" in reasons(status)) == (victim == "ps-1")
    assert len(begun) == (1 if victim == "ps-1" else 2), "the worker that joins again interrupts nothing"
    assert_same_model(trained_model(status), expected)


def test_a_server_that_is_told_to_end_stops_no_job(folder: Path) -> None:
    work = folder / "leaving"
    job = ThreadedJob(_replicated(counting_configuration(work, "hybrid", SAMPLES, BATCH, steps=STEPS)))
    (work / "held").touch()  # training cannot end meanwhile
    process = job.start(COUNTING, 2, as_process="ps-1")
    assert process is not None
    job.wait(lambda status: status["committedSteps"] >= 3)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=PATIENCE_SECONDS) == EXIT_INTERRUPTED
    job.start_member("ps-1", COUNTING)
    (work / "held").unlink()
    status = ended(job)
    assert not {"RolledBack", "StopRequested"} & set(reasons(status))
    assert_every_sample_counted(trained_model(status), BATCH, seed=3, steps=STEPS)
