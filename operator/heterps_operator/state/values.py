"""The values that cross the control loop: what is observed, what is decided.

`reconcile` maps `Observed` to `Decision`; the loop and the substrates read and carry out these values and do the I/O.
All times are Unix seconds, set by the observer: no value here reads a clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from heterps_operator.documents import Json
from heterps_operator.state.plan import JobPlan, PlanOutcome
from heterps_operator.state.prices import PriceHistory
from heterps_operator.state.status import Event, Status
from heterps_runtime.contract import FINAL_PHASES, REASON_HANG, JobPhase, Role

__all__ = [
    "Action",
    "ComputePlan",
    "CoordinatorView",
    "Decision",
    "Departure",
    "FailJob",
    "MemberView",
    "Observed",
    "Place",
    "PodProblem",
    "PoolCapacity",
    "ProcessSpec",
    "ProcessView",
    "QuotaRequest",
    "ReclaimQuota",
    "ReportLost",
    "RequestQuota",
    "RequestStop",
    "ReturnQuota",
    "SaveProfile",
    "Shutdown",
    "StartProcess",
    "StopProcess",
    "SubmitAllocation",
    "SubmitPlan",
    "plan_request",
]


@dataclass(frozen=True)
class ProcessSpec:
    """What is to run: one process on this machine, one pod on a cluster."""

    name: str  # unique in the job: coordinator, ps-0, worker-1-0, profile-cpu
    role: Role
    pool: str | None = None  # the pool that is charged; None: not charged (the coordinator)
    units: int = 0  # units of the pool that it occupies
    threads: int = 1  # threads for computing: units of a CPU pool, 1 for an accelerator's process
    stage: int | None = None  # of a worker
    index: int | None = None  # of a worker in its stage, of a server among the servers
    precision: str | None = None  # in which it computes, if the planner has chosen that
    dense_exchange: str | None = None  # of a worker's stage, if it is not that of its pool's device type
    incarnation: int = 1  # the job's: goes up when everything returns to the last checkpoint
    attempt: int = 1  # this process's: goes up with every replacement in one incarnation

    @property
    def arguments(self) -> tuple[str, ...]:
        """Arguments of `heterps-runtime`: the role and its options."""
        options = {
            "--stage": self.stage,
            "--index": self.index,
            "--pool": self.pool,
            "--precision": self.precision,
            "--dense-exchange": self.dense_exchange,
        }
        given = [(option, str(value)) for option, value in options.items() if value is not None]
        return (self.role.value, *(word for pair in given for word in pair))


@dataclass(frozen=True)
class PodProblem:
    """Why a pod does not start."""

    reason: str  # CamelCase, for programs: Unschedulable, ImagePullBackOff
    message: str  # what, where, and the way out, for people
    crowded: bool = False  # the nodes that it may run on have too little left


@dataclass(frozen=True)
class Departure:
    """Why the processes of a node have to leave it."""

    node: str
    why: str  # what follows its name: is cordoned
    announced: bool = False  # it will be removed, whatever its processes do


@dataclass(frozen=True)
class ProcessView:
    """A process as the substrate sees it: the latest of its name, running or ended."""

    spec: ProcessSpec
    started: float
    ended: float | None = None  # None: it is running
    exit_code: int | None = None  # negative: ended by that signal; None: running, or gone and unknown
    stopping: bool = False  # it was told to end
    last_lines: tuple[str, ...] = ()  # of its log, once it has ended
    pid: int = 0
    log: str = ""  # where its log lies
    # Why it ended (or ends, if it is stopping), where a cluster knows more than the exit code:
    # OOMKilled | Evicted | Preempted | NodeLost | Deleted | StartError
    reason: str = ""
    problem: PodProblem | None = None  # while it does not start
    begun: float | None = 0.0  # when its program began, if that was after `started`; None: it does not run yet
    ready: bool = False  # the kubelet says that it answers; always False on one machine
    leaves: Departure | None = None  # its node will not keep it

    @property
    def name(self) -> str:
        """Name of the process, as in its `ProcessSpec`."""
        return self.spec.name

    @property
    def running(self) -> bool:
        """Whether it has not ended yet."""
        return self.ended is None


@dataclass(frozen=True)
class MemberView:
    """A member of the job, as the coordinator sees it."""

    name: str
    role: str
    state: str  # a `MemberState` of the runtime
    message: str = ""
    stage: int | None = None
    index: int = 0
    pool: str = ""
    batch_size: int = 0  # samples of each step that are its share
    step_seconds: float = 0.0
    compute_seconds: float = 0.0
    wait_seconds: float = 0.0
    operations_per_second: float = 0.0  # 0: not measured, as the following
    memory_bytes: float = 0.0
    round_trip_seconds: float = 0.0  # from its gradients to the answers of the servers
    silent_seconds: float | None = None  # since a process of this name was heard from; None: none ever was

    @classmethod
    def from_json(cls, value: Json) -> MemberView:
        """Read an entry of `members` of the coordinator's status."""
        stage, silent, totals = value.get("stage"), value.get("silentSeconds"), value.get("totals") or {}
        batch_size, compute = int(value.get("batchSize") or 0), float(value.get("computeSeconds") or 0.0)
        operations = float(totals.get("operations") or 0.0)  # of a sample
        speed = batch_size * operations / compute if compute else 0.0
        return cls(
            name=str(value["name"]),
            role=str(value.get("role", "")),
            state=str(value.get("state", "absent")),
            message=str(value.get("message") or ""),
            stage=None if stage is None else int(stage),
            index=int(value.get("index") or 0),
            pool=str(value.get("pool") or ""),
            batch_size=batch_size,
            step_seconds=float(value.get("stepSeconds") or 0.0),
            compute_seconds=compute,
            wait_seconds=float(value.get("waitSeconds") or 0.0),
            operations_per_second=speed if math.isfinite(speed) else 0.0,
            memory_bytes=float(totals.get("memory") or 0.0),
            round_trip_seconds=float(totals.get("round-trip") or 0.0),
            silent_seconds=None if silent is None else float(silent),
        )


