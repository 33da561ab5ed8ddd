"""The job as the control loop reads it: typed manifests.

Manifests are validated and completed with defaults before they come here (manifest.py); the defaults below equal those
of the schema and serve manifests built by programs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from enum import StrEnum
from typing import Any

from heterps_operator.documents import Json

__all__ = ["Balancing", "Elasticity", "FailureAction", "FailureRule", "JobSpec", "PoolSpec", "RunPolicy"]

# Roles of processes by their names in the API.
_ROLES = {"Coordinator": "coordinator", "ParameterServer": "ps", "Worker": "worker", "Profiler": "profile"}


@dataclass(frozen=True)
class PoolSpec:
    """A device pool with this job's limits."""

    name: str
    device_type: str  # CPU | GPU | XPU
    price_per_unit_hour: Decimal
    max_units: int | None  # the smaller of the pool's and the job's limit; None: no limit
    units_per_pod: int = 1

    @property
    def threads(self) -> int:
        """Threads of one process: a unit of a CPU pool is one thread on this machine."""
        return self.units_per_pod if self.device_type == "CPU" else 1


class FailureAction(StrEnum):
    """What the end of a process leads to."""

    RESTART_POD = "RestartPod"
    RESTART_JOB = "RestartJob"
    FAIL_JOB = "FailJob"
    IGNORE = "Ignore"  # as by default, without counting towards backoffLimit


@dataclass(frozen=True)
class FailureRule:
    """A rule of `runPolicy.failurePolicy`: the action for processes that end in a certain way."""

    action: FailureAction
    role: str | None = None  # coordinator | ps | worker | profile; None: all
    exit_codes: frozenset[int] = frozenset()  # as in a shell: 137 for SIGKILL
    reasons: frozenset[str] = frozenset()  # values of `ProcessView.reason`


@dataclass(frozen=True)
class RunPolicy:
    """When to wait, retry and give up."""

    suspend: bool = False
    backoff_limit: int = 3  # restarts; one more death fails the job
    start_deadline_seconds: float | None = 900.0  # for profiling, and for all members to be ready
    active_deadline_seconds: float | None = None  # for the whole job
    hang_timeout_seconds: float = 120.0  # without an answer from the coordinator
    ttl_seconds_after_finished: float | None = None  # then the job is deleted; None: never
    clean_pod_policy: str = "Running"  # pods to delete when the job ends: None | Running | All
    failure_rules: tuple[FailureRule, ...] = ()  # the first match applies


@dataclass(frozen=True)
class Balancing:
    """How the batch is divided among the workers of a stage."""

    policy: str = "optimal"
    interval_seconds: float = 10.0
    min_gain_percent: float = 5.0
    seed: int = 0  # of the policy `random`: the seed of training


@dataclass(frozen=True)
class Elasticity:
    """Whether the number of units follows the measured throughput."""

    mode: str = "Auto"  # Auto | Disabled
    cooldown_seconds: float = 60.0  # between two changes
    max_scale_down_percent: float = 25.0  # of a stage's units, in one change
    workers: int | None = None  # total of all stages, set by a user or an autoscaler; None: the floor decides


