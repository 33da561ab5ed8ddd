"""Which micro-batch a worker computes next."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
import torch

from heterps_runtime.partition.allocation import MicroBatch
from heterps_runtime.worker.rows.lookups import LookupBlock
from heterps_runtime.worker.steps.choosing import next_forward
from heterps_runtime.worker.steps.context import WorkerContext
from heterps_runtime.worker.steps.runs import StepRun, Work

MICRO_BATCHES = 4


def position(stage: int, num_stages: int) -> WorkerContext:
    place = SimpleNamespace(stage=stage, num_stages=num_stages, is_last=stage == num_stages - 1)
    return cast(WorkerContext, place)


def opened(step: int, *, arrived: bool) -> StepRun:
    """A step whose micro-batches wait for forward, with or without their rows."""
    run = StepRun(step, True, step, step, tuple(range(MICRO_BATCHES)), batch_size=8)
    block = cast(LookupBlock, SimpleNamespace(arrived=arrived))
    for index in range(MICRO_BATCHES):
        micro = MicroBatch(index, 2 * index, 2 * index + 2, (0, 0))
        run.waiting.append(Work(run, micro, {}, torch.zeros(2), block, index))
    return run


def forwarded(runs: dict[int, StepRun], context: WorkerContext) -> list[tuple[int, int]]:
    """Forward what can be: (step, micro-batch)."""
    found = []
    while (work := next_forward(runs, context, 9, lambda run: True, strict=False)) is not None:
        work.run.num_forwarded += 1
        if not context.is_last:
            work.run.in_flight[work.micro_batch.index] = work
        found.append(work.order)
    return found


@pytest.mark.parametrize("rows_of_the_first", [False, True])
def test_before_the_last_stage_no_step_overtakes_another(*, rows_of_the_first: bool) -> None:
    """The next stage may wait for the commit of step 4, and only three micro-batches may be in flight."""
    runs = {4: opened(4, arrived=rows_of_the_first), 5: opened(5, arrived=True)}
    assert forwarded(runs, position(0, 2)) == ([(4, 0), (4, 1), (4, 2)] if rows_of_the_first else [])


def test_the_last_stage_computes_what_is_there() -> None:
    runs = {4: opened(4, arrived=False), 5: opened(5, arrived=True)}
    assert forwarded(runs, position(1, 2)) == [(5, index) for index in range(MICRO_BATCHES)]


def test_a_step_that_was_forwarded_lets_the_next_one_run_ahead() -> None:
    runs = {4: opened(4, arrived=True), 5: opened(5, arrived=True)}
    runs[4].waiting.clear()
    runs[4].num_forwarded = MICRO_BATCHES
    assert forwarded(runs, position(0, 2)) == [(5, 0), (5, 1), (5, 2)]
