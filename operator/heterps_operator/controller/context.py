"""The context that the controllers of all jobs share."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from heterps_operator.controller.capacity.ledger import Ledger
from heterps_operator.controller.capacity.line import Line
from heterps_operator.controller.capacity.pool_file import PoolFile
from heterps_operator.controller.capacity.prices import PriceBook
from heterps_operator.controller.planners import FairSemaphore, LinePlanner, QueuedPlanner
from heterps_operator.controller.stores.devices import DeviceStores
from heterps_operator.controller.stores.objects import ObjectStore
from heterps_operator.controller.stores.pods import PodStore
from heterps_operator.controller.stores.slimming import slim_job, slim_node
from heterps_operator.documents import Json
from heterps_operator.kubernetes.api import KubernetesApi
from heterps_operator.kubernetes.priorities import Priorities
from heterps_operator.kubernetes.reading.taints import departure
from heterps_operator.loop.coordinator_client import CoordinatorClient
from heterps_operator.loop.substrate import Coordinator, Planner
from heterps_operator.measure.measurement import Measurement
from heterps_operator.measure.metrics import OperatorMetrics
from heterps_operator.state.status import Phase
from heterps_operator.state.values import Departure
from heterps_runtime.clock import steady_time

__all__ = ["OperatorContext"]

# A turn without changes costs one request to the coordinator. Watches wake a job at once, so pauses only delay news of
# the coordinator. With many jobs the pauses grow, so that a job costs less.
_TURNS_PER_SECOND = 8.0
_LONGEST_PAUSE_SECONDS = 15.0  # however many jobs there are: batch sizes and units follow a change of speed
_UPDATES_PER_SECOND = 3.0  # of jobs' status, if only progress has changed
_PROGRESS_SECONDS = 10.0
_DETAILS_PER_SECOND = 50.0  # likewise, if only the number of ready members or a message has changed
_MOST_DETAIL_SECONDS = 10.0
# State is also saved without a decision, for `heterps top`. The next operator adds missing costs from the pods' times.
_SAVES_PER_SECOND = 1.5
_SAVE_SECONDS = 15.0
_RUNNING_SECONDS = 2.0
_CHANGING_SECONDS = 0.5


@dataclass
class OperatorContext:
    """One cluster as the operator sees it, and the resources that jobs share."""

    api: KubernetesApi
    folder: Path  # for planners' files
    namespace: str = "heterps-system"  # of the operator itself
    scrapers: Sequence[Json] = ()  # NetworkPolicyPeers that read the metrics of jobs; none: everyone
    pool_file: PoolFile | None = None  # of DevicePools, instead of those of the API server; then nodes are not read
    most_planners: int = 3
    longest_planning: float = 600.0  # seconds of one planner
    planner_memory_bytes: int | None = 256 << 20  # address space of one planner; None: no limit
    backfill_seconds: float = 300.0  # after which what a waiting job claims is kept from others of its priority
    clock: Callable[[], float] = steady_time
    monotonic: Callable[[], float] = time.monotonic  # for the silence of coordinators
    metrics: OperatorMetrics = field(default_factory=lambda: OperatorMetrics("unknown"))
    # Source of a job's throughput and speeds, by namespace and name; None: its coordinator's status.
    measurement: Callable[[str, str], Measurement | None] = lambda namespace, name: None
    connect: Callable[[str, str], Coordinator] = CoordinatorClient  # to a coordinator, by address and token
    make_planner: Callable[..., Planner] = QueuedPlanner
    make_line_planner: Callable[..., LinePlanner] = QueuedPlanner  # of several jobs that wait
    jobs: ObjectStore = field(default_factory=lambda: ObjectStore(slim_job))
    pools: ObjectStore = field(default_factory=ObjectStore)
    nodes: ObjectStore = field(default_factory=lambda: ObjectStore(slim_node))
    pods: PodStore = field(default_factory=PodStore)
    devices: DeviceStores | None = None  # None: devices are not read, and no pool with a DeviceClass has units
    ledger: Ledger = field(default_factory=Ledger)
    prices: PriceBook = field(default_factory=PriceBook)
    line: Line = field(init=False)
    priorities: Priorities = field(init=False)
    planner_slots: FairSemaphore = field(init=False)
    active_jobs: int = 0  # that get regular turns

    def __post_init__(self) -> None:
        """Create the slots of planners, and the line of waiting jobs."""
        self.planner_slots = FairSemaphore(self.most_planners)
        self.line = Line(self.ledger, self.backfill_seconds, clock=self.clock, monotonic=self.monotonic)
        self.priorities = Priorities(self.api, self.monotonic)

    def hears_of(self, node: str) -> bool:
        """Return whether the kubelet of a node reports; Kubernetes deletes the pods of a removed node."""
        found = self.nodes.get("", node) or {}
        conditions = (found.get("status") or {}).get("conditions") or ()
        return not any(c["type"] == "Ready" and c["status"] == "Unknown" for c in conditions)

    def departure(self, pod: Json) -> Departure | None:
        """Return why a pod has to leave its node; None if it may stay."""
        node = self.nodes.get("", str((pod.get("spec") or {}).get("nodeName") or ""))
        return None if node is None else departure(pod, node)

    def longest_pause(self, phase: str) -> float:
        """Return the longest pause, in seconds, between two turns of a job in this phase."""
        least = _RUNNING_SECONDS if phase == Phase.RUNNING else _CHANGING_SECONDS
        return max(least, min(self.active_jobs / _TURNS_PER_SECOND, _LONGEST_PAUSE_SECONDS))

    @property
    def progress_seconds(self) -> float:
        """Seconds between two updates of a job's status if only progress has changed."""
        return max(_PROGRESS_SECONDS, self.active_jobs / _UPDATES_PER_SECOND)

    @property
    def detail_seconds(self) -> float:
        """Seconds between two updates of a job's status if neither its phase nor a reason has changed."""
        return min(self.active_jobs / _DETAILS_PER_SECOND, _MOST_DETAIL_SECONDS)

    @property
    def save_seconds(self) -> float:
        """Seconds between two writes of a job's state without a decision."""
        return max(_SAVE_SECONDS, self.active_jobs / _SAVES_PER_SECOND)
