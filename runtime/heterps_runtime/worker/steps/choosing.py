"""Which micro-batch to compute next: backward before forward, earlier before later, a bounded number under way."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from heterps_runtime.worker.steps.context import WorkerContext
from heterps_runtime.worker.steps.runs import StepRun, Work

__all__ = ["next_backward", "next_forward"]


def next_backward(runs: Mapping[int, StepRun], *, strict: bool) -> Work | None:
    """Take the earliest micro-batch whose gradients have come back.

    Args:
        runs: steps under way.
        strict: only the one whose turn it is in the fixed order.
    """
    for step in sorted(runs):
        run = runs[step]
        if run.returned:
            work = min(run.returned, key=lambda w: w.order)
            if strict and work.micro_batch.index != run.expected[run.num_finished]:
                return None
            run.returned.remove(work)
            return work
    return None


def next_forward(
    runs: Mapping[int, StepRun],
    context: WorkerContext,
    last_step: int,
    parameters_ready: Callable[[StepRun], bool],
    *,
    strict: bool,
) -> Work | None:
    """Take the earliest micro-batch that can go forward.

    Args:
        runs: steps under way.
        context: position of this worker in the pipeline.
        last_step: the latest step that may begin.
        parameters_ready: whether a step's dense parameters are there.
        strict: only the one whose turn it is in the fixed order.
    """
    for step in sorted(runs):
        run = runs[step]
        if step > last_step:
            return None
        if run.waiting and parameters_ready(run):
            for work in sorted(run.waiting, key=lambda w: w.order):
                if strict and work.micro_batch.index != run.expected[run.num_forwarded]:
                    break
                if work.block.arrived and _has_room(work, runs, context):
                    run.waiting.remove(work)
                    return work
        if strict and run.num_forwarded < len(run.expected):
            return None
    return None


def _has_room(work: Work, runs: Mapping[int, StepRun], context: WorkerContext) -> bool:
    """Whether the path may have one more micro-batch under way: what 1F1B needs, and one that is being sent."""
    if context.is_last:
        return True
    following = work.micro_batch.path[context.stage + 1]
    under_way = sum(
        1
        for run in runs.values()
        for other in (*run.in_flight.values(), *run.returned)
        if other.micro_batch.path[context.stage + 1] == following
    )
    return under_way <= context.num_stages - context.stage
