"""What the controllers of all jobs share."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from heterps_operator.controller.planners import FairSemaphore, QueuedPlanner
from heterps_operator.controller.stores.objects import ObjectStore
from heterps_operator.controller.stores.pods import PodStore
from heterps_operator.controller.stores.slimming import slim_job, slim_node
from heterps_operator.kubernetes.api import KubernetesApi
from heterps_operator.kubernetes.reading.pools import Ledger
from heterps_operator.loop.coordinator_client import CoordinatorClient
from heterps_operator.loop.substrate import Coordinator, Planner
from heterps_operator.measure.measurement import Measurement
from heterps_operator.measure.metrics import OperatorMetrics
from heterps_operator.state.status import Phase

__all__ = ["OperatorContext"]

# A look at a job without news costs one request to its coordinator. Watches wake a job at once, so pauses only bound
# how soon the coordinator's own news are seen; with many jobs they grow, so that all of them cost what these do.
_LOOKS_PER_SECOND = 8.0
_UPDATES_PER_SECOND = 3.0  # of jobs' status that only tell of progress
_PROGRESS_SECONDS = 10.0
_SAVES_PER_SECOND = 1.5  # of jobs' state while nothing is decided: `heterps top` shows it, and what a bill lacks, the
_SAVE_SECONDS = 15.0  # pods' times tell the next operator
_RUNNING_SECONDS = 2.0
_CHANGING_SECONDS = 0.5


@dataclass
class OperatorContext:
    """One cluster as the operator sees it, and what jobs compete for."""

    api: KubernetesApi
    folder: Path  # for planners' files
    namespace: str = "heterps-system"  # of the operator itself
    most_planners: int = 2
    clock: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic  # for how long a coordinator is silent
    metrics: OperatorMetrics = field(default_factory=lambda: OperatorMetrics("unknown"))
    # Of a job's throughput and speeds, by namespace and name; None: its coordinator is scraped.
    measurement: Callable[[str, str], Measurement | None] = lambda namespace, name: None
    connect: Callable[[str, str], Coordinator] = CoordinatorClient  # to a coordinator, by address and token
    make_planner: Callable[..., Planner] = QueuedPlanner
    jobs: ObjectStore = field(default_factory=lambda: ObjectStore(slim_job))
    pools: ObjectStore = field(default_factory=ObjectStore)
    nodes: ObjectStore = field(default_factory=lambda: ObjectStore(slim_node))
    pods: PodStore = field(default_factory=PodStore)
    ledger: Ledger = field(default_factory=Ledger)
    planner_slots: FairSemaphore = field(init=False)
    active_jobs: int = 0  # that are looked at regularly

    def __post_init__(self) -> None:
        """Make the planner_slots of planners."""
        self.planner_slots = FairSemaphore(self.most_planners)

    def hears_of(self, node: str) -> bool:
        """Whether a node's kubelet reports; the pods of one that is gone are cleared away by Kubernetes."""
        found = self.nodes.get("", node) or {}
        conditions = (found.get("status") or {}).get("conditions") or ()
        return not any(c["type"] == "Ready" and c["status"] == "Unknown" for c in conditions)

    def longest_pause(self, phase: str) -> float:
        """Seconds between two looks at a job in this phase that has no news."""
        least = _RUNNING_SECONDS if phase == Phase.RUNNING else _CHANGING_SECONDS
        return max(least, self.active_jobs / _LOOKS_PER_SECOND)

    @property
    def progress_seconds(self) -> float:
        """Between two updates of a job's status that only tell of progress."""
        return max(_PROGRESS_SECONDS, self.active_jobs / _UPDATES_PER_SECOND)

    @property
    def save_seconds(self) -> float:
        """Between two savings of a job's state while nothing is decided."""
        return max(_SAVE_SECONDS, self.active_jobs / _SAVES_PER_SECOND)