@dataclass(frozen=True)
class CoordinatorView:
    """The coordinator's `GET /v1/status`; absent keys read as nothing known yet."""

    phase: str
    document: Json = field(default_factory=dict)  # the whole answer, for displays and reports
    members: tuple[MemberView, ...] = ()
    committed_steps: int = 0
    total_steps: int = 0
    samples_per_second: float = 0.0  # a mean over about ten seconds
    measured: float | None = None  # when that was, by the coordinator's clock; None: now
    message: str = ""
    error: Json | None = None  # {"reason", "message"}

    @classmethod
    def from_json(cls, value: Json) -> CoordinatorView:
        """Read the answer of the coordinator."""
        return cls(
            phase=str(value["phase"]),
            document=value,
            members=tuple(MemberView.from_json(m) for m in value.get("members") or ()),
            committed_steps=int(value.get("committedSteps") or 0),
            total_steps=int(value.get("totalSteps") or 0),
            samples_per_second=float(value.get("samplesPerSecond") or 0.0),
            measured=value.get("time"),
            message=str(value.get("message") or ""),
            error=value.get("error") or None,
        )

    @property
    def final(self) -> bool:
        """Whether the coordinator has ended the job, for whatever reason."""
        return self.phase in FINAL_PHASES

    @property
    def hung(self) -> bool:
        """Whether the coordinator gave up because there was no progress; a restart may help."""
        return self.phase == JobPhase.FAILED and (self.error or {}).get("reason") == REASON_HANG

    def member(self, name: str) -> MemberView | None:
        """The member of that name, or None if the coordinator does not know it."""
        return self._by_name.get(name)

    @cached_property
    def _by_name(self) -> Mapping[str, MemberView]:
        return {member.name: member for member in reversed(self.members)}  # of two with one name, the first


@dataclass(frozen=True)
class Place:
    """The place of a job among those that wait for units."""

    number: int  # 1: the first
    pool: str  # for which most jobs are ahead
    behind: str = ""  # the last job ahead, NAMESPACE/NAME
    priority: int = 0  # of that one


@dataclass(frozen=True)
class PoolCapacity:
    """What the device pools have for a job. A pool that is absent has no limit."""

    free_units: Mapping[str, int] = field(default_factory=dict)  # by pool: what other jobs, and those ahead, leave
    most_units: Mapping[str, int] = field(default_factory=dict)  # by pool: what the job could hold if it were alone
    # By pool: what would be free if the job held nothing. Less than what the job holds: the pool has shrunk.
    room: Mapping[str, int] = field(default_factory=dict)
    holders: Mapping[str, tuple[tuple[str, int], ...]] = field(default_factory=dict)  # by pool: other jobs, their units
    # By pool: what the jobs of the namespace may hold together, if that leaves less than the pool has.
    namespace_limits: Mapping[str, int] = field(default_factory=dict)
    place: Place | None = None  # in the line of waiting jobs
    apart: Mapping[str, frozenset[str]] = field(default_factory=dict)  # by pool: those that it shares no node with

    def fits(self, units: Mapping[str, int]) -> bool:
        """Whether other jobs leave so many units, by pool."""
        return all(number <= self.free_units.get(pool, number) for pool, number in units.items())


@dataclass(frozen=True)
class QuotaRequest:
    """A request for quota, as the job's queue sees it: it admits all processes of a request together, or none."""

    name: str  # unique among the requests of a job; `control.queueing` makes it
    processes: frozenset[str] = frozenset()  # names of those that it covers; without those that were given back
    reserved: bool = False  # its quota counts as used
    admitted: bool = False  # the processes may start
    evicted: bool = False  # the queue wants the quota back
    inactive: bool = False  # the queue does not consider it until an administrator wants it to
    message: str = ""  # why it waits, or why the queue wants the quota back

    @property
    def grants(self) -> bool:
        """Whether its processes may run."""
        return self.admitted and not self.evicted


