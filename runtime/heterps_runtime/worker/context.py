"""Where a worker stands in a generation, and whom it is connected to."""

from __future__ import annotations

from dataclasses import dataclass

from heterps_runtime.wire.link import ControlLink
from heterps_runtime.worker.collectives import Collectives
from heterps_runtime.worker.inbox import Inbox
from heterps_runtime.worker.peers import Downstream, Upstream
from heterps_runtime.worker.replica import Replica
from heterps_runtime.worker.runs import Clock
from heterps_runtime.worker.schedule import Schedule
from heterps_runtime.worker.servers import ServerClient

__all__ = ["Place", "Replication", "WorkerContext", "WorkerProcess"]


@dataclass(frozen=True)
class Place:
    """Which worker of a plan a process is, and where it listens."""

    stage: int
    index: int  # among the workers of the stage
    pool: str  # name of the device pool
    host: str  # address to listen on


@dataclass(frozen=True)
class WorkerProcess:
    """What of a worker's process outlives generations."""

    link: ControlLink
    inbox: Inbox  # of the thread that computes
    clock: Clock


@dataclass(frozen=True)
class Replication:
    """Dense parameters on pools that all-reduce."""

    replica: Replica  # this worker's copy
    collectives: Collectives  # keeps the copies of the stage the same


@dataclass(frozen=True)
class WorkerContext:
    """What an engine works with in one generation; built by `worker.generation`."""

    generation: int
    stage: int
    num_stages: int
    committed: int  # steps that are part of the model at the generation's start
    total: int  # steps of the job
    schedule: Schedule
    servers: ServerClient
    downstream: Downstream | None  # None for the last stage
    upstream: Upstream
    replication: Replication | None  # None where the servers hold the dense parameters

    @property
    def is_first(self) -> bool:
        """Whether this stage reads the data."""
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        """Whether this stage computes the loss."""
        return self.stage == self.num_stages - 1

    def close(self) -> None:
        """Drop the generation's connections."""
        self.servers.close()
        if self.downstream is not None:
            self.downstream.close()
