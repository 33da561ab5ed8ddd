"""The choice of the next micro-batch: backward first, earlier steps first, a bounded number in flight."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from heterps_runtime.worker.steps.context import WorkerContext
from heterps_runtime.worker.steps.runs import StepRun, Work

__all__ = ["next_backward", "next_forward"]


def next_backward(runs: Mapping[int, StepRun], *, strict: bool) -> Work | None:
    """Take the earliest micro-batch whose gradients have arrived.

    Args:
        runs: steps in progress.
        strict: keep the fixed order.
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
    """Take the earliest micro-batch that can be computed.

    Before the last stage, no step overtakes another one. The stages after this one may wait for the commit of the
    earlier step, and a bounded number of micro-batches is in flight, so those of later steps would block it for good.

    Args:
        runs: steps in progress.
        context: position of this worker in the pipeline.
        last_step: latest step that may start.
        parameters_ready: whether a step's dense parameters have arrived.
        strict: keep the fixed order.
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
        if (strict or not context.is_last) and run.num_forwarded < len(run.expected):
            return None
    return None


def _has_room(work: Work, runs: Mapping[int, StepRun], context: WorkerContext) -> bool:
    """Whether the path may have another micro-batch in flight: those of 1F1B, and one that is being sent."""
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