@dataclass(frozen=True)
class JobSpec:
    """The fields of a HeterPSJob and its DevicePools that `reconcile` reads."""

    name: str
    pools: tuple[PoolSpec, ...]
    global_batch_size: int
    micro_batches: int
    goal: str = "train"  # train | plan (only plan) | profile (only measure)
    paused: bool = False
    epochs: int | None = 1
    steps: int | None = None
    min_samples_per_second: float | None = None
    max_cost_per_hour: Decimal | None = None
    method: str = "optimal"
    planner_timeout_seconds: float = 120.0
    stages_by_hand: tuple[Json, ...] = ()
    server_replicas: int | None = None  # None: the planner decides
    run_policy: RunPolicy = field(default_factory=RunPolicy)
    balancing: Balancing = field(default_factory=Balancing)
    elasticity: Elasticity = field(default_factory=Elasticity)

    def pool(self, name: str) -> PoolSpec:
        """Return the pool of that name, which must be one of the job's."""
        return next(pool for pool in self.pools if pool.name == name)

    def limited(self, free_units: Mapping[str, int]) -> JobSpec:
        """Return the job with pools limited to the units that other jobs leave; absent pools are not shared."""
        pools = [
            replace(pool, max_units=min(free_units[pool.name], pool.max_units or free_units[pool.name]))
            if pool.name in free_units
            else pool
            for pool in self.pools
        ]
        return replace(self, pools=tuple(pools))

    @property
    def prices(self) -> dict[str, Decimal]:
        """Price per unit and hour, by pool name."""
        return {pool.name: pool.price_per_unit_hour for pool in self.pools}

    @classmethod
    def from_manifests(cls, job: Json, pools: Iterable[Json], goal: str | None = None) -> JobSpec:
        """Read validated manifests.

        Args:
            job: the HeterPSJob.
            pools: the DevicePools; those that the job does not name are ignored.
            goal: replaces the goal that `spec.mode` sets.
        """
        spec = job["spec"]
        by_name = {pool["metadata"]["name"]: pool["spec"] for pool in pools}
        training, policy = spec["training"], spec.get("runPolicy") or {}
        objective, scheduling = spec.get("objective") or {}, spec.get("scheduling") or {}
        balancing, elasticity = spec.get("balancing") or {}, spec.get("elasticity") or {}
        cost = objective.get("maxCostPerHour")
        return cls(
            name=job["metadata"]["name"],
            pools=tuple(_pool(entry, by_name[entry["name"]]) for entry in spec["pools"]),
            global_batch_size=int(training["globalBatchSize"]),
            micro_batches=int(training["microBatches"]),
            goal=goal or ("plan" if spec.get("mode") == "Plan" else "train"),
            paused=bool(spec.get("paused", False)),
            epochs=training.get("epochs"),
            steps=training.get("steps"),
            min_samples_per_second=_number(objective.get("minSamplesPerSecond")),
            max_cost_per_hour=None if cost is None else Decimal(str(cost)),
            method=scheduling.get("method", "optimal"),
            planner_timeout_seconds=float(scheduling.get("timeoutSeconds", 120)),
            stages_by_hand=tuple(scheduling.get("stages") or ()),
            server_replicas=(spec.get("parameterServer") or {}).get("replicas"),
            run_policy=RunPolicy(
                suspend=bool(policy.get("suspend", False)),
                backoff_limit=int(policy.get("backoffLimit", 3)),
                start_deadline_seconds=_number(policy.get("startDeadlineSeconds", 900)),
                active_deadline_seconds=_number(policy.get("activeDeadlineSeconds")),
                hang_timeout_seconds=float(policy.get("hangTimeoutSeconds", 120)),
                ttl_seconds_after_finished=_number(policy.get("ttlSecondsAfterFinished")),
                clean_pod_policy=policy.get("cleanPodPolicy", "Running"),
                failure_rules=tuple(
                    FailureRule(
                        FailureAction(rule["action"]),
                        _ROLES[rule["role"]] if "role" in rule else None,
                        frozenset(rule.get("exitCodes") or ()),
                        frozenset(rule.get("reasons") or ()),
                    )
                    for rule in (policy.get("failurePolicy") or {}).get("rules") or ()
                ),
            ),
            balancing=Balancing(
                policy=balancing.get("policy", "optimal"),
                interval_seconds=float(balancing.get("intervalSeconds", 10)),
                min_gain_percent=float(balancing.get("minGainPercent", 5)),
                seed=int(training.get("seed", 0)),
            ),
            elasticity=Elasticity(
                mode=elasticity.get("mode", "Auto"),
                cooldown_seconds=float(elasticity.get("cooldownSeconds", 60)),
                max_scale_down_percent=float(elasticity.get("maxScaleDownPercent", 25)),
                workers=elasticity.get("workers") or None,
            ),
        )


def _pool(entry: Mapping[str, Any], spec: Mapping[str, Any]) -> PoolSpec:
    limits = [int(limit) for limit in (entry.get("maxUnits"), spec.get("maxUnits")) if limit is not None]
    return PoolSpec(
        name=entry["name"],
        device_type=spec["deviceType"],
        price_per_unit_hour=Decimal(str(spec["pricePerUnitHour"])),
        max_units=min(limits, default=None),
        units_per_pod=int(spec.get("unitsPerPod", 1)),
    )


def _number(value: Any) -> float | None:
    return None if value is None else float(value)
