"""A world of values for `reconcile`: actions take effect at once, everything else happens when a test requests it."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

from heterps_operator.api.defaults import complete_job
from heterps_operator.api.job import JobSpec, PoolSpec
from heterps_operator.api.schema import load_schemas
from heterps_operator.control.reconcile import reconcile
from heterps_operator.state.plan import JobPlan, PlanOutcome
from heterps_operator.state.prices import PriceHistory
from heterps_operator.state.status import Event, Status
from heterps_operator.state.values import (
    Action,
    ComputePlan,
    CoordinatorView,
    Decision,
    FailJob,
    Observed,
    PoolCapacity,
    ProcessView,
    QuotaRequest,
    ReclaimQuota,
    ReportLost,
    RequestQuota,
    RequestStop,
    ReturnQuota,
    SaveProfile,
    Shutdown,
    StartProcess,
    StopProcess,
    SubmitAllocation,
    SubmitPlan,
)
from heterps_runtime.contract import API_VERSION

POOLS = (PoolSpec("cpu", "CPU", Decimal("0.04"), 8, 1), PoolSpec("gpu", "GPU", Decimal("2.42"), 2, 1))
PLAN: dict[str, Any] = {
    "version": 1,
    "method": "optimal",
    "feasible": True,
    "stages": [
        {"name": "stage-0", "pool": "cpu", "firstLayer": 0, "lastLayer": 0, "layers": ["embedding"], "units": 2,
         "pods": 2},
        {"name": "stage-1", "pool": "gpu", "firstLayer": 1, "lastLayer": 2, "layers": ["mlp", "head"], "units": 1,
         "pods": 1},
    ],
    "parameterServer": {"pool": "cpu", "replicas": 1, "units": 1},
    "throughput": 52_000.0,
    "costPerHour": 2.54,
    "cost": 0.01,
}  # fmt: skip
JOB_PLAN = JobPlan.from_json(PLAN)
MEMBERS = ("ps-0", "worker-0-0", "worker-0-1", "worker-1-0")
PROFILE: dict[str, Any] = {
    "version": 1,
    "batchSize": 512,
    "samples": 10_000,
    "layers": [
        {"name": name, "kind": "Linear", "computeSeconds": 0.01, "parallelFraction": 0.9, "spread": 0.01}
        for name in ("embedding", "mlp", "head")
    ],
    "stage": {"stageSeconds": 0.001, "stageParallelFraction": 0.0, "stageFixedSeconds": 0.001},
    "measured": {"threads": [1, 2]},
    "warnings": [],
}


def defaulted_job() -> JobSpec:
    """A job with the defaults of the CRD."""
    spec: dict[str, Any] = {
        "model": {"entrypoint": "model:build"},
        "data": {"format": "csv", "train": "train.csv", "label": "label"},
        "training": {"globalBatchSize": 512},
        "pools": [],
    }
    schema = load_schemas()["HeterPSJob"]
    job = {"apiVersion": API_VERSION, "kind": "HeterPSJob", "metadata": {"name": "tiny"}, "spec": spec}
    return JobSpec.from_manifests(complete_job(schema.with_defaults(job)), ())


def make_job(**changes: Any) -> JobSpec:
    """The job of most tests. Settings of `run_policy`, `balancing` and `elasticity` may be given as dictionaries."""
    job = defaulted_job()
    given: dict[str, Any] = {"min_samples_per_second": 20_000.0, "run_policy": {"backoff_limit": 2}, **changes}
    for name in ("run_policy", "balancing", "elasticity"):
        given[name] = replace(getattr(job, name), **given.get(name, {}))
    return replace(job, **{"pools": POOLS, **given})


class World:
    """Holds the content of `Observed` and applies actions."""

    def __init__(self, job: JobSpec | None = None, status: Status | None = None) -> None:
        self.job = job or make_job()
        self.time = 1_000.0
        self.status = status or Status()
        self.processes: dict[str, ProcessView] = {}
        self.document: dict[str, Any] | None = None
        self.answers = True
        self.last_contact: float | None = None
        self.accepted: set[str] = set()
        self.refused: dict[str, str] = {}
        self.profiles: dict[str, Any] = {}
        self.cached: frozenset[str] = frozenset()
        self.planning = False
        self.outcome: PlanOutcome | None = None
        self.asked = 1  # revision of the plan that the planner computes
        self.stop_requested = False
        self.free_units: dict[str, int] = {}
        self.most_units: dict[str, int] = {}
        self.room: dict[str, int] = {}
        self.holders: dict[str, tuple[tuple[str, int], ...]] = {}
        self.apart: dict[str, frozenset[str]] = {}
        self.prices: dict[str, PriceHistory] = {}  # of pools whose price may change
        self.quota: dict[str, QuotaRequest] | None = None  # the requests of a job in a queue
        self.actions: list[Action] = []
        self.events: list[Event] = []

    # --- the loop ---

    def observed(self) -> Observed:
        view = CoordinatorView.from_json(self.document) if self.document is not None and self.answers else None
        if view is not None:
            self.last_contact = self.time
        return Observed(
            time=self.time,
            status=self.status,
            processes=tuple(self.processes.values()),
            coordinator=view,
            last_contact=self.last_contact,
            silence="" if self.answers else "GET /v1/status: no answer",
            accepted=frozenset(self.accepted),
            refused=dict(self.refused),
            profiles=dict(self.profiles),
            cached_profiles=self.cached,
            planning=self.planning,
            outcome=self.outcome,
            stop_requested=self.stop_requested,
            capacity=PoolCapacity(
                dict(self.free_units),
                dict(self.most_units),
                dict(self.room),
                dict(self.holders),
                apart=dict(self.apart),
            ),
            prices=dict(self.prices),
            quota=None if self.quota is None else tuple(self.quota.values()),
        )

    def turn(self) -> Decision:
        observed = self.observed()
        job = self.job.priced({pool: history[-1].price for pool, history in self.prices.items()})
        decision = reconcile(job, observed)
        assert reconcile(job, observed) == decision, "the same observation gives the same decision"
        self.status = decision.status
        self.events += decision.events
        self.actions += decision.actions
        for action in decision.actions:
            self._apply(action)
        return decision

    def settle(self) -> list[Action]:
        """Run turns until nothing is left to do; return the actions."""
        done: list[Action] = []
        for _ in range(20):
            decision = self.turn()
            done += decision.actions
            if not decision.actions:
                break
        else:
            raise AssertionError(f"does not come to rest: {done[-3:]}")
        before = self.status
        assert self.turn().actions == (), "at rest, another look does nothing"
        assert self.status == before, "at rest, another look changes nothing"
        return done

    def _apply(self, action: Action) -> None:
        match action:
            case StartProcess(spec):
                old = self.processes.get(spec.name)
                assert old is None or not old.running, f"{spec.name} runs already"
                assert spec.role == "coordinator" or self.document is not None, f"{spec.name} needs a coordinator"
                granted = [request.processes for request in (self.quota or {}).values() if request.grants]
                assert self.quota is None or any(spec.name in names for names in granted), f"{spec.name} has no quota"
                self.processes[spec.name] = ProcessView(spec, self.time, pid=len(self.actions))
                if spec.role == "coordinator":
                    self.last_contact = None
                    self.accepted.clear()
            case StopProcess(name, grace_seconds):
                process = self.processes[name]
                assert grace_seconds > 0
                assert process.running
                assert not process.stopping, f"{name} is told to end twice"
                self.processes[name] = replace(process, stopping=True)
            case RequestQuota(name, specs, active):
                assert self.quota is not None
                self.quota[name] = QuotaRequest(name, frozenset(spec.name for spec in specs), inactive=not active)
            case ReclaimQuota(name, processes):
                assert self.quota is not None
                request = self.quota[name]
                self.quota[name] = replace(request, processes=request.processes - processes)
            case ReturnQuota(name):
                assert self.quota is not None
                del self.quota[name]
            case SaveProfile(pool, _):
                self.cached |= {pool}
            case ComputePlan(_, revision, _):
                self.asked = revision
                assert not self.planning
                self.planning = True
                self.outcome = None
            case SubmitPlan(plan):
                assert self.document is not None
                self.accepted.add(action.request)
                if self.document["phase"] == "Profiling":
                    self.document |= {"phase": "Starting", "members": self.make_members(plan)}
                else:  # the others keep their values
                    known = {m["name"]: m for m in self.document["members"]}
                    members = [known.get(m["name"], m) for m in self.make_members(plan)]
                    self.document |= {"members": members}
            case SubmitAllocation(batches):
                assert self.document is not None
                for member in self.document["members"]:
                    if member["role"] == "worker":
                        member["batchSize"] = batches[member["stage"]][member["index"]]
            case ReportLost(member, _):
                self.member(member)["state"] = "lost"
            case RequestStop():
                self.accepted.add("stop")
            case FailJob(reason, message):
                assert self.document is not None
                self.accepted.add("fail")
                self.document |= {"phase": "Failed", "error": {"reason": reason, "message": message}}
            case Shutdown():
                self.accepted.add("shutdown")

    # --- what happens by itself ---

    @staticmethod
    def make_members(plan: JobPlan) -> list[dict[str, Any]]:
        members: list[dict[str, Any]] = [
            {"name": f"ps-{i}", "role": "ps", "state": "absent", "silentSeconds": 0.5}
            for i in range(plan.servers.replicas)
        ]
        for s, pods in enumerate(plan.pods):
            for i in range(pods):
                members.append(
                    {"name": f"worker-{s}-{i}", "role": "worker", "state": "absent", "stage": s, "index": i,
                     "batchSize": 512 // pods, "stepSeconds": 0.1, "computeSeconds": 0.05,
                     "silentSeconds": 0.5}
                )  # fmt: skip
        return members

    def member(self, name: str) -> dict[str, Any]:
        assert self.document is not None
        found: dict[str, Any] = next(m for m in self.document["members"] if m["name"] == name)
        return found

    def listen(self) -> None:
        """Let the coordinator start to answer."""
        self.document = {"phase": "Profiling", "committedSteps": 0, "totalSteps": 100, "members": []}

    def deliver(self, pool: str) -> None:
        """Let a profiler deliver and end."""
        self.profiles[pool] = PROFILE
        self.end(f"profile-{pool}", 0)

    def answer(self, document: dict[str, Any] | None = None, error: str = "") -> None:
        """Let the planner answer."""
        self.planning = False
        if document is None:
            self.outcome = PlanOutcome(error=error, revision=self.asked)
        else:
            self.outcome = PlanOutcome.from_json(document, self.asked)

    def end(self, name: str, code: int | None, last_lines: tuple[str, ...] = ("last words",), reason: str = "") -> None:
        """End a process."""
        process = self.processes[name]
        assert process.running
        self.processes[name] = replace(process, ended=self.time, exit_code=code, last_lines=last_lines, reason=reason)
        if name == "coordinator":
            self.document = None

    def admit(self, name: str) -> None:
        """Let the queue admit a request."""
        assert self.quota is not None
        self.quota[name] = replace(self.quota[name], reserved=True, admitted=True, message="")

    def evict(self, name: str, message: str, *, inactive: bool = False) -> None:
        """Let the queue want the quota of an admitted request back."""
        assert self.quota is not None
        self.quota[name] = replace(self.quota[name], evicted=True, message=message, inactive=inactive)

    def join(self, *names: str) -> None:
        """Let members report to the coordinator."""
        for name in names:
            self.member(name)["state"] = "ready"

    def set_phase(self, phase: str, **facts: Any) -> None:
        assert self.document is not None
        self.document |= {"phase": phase, **facts}

    def running(self) -> set[str]:
        return {name for name, process in self.processes.items() if process.running}

    # --- the way there ---

    def profiled(self) -> World:
        self.settle()
        self.listen()
        self.settle()
        for pool in self.job.pools:
            self.deliver(pool.name)
            self.settle()
        return self

    def planned(self) -> World:
        self.profiled()
        self.answer(PLAN)
        self.settle()
        return self

    def training(self) -> World:
        self.planned()
        return self.train()

    def train(self) -> World:
        """Let all members report, and the training begin."""
        self.join(*MEMBERS)
        self.set_phase("Training", committedSteps=1, samplesPerSecond=50_000.0)
        self.settle()
        return self
