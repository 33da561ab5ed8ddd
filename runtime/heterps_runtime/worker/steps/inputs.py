"""The inputs of steps: rows, dense parameters and statistics, in versions that are new enough."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from heterps_runtime.wire.messages import Array
from heterps_runtime.worker.rows.lookups import LookupBlock
from heterps_runtime.worker.rows.servers import DenseArrived, RowsArrived
from heterps_runtime.worker.steps.consistency import Reads
from heterps_runtime.worker.steps.context import WorkerContext
from heterps_runtime.worker.steps.runs import StepRun
from heterps_runtime.worker.steps.stage import Stage

__all__ = ["Inputs"]


class Inputs:
    """Requests the inputs of steps as early as possible, and hands them over when they arrive.

    Args:
        context: the servers, or this worker's replica.
        stage: uses the inputs.
        reads: consistency mode.
    """

    def __init__(self, context: WorkerContext, stage: Stage, reads: Reads) -> None:
        self._context = context
        self._stage = stage
        self._reads = reads
        self._names = (*stage.module.parameter_names, *stage.module.statistics_names)
        self._requests: dict[int, Callable[[Any], None]] = {}  # pull -> function for its response

    def ask_for_dense(self, run: StepRun) -> None:
        """Request the dense parameters and statistics of a step; those of a replica need no request."""
        if not self._names:
            run.leaves = {}
        elif self._context.replication is None:
            run.dense_request = self._context.servers.pull_dense(self._names, run.dense_version)

            def take(pieces: dict[str, list[Array]]) -> None:
                tensors = self._stage.take_dense(pieces)
                run.statistics = {n: tensors.pop(n) for n in self._stage.module.statistics_names}
                run.leaves = {n: t.requires_grad_(run.training) for n, t in tensors.items()}

            self._requests[run.dense_request] = take

    def ask_for_rows(self, block: LookupBlock, run: StepRun) -> None:
        """Request the rows of a block."""
        if not block.arrived:
            self._requests[self._context.servers.pull_rows(block.keys, run.rows_version)] = block.fill

    def take(self, answer: RowsArrived | DenseArrived) -> None:
        """Hand a response to the step that waits for it, if any."""
        handler = self._requests.pop(answer.request, None)
        if handler is not None:
            handler(answer.rows if isinstance(answer, RowsArrived) else answer.values)

    def parameters_ready(self, run: StepRun) -> bool:
        """Whether the dense parameters of a step have arrived."""
        replication = self._context.replication
        if run.leaves is None and replication is not None and replication.replica.version >= run.dense_version:
            private = self._reads.overlapping or not run.training
            run.leaves = replication.replica.acquire(private=private)
            run.statistics = replication.replica.statistics
        return run.leaves is not None

    def clear(self) -> None:
        """Drop all requests."""
        self._requests.clear()
