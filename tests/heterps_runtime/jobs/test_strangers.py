"""A peer with the job's token whose messages do not fit costs the generation, not the job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq

from heterps_runtime.coordinator.membership.members import Member
from heterps_runtime.wire.messages import Array, Chunk, Forward, Join, Message, Pull, PullDense, Push
from heterps_runtime.wire.transport import Connection
from tests.counting import assert_every_sample_counted
from tests.heterps_runtime.helpers.jobs import ThreadedJob, counting_configuration, trained_model

pytestmark = pytest.mark.slow

STEPS = 30
NAME = "worker-9-9"
KEYS = np.arange(2, dtype=np.int64)
Messages = Sequence[tuple[Callable[[int], Message], str]]
TO_SERVER: Messages = (
    (lambda generation: Pull(generation, 1, 0, {77: KEYS}), "pull that does not fit: rows of 77"),
    (lambda generation: PullDense(generation, 1, 0, ("no such parameter",)), "pull-dense that does not fit"),
    (
        lambda generation: Push(generation, 0, 5, NAME, (Chunk(77, KEYS, np.ones((2, 77))),), {}, {}),
        "push that does not fit: rows of 77",
    ),
)


def _activation(generation: int, step: int, index: int, **tensors: Array) -> Forward:
    return Forward(generation, step, True, 0, index, tensors, (), ())


TO_WORKER: Messages = (
    (lambda generation: _activation(generation, 10**6, 0), "activations of step 1000000 arrived"),
    (lambda generation: _activation(generation, 25, 77), "micro-batch 77 of step 25 are for another worker"),
    (
        lambda generation: _activation(generation, 25, 0, x=KEYS),
        "micro-batch 0 of step 25 are ['x'], not ['dense', 'embedding', 'label']",
    ),
)


def _is_past(generation: int, status: dict[str, Any]) -> bool:
    return bool(status["generation"] > generation)


@pytest.mark.parametrize(("receiver", "messages"), [("ps-0", TO_SERVER), ("worker-1-0", TO_WORKER)])
def test_a_message_that_does_not_fit_begins_a_generation_in_which_training_goes_on(
    receiver: str,
    messages: Messages,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    addresses: dict[str, str] = {}
    joining = Member.joining

    def note_address(name: str, incarnation: str, words: Join) -> Member:
        addresses[name] = words.address
        return joining(name, incarnation, words)

    monkeypatch.setattr(Member, "joining", note_address)
    job = ThreadedJob(counting_configuration(tmp_path / "job", "hybrid", steps=STEPS))
    job.start([("cpu", 0, 1), ("cpu", 2, 1)], 1, hold_at=4)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    for make, _ in messages:
        generation = job.status()["generation"]
        identity = f"{NAME}/{generation}"
        connection = Connection(context, addresses[receiver], identity, job.credentials.security, generation)
        connection.send(make(generation))
        job.wait(partial(_is_past, generation))
        connection.close()
    job.hold()
    status = job.wait()
    context.term()
    job.close()
    assert not job.failures, "\n".join(job.failures)
    log = capfd.readouterr().err
    for _, problem in messages:
        assert any("joining again: " in line and problem in line for line in log.splitlines()), log
    assert_every_sample_counted(trained_model(status), 32, seed=3, steps=STEPS)
