"""A worker's position in a generation, and its connections."""

from __future__ import annotations

from dataclasses import dataclass

from heterps_runtime.wire.link import ControlLink
from heterps_runtime.worker.exchange.parameters import Replication
from heterps_runtime.worker.exchange.peers import Downstream, Upstream
from heterps_runtime.worker.inbox import Inbox
from heterps_runtime.worker.rows.servers import ServerClient
from heterps_runtime.worker.steps.round_trip import RoundTrip
from heterps_runtime.worker.steps.runs import Clock
from heterps_runtime.worker.steps.schedule import Schedule

__all__ = ["WorkerContext", "WorkerProcess"]


@dataclass(frozen=True)
class WorkerProcess:
    """The parts of a worker process that outlive a generation."""

    link: ControlLink
    inbox: Inbox  # of the member's thread
    clock: Clock
    round_trip: RoundTrip


@dataclass(frozen=True)
class WorkerContext:
    """A worker's position and connections in a generation."""

    generation: int
    stage: int
    num_stages: int
    committed: int  # steps at the start of the generation
    total: int  # steps of the job
    loss_scale: float | None  # at the start of the generation; None: losses are not scaled
    schedule: Schedule
    servers: ServerClient
    downstream: Downstream | None  # None for the last stage
    upstream: Upstream
    replication: Replication | None  # None if servers hold the dense parameters

    @property
    def is_first(self) -> bool:
        """Whether this stage reads the data."""
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        """Whether this stage computes the loss."""
        return self.stage == self.num_stages - 1

    def close(self) -> None:
        """Close the connections."""
        self.servers.close()
        if self.downstream is not None:
            self.downstream.close()
