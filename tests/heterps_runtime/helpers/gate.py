"""Training that waits for the test."""

from __future__ import annotations

import threading

import pytest

from heterps_runtime.ps.gradients import Gradients
from heterps_runtime.ps.shard import Shard


class Gate:
    """Stops servers that are threads at a push, so that training does not get on. It begins open.

    Args:
        monkeypatch: of the test.
        first_step: pushes of earlier steps pass.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, first_step: int = 0) -> None:
        self.open, push = threading.Event(), Shard.push
        self.open.set()

        def push_when_open(shard: Shard, step: int, worker: str, given: Gradients) -> None:
            if step >= first_step:
                self.open.wait()
            push(shard, step, worker, given)

        monkeypatch.setattr(Shard, "push", push_when_open)
