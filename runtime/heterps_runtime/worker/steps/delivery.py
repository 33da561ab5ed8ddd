"""The end of a step in a worker: gradients are delivered, the step is reported, then committed."""

from __future__ import annotations

import weakref

import torch

from heterps_runtime.wire.messages import Array, Commit, Done
from heterps_runtime.worker.exchange.buckets import Reduction
from heterps_runtime.worker.exchange.parameters import Replication
from heterps_runtime.worker.exchange.replica import Leaves
from heterps_runtime.worker.steps.context import WorkerContext, WorkerProcess
from heterps_runtime.worker.steps.runs import StepRun, Work
from heterps_runtime.worker.tensors import arrays_of, is_finite

__all__ = ["Delivery"]


class Delivery:
    """Computed steps that are not committed.

    Args:
        context: the servers, and the replica and group of the stage.
        process: line to the coordinator, and inbox for results of all-reduce.
        dense: whether the stage has dense parameters or statistics.
    """

    def __init__(self, context: WorkerContext, process: WorkerProcess, *, dense: bool) -> None:
        self.broken = False  # an all-reduce has failed
        self._context = context
        self._process = process
        self._dense = dense
        self._runs: dict[int, StepRun] = {}
        self._reported_seconds: dict[str, float] = {}

    def deliver(self, run: StepRun) -> None:
        """Push a step's gradients and changes of statistics, and all-reduce those of a replica."""
        self._process.clock.switch("push")
        self._runs[run.step] = run
        unscale = None if run.factor is None else 1.0 / run.factor
        chunks = [chunk for _, block in sorted(run.blocks.items()) for chunk in block.gradients(unscale)]
        run.finite = all(chunk.finite for chunk in chunks)
        replication = self._context.replication
        dense: dict[str, Array] = {}
        changes: dict[str, Array] = {}
        if self._dense and replication is None:
            # A worker without samples contributes nothing, and its parameters may not have arrived.
            leaves = run.leaves or {}
            if unscale is not None:
                for leaf in leaves.values():
                    if leaf.grad is not None:
                        leaf.grad.mul_(unscale)
            dense = arrays_of(_gradients(run))
            run.finite = run.finite and all(map(is_finite, dense.values()))
            changes = arrays_of(run.changes)
        self._context.servers.push(run.step, chunks, dense, changes)
        self._process.round_trip.send(run.step)
        run.blocks.clear()
        if replication is not None and self._dense:
            reduction = run.reduction or self._begin_reduction(run, replication)
            reduction.finish(_gradients(run))
            run.finite = run.finite and reduction.finite
        else:
            run.reduced = True

    def reduce_with_backward(self, work: Work) -> None:
        """Before a backward: if it is the last one of the step, all-reduce gradients while it computes others."""
        run = work.run
        replication, leaves = self._context.replication, run.leaves
        if replication is None or not leaves or run.num_finished + len(work.each) < len(run.expected):
            return
        if len(replication.replica.buckets) > 1:
            self._begin_reduction(run, replication).follow(leaves)

    def _begin_reduction(self, run: StepRun, replication: Replication) -> Reduction:
        weak = weakref.ref(run)  # it owns the reduction, and as many bytes as there are gradients

        def finish(error: Exception | None) -> None:
            current = weak()
            if error is not None:
                self.broken = True
            elif current is not None and self._runs.get(current.step) is current:
                current.reduced = True
                self._report(current)

        def done(error: Exception | None) -> None:
            self._process.inbox.post(lambda: finish(error))

        unscale = None if run.factor is None else 1.0 / run.factor
        run.reduction = Reduction(replication, run.step, run.changes, unscale, done)
        return run.reduction

    def pushed(self, step: int) -> None:
        """Note that all servers have acknowledged a step's gradients."""
        self._process.round_trip.answered(step)
        run = self._runs.get(step)
        if run is not None:
            run.pushed = True
            self._report(run)

    def commit(self, order: Commit) -> None:
        """Apply a committed step to the replica, unless it is skipped."""
        run = self._runs.pop(order.step)
        if self._context.replication is None:
            return
        replica = self._context.replication.replica
        if order.skipped:
            replica.skip()
        else:
            replica.apply(torch.zeros(0) if run.reduction is None else run.reduction.flat, order.batch_size)

    def clear(self) -> None:
        """Drop all steps."""
        self._runs.clear()
        self._process.round_trip.clear()

    def _report(self, run: StepRun) -> None:
        """Report a step once all its gradients are delivered."""
        if run.reported or not (run.pushed and run.reduced):
            return
        run.reported = True
        loss = sum(map(float, run.losses))
        report = Done(self._context.generation, run.step, loss, run.finite, self._figures(), run.loss_scale)
        self._process.link.send(report)

    def _figures(self) -> dict[str, float]:
        """Seconds per activity since the last report."""
        now = self._process.clock.snapshot()
        previous, self._reported_seconds = self._reported_seconds, now
        delta = {name: seconds - previous.get(name, 0.0) for name, seconds in now.items()}
        waits = sum(s for n, s in delta.items() if n.startswith("wait"))
        total = sum(delta.values())
        return {**delta, "step": total, "wait": waits, "compute": total - waits}


def _gradients(run: StepRun) -> Leaves:
    """The gradients of a step by parameter, of those that have one."""
    return {name: leaf.grad for name, leaf in (run.leaves or {}).items() if leaf.grad is not None}
