"""An order never leaves the coordinator, so no number shows the loss: the steps show it to the process that missed it.

The coordinator counts the order as sent. The next one does not fit the state of the process, which then joins again
with what it holds, and each sample is applied once (`tests/counting.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from heterps_runtime.contract import PATH_LOST
from heterps_runtime.coordinator.effects import Address
from heterps_runtime.coordinator.server import CoordinatorServer
from heterps_runtime.wire.messages import Commit, FromCoordinator
from tests.counting import assert_every_sample_counted
from tests.heterps_runtime.helpers.jobs import (
    PATIENCE_SECONDS,
    Stage,
    ThreadedJob,
    counting_configuration,
    trained_model,
)

pytestmark = pytest.mark.slow

STEPS, EVERY = 30, 10  # EVERY: steps between checkpoints
ROWS: list[Stage] = [("cpu", 0, 2), ("cpu", 2, 1)]  # the servers hold all parameters
REPLICAS: list[Stage] = [("cpu", 0, 1), ("card", 2, 2)]  # the second stage all-reduces


def withhold(monkeypatch: pytest.MonkeyPatch, member: str, step: int) -> threading.Event:
    """Do not send the commit of a step to a member; returns an event that is set when that has happened."""
    send, withheld = CoordinatorServer.send, threading.Event()

    def send_others(server: CoordinatorServer, processes: Sequence[Address], message: FromCoordinator) -> None:
        if isinstance(message, Commit) and message.step == step and not withheld.is_set():
            processes = [process for process in processes if process[0] != member]
            withheld.set()
        send(server, processes, message)

    monkeypatch.setattr(CoordinatorServer, "send", send_others)
    return withheld


@pytest.mark.parametrize(
    ("following", "member", "step", "stages", "consistency", "goes_back"),
    [
        ("commit", "ps-1", 12, ROWS, "async", True),
        ("commit", "worker-1-1", 12, REPLICAS, "async", False),
        ("checkpoint", "ps-1", EVERY - 1, ROWS, "sync", True),
        ("generation", "ps-1", 12, ROWS, "sync", True),
    ],
)
def test_a_commit_that_a_process_has_missed_is_noticed_at_the_following_order(
    following: str,
    member: str,
    step: int,
    stages: list[Stage],
    consistency: str,
    goes_back: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    withheld = withhold(monkeypatch, member, step)
    job = ThreadedJob(counting_configuration(tmp_path / "job", consistency, steps=STEPS))
    job.start(stages, 2)
    assert withheld.wait(PATIENCE_SECONDS)
    if following == "generation":  # of its own accord the job would wait for this server
        job.credentials.request("POST", PATH_LOST, {"member": "worker-0-1", "reason": "ended by a test"})
    status = job.wait()
    job.close()
    assert not job.failures, "\n".join(job.failures)
    events = [(e["reason"], e["message"]) for e in status["events"]]
    assert ("MemberRejoined", f"{member} joined again") in events
    assert ("RolledBack" in dict(events)) == goes_back
    assert_every_sample_counted(trained_model(status), 32, seed=3, steps=STEPS)
