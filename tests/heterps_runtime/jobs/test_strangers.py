"""A peer with the job's token whose requests do not fit costs the generation, not the job."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq

from heterps_runtime.coordinator.steps import Steps
from heterps_runtime.ps.server import ParameterServer
from heterps_runtime.wire.messages import Chunk, Pull, PullDense, Push, ToServer
from heterps_runtime.wire.transport import Connection
from tests.counting import assert_every_sample_counted
from tests.heterps_runtime.helpers.jobs import ThreadedJob, counting_configuration, trained_model

pytestmark = pytest.mark.slow

STEPS, HELD = 30, 20  # no step from HELD on is committed before the last request
NAME = "worker-9-9"
KEYS = np.arange(2, dtype=np.int64)
REQUESTS: list[tuple[Callable[[int], ToServer], str]] = [
    (lambda generation: Pull(generation, 1, 0, {77: KEYS}), "pull that does not fit: rows of 77"),
    (lambda generation: PullDense(generation, 1, 0, ("no such parameter",)), "pull-dense that does not fit"),
    (
        lambda generation: Push(generation, 0, 5, NAME, (Chunk(77, KEYS, np.ones((2, 77))),), {}, {}),
        "push that does not fit: rows of 77",
    ),
]


def _is_past(generation: int, status: dict[str, Any]) -> bool:
    return bool(status["generation"] > generation)


def test_each_request_that_does_not_fit_begins_a_generation_in_which_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    addresses: list[str] = []
    join = ParameterServer._join

    def note_address(server: ParameterServer) -> None:
        addresses.append(server._address)
        join(server)

    monkeypatch.setattr(ParameterServer, "_join", note_address)
    complete, released = Steps.complete, threading.Event()
    monkeypatch.setattr(
        Steps, "complete", lambda steps, step, n: (step < HELD or released.is_set()) and complete(steps, step, n)
    )
    job = ThreadedJob(counting_configuration(tmp_path / "job", "hybrid", steps=STEPS))
    job.start([("cpu", 2, 1)], 1)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    job.wait(lambda status: status["committedSteps"] >= 4)
    for make, problem in REQUESTS:
        generation = job.status()["generation"]
        connection = Connection(context, addresses[0], f"{NAME}/{generation}", job.credentials.security, generation)
        if problem == REQUESTS[-1][1]:
            released.set()  # the generation that follows goes on to the end
        connection.send(make(generation))
        job.wait(partial(_is_past, generation))
        connection.close()
    status = job.wait()
    context.term()
    job.close()
    assert not job.failures, "\n".join(job.failures)
    log = capfd.readouterr().err
    for _, problem in REQUESTS:
        assert f"joining again: '{NAME}' sent a {problem}" in log
    assert "RolledBack" not in [event["reason"] for event in status["events"]]
    assert_every_sample_counted(trained_model(status), 32, seed=3, steps=STEPS)