@dataclass(frozen=True)
class Observed:
    """A snapshot of everything that `reconcile` may know."""

    time: float
    status: Status  # of the last decision
    processes: tuple[ProcessView, ...] = ()
    coordinator: CoordinatorView | None = None  # None: it does not answer (or does not run)
    last_contact: float | None = None  # when the running coordinator last answered
    silence: str = ""  # what asking it led to when it did not answer last
    accepted: frozenset[str] = frozenset()  # one-time requests that the running coordinator has taken: plan-1, stop
    refused: Mapping[str, str] = field(default_factory=dict)  # those that it refused, and why
    profiles: Mapping[str, Json] = field(default_factory=dict)  # by pool: measured now or kept from before
    cached_profiles: frozenset[str] = frozenset()  # the pools among them that are stored
    planning: bool = False  # a planner is at work
    outcome: PlanOutcome | None = None  # what the planner answered
    stop_requested: bool = False  # the job is to end now, resumable
    capacity: PoolCapacity = field(default_factory=PoolCapacity)
    prices: Mapping[str, PriceHistory] = field(default_factory=dict)  # by pool, of those whose price may change
    quota: tuple[QuotaRequest, ...] | None = None  # the job's requests to its queue; None: it has no queue
    changed_plan: JobPlan | None = None  # of a spec that has just changed, to change to while the job trains

    def process(self, name: str) -> ProcessView | None:
        """The latest process of that name."""
        return self._by_name.get(name)

    @cached_property
    def _by_name(self) -> Mapping[str, ProcessView]:
        return {process.name: process for process in reversed(self.processes)}  # of two with one name, the first


def plan_request(revision: int) -> str:
    """Name in `Observed.accepted` of the request to carry out this revision of the plan."""
    return f"plan-{revision}"


# --- actions ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StartProcess:
    """Start this process."""

    spec: ProcessSpec


@dataclass(frozen=True)
class StopProcess:
    """Ask a process to end (SIGTERM), and end it after the grace (SIGKILL)."""

    name: str
    grace_seconds: float


@dataclass(frozen=True)
class RequestQuota:
    """Ask the job's queue to admit these processes, in place of an earlier request of that name."""

    name: str
    processes: tuple[ProcessSpec, ...]
    active: bool = True  # False: an administrator has taken the job out of the queue


@dataclass(frozen=True)
class ReclaimQuota:
    """Give back the quota of some processes of a request."""

    name: str
    processes: frozenset[str]


@dataclass(frozen=True)
class ReturnQuota:
    """Withdraw a request, and give back what is left of its quota."""

    name: str


@dataclass(frozen=True)
class SaveProfile:
    """Keep a pool's measured profile for later runs."""

    pool: str
    profile: Json


@dataclass(frozen=True)
class ComputePlan:
    """Let the planner solve this problem (docs/cli.md, "A planning problem")."""

    problem: Json
    revision: int = 1  # that the plan will have
    stages: tuple[Json, ...] = ()  # only provision these, as `scheduling.stages` of a job; empty: as the job wants


@dataclass(frozen=True)
class SubmitPlan:
    """Give the coordinator the plan to carry out."""

    plan: JobPlan
    revision: int = 1
    precision: str | None = None  # of the job, if the planner has chosen it

    @property
    def request(self) -> str:
        """Name of this request in `Observed.accepted`."""
        return plan_request(self.revision)


@dataclass(frozen=True)
class SubmitAllocation:
    """Give the coordinator new batch sizes: per stage, samples per worker."""

    batches: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class ReportLost:
    """Tell the coordinator that a member's process is dead, before its own timeout finds out."""

    member: str
    reason: str


@dataclass(frozen=True)
class RequestStop:
    """Ask for an orderly stop: checkpoint, then the members end."""


@dataclass(frozen=True)
class FailJob:
    """Tell the coordinator that the job has failed: the members end."""

    reason: str
    message: str


@dataclass(frozen=True)
class Shutdown:
    """End the coordinator itself; sent last."""


Action = (
    StartProcess
    | StopProcess
    | RequestQuota
    | ReclaimQuota
    | ReturnQuota
    | SaveProfile
    | ComputePlan
    | SubmitPlan
    | SubmitAllocation
    | ReportLost
    | RequestStop
    | FailJob
    | Shutdown
)


@dataclass(frozen=True)
class Decision:
    """What is to be done now, and what is to be remembered."""

    status: Status
    actions: tuple[Action, ...] = ()
    events: tuple[Event, ...] = ()  # what changed with this decision, for people
