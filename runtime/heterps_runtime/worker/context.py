"""Where a worker stands in a generation, and whom it is connected to."""

from __future__ import annotations

from dataclasses import dataclass

from heterps_runtime.allocation import Allocation
from heterps_runtime.worker.peers import Downstream, Upstream
from heterps_runtime.worker.replica import Replica
from heterps_runtime.worker.servers import ServerClient

__all__ = ["WorkerContext"]


@dataclass(frozen=True)
class WorkerContext:
    """What an engine works with in one generation; built by `worker.member`."""

    generation: int
    stage: int
    num_stages: int
    rank: int  # among the workers of the stage that are there
    committed: int  # steps that are part of the model at the generation's start
    total: int  # steps of the job
    num_rows: int  # of the training data
    allocation: Allocation
    servers: ServerClient
    downstream: Downstream | None  # None for the last stage
    upstream: Upstream
    replica: Replica | None  # None where the servers hold the dense parameters

    @property
    def is_first(self) -> bool:
        """Whether this stage reads the data."""
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        """Whether this stage computes the loss."""
        return self.stage == self.num_stages - 1
