"""Training that waits for the test."""

from __future__ import annotations

import math
import threading

import pytest

from heterps_runtime.coordinator.core import CoordinatorCore
from heterps_runtime.coordinator.steps import Steps
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


class StepGate:
    """Stops servers that are threads at pushes of a step and later ones, so that exactly the steps before it are made.

    Args:
        monkeypatch: of the test.
        step: the first that is held.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
        self._step, self._moved, push = float(step), threading.Condition(), Shard.push

        def push_when_open(shard: Shard, step: int, worker: str, given: Gradients) -> None:
            with self._moved:
                self._moved.wait_for(lambda: step < self._step)
            push(shard, step, worker, given)

        monkeypatch.setattr(Shard, "push", push_when_open)

    def move(self, step: float = math.inf) -> None:
        """Let training go on to a later step; by default, to its end."""
        with self._moved:
            self._step = step
            self._moved.notify_all()


class CommitGate:
    """Lets each generation of a job commit a limited number of steps, so that training is not over before its next one.

    Servers and workers go on: they answer, and they compute what they may before the next commit.

    Args:
        monkeypatch: of the test.
        limits: steps that are committed at most at the end of each generation; later ones have no limit.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *limits: int) -> None:
        self._limits, self._limit = iter(limits), math.inf
        form, complete = CoordinatorCore._form_generation, Steps.complete

        def form_with_limit(core: CoordinatorCore) -> None:
            self._limit = next(self._limits, math.inf)
            form(core)

        def complete_below_limit(steps: Steps, step: int, num_workers: int) -> bool:
            return step < self._limit and complete(steps, step, num_workers)

        monkeypatch.setattr(CoordinatorCore, "_form_generation", form_with_limit)
        monkeypatch.setattr(Steps, "complete", complete_below_limit)
