"""The job as the control loop reads it: typed manifests.

Manifests are validated and completed with defaults before (manifest.py), so nothing here has a default.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import StrEnum
from typing import Any

from heterps_operator.api.quantity import parse_quantity
from heterps_operator.documents import Json
from heterps_runtime.contract import AUTO, DenseExchange, Role

__all__ = ["Balancing", "Elasticity", "FailureAction", "FailureRule", "JobSpec", "PoolSpec", "RunPolicy"]

# Roles of processes by their names in the API.
_ROLES = {"Coordinator": Role.COORDINATOR, "ParameterServer": Role.PS, "Worker": Role.WORKER, "Profiler": Role.PROFILE}


@dataclass(frozen=True)
class PoolSpec:
    """A device pool with this job's limits."""

    name: str
    device_type: str  # CPU | GPU | XPU
    price_per_unit_hour: Decimal
    max_units: int | None  # the smaller of the pool's and the job's limit; None: no limit
    units_per_pod: int
    autoscaled: bool = False  # nodes come when pods wait for them
    interruptions_per_unit_hour: float = 0.0  # how often the provider takes a unit back
    memory_bytes_per_pod: float | None = None  # of the node, or of the card; None: the pool does not say

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
    role: Role | None = None  # None: all
    exit_codes: frozenset[int] = frozenset()  # as in a shell: 137 for SIGKILL
    reasons: frozenset[str] = frozenset()  # values of `ProcessView.reason`


@dataclass(frozen=True)
class RunPolicy:
    """When to wait, retry and give up."""

    suspend: bool
    backoff_limit: int  # restarts; one more death fails the job
    start_deadline_seconds: float | None  # for profiling, and for all members to be ready; None: no limit
    active_deadline_seconds: float | None  # for the whole job; None: no limit
    hang_timeout_seconds: float  # without an answer, or without progress
    cordon_policy: str  # Move | Stay: what a job does whose node is cordoned
    disruption_budgets: str  # Enabled | Disabled: whether its pods are protected from evictions
    ttl_seconds_after_finished: float | None  # then the job is deleted; None: never
    clean_pod_policy: str  # pods to delete when the job ends: None | Running | All
    failure_rules: tuple[FailureRule, ...]  # the first match applies


@dataclass(frozen=True)
class Balancing:
    """How the batch is divided among the workers of a stage."""

    policy: str
    interval_seconds: float
    min_gain_percent: float
    seed: int  # of the policy `random`: the seed of training


@dataclass(frozen=True)
class Elasticity:
    """Whether the number of units follows the measured throughput."""

    mode: str  # Auto | Disabled
    cooldown_seconds: float  # between two changes
    max_scale_down_percent: float  # of a stage's units, in one change
    workers: int | None  # total of all stages, set by a user or an autoscaler; None: the floor decides
    price_policy: str  # Move | Stay: what a running job does when prices change


@dataclass(frozen=True)
class JobSpec:
    """The fields of a HeterPSJob and its DevicePools that `reconcile` reads."""

    name: str
    pools: tuple[PoolSpec, ...]
    global_batch_size: int
    micro_batches: int
    consistency: str  # sync | hybrid | async
    precision: str  # Auto: one of the next
    allowed_precisions: tuple[str, ...]  # empty: precision is not Auto
    dense_exchange: DenseExchange | None  # of stages on CPU pools; None: the planner has yet to choose
    any_exchange: bool  # denseExchange is Auto, and makes a difference
    goal: str  # train | plan (only plan) | profile (only measure)
    paused: bool
    epochs: int | None  # either epochs or steps is set
    steps: int | None
    min_samples_per_second: float  # 0: no floor
    max_cost_per_hour: Decimal | None  # dollars; None: no limit
    method: str
    planner_timeout_seconds: float
    stages_by_hand: tuple[Json, ...]  # empty: the planner chooses
    server_replicas: int | None  # None: the planner decides
    replication: int  # number of servers that hold each row
    checkpoint_steps: int  # between two checkpoints
    server_memory_bytes: Decimal | None  # limit of one server's pod; None: no limit
    run_policy: RunPolicy
    balancing: Balancing
    elasticity: Elasticity

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

    def exchange_on(self, pool: PoolSpec) -> DenseExchange:
        """Return how workers on a pool exchange the gradients of dense parameters."""
        if pool.device_type != "CPU":
            return DenseExchange.of_pool(pool.device_type)
        assert self.dense_exchange is not None, "the planner has yet to choose"
        return self.dense_exchange

    @property
    def chooses_exchange(self) -> bool:
        """Whether the planner has yet to choose how stages on CPU pools exchange the gradients of dense parameters."""
        return self.dense_exchange is None

    def in_exchange(self, chosen: DenseExchange) -> JobSpec:
        """Return the job with the exchange that was chosen for it, if there was a choice."""
        return replace(self, dense_exchange=chosen) if self.any_exchange else self

    @property
    def chooses_precision(self) -> bool:
        """Whether the planner has yet to choose the precision."""
        return self.precision == AUTO

    def in_precision(self, chosen: str) -> JobSpec:
        """Return the job in the precision that was chosen for it; empty: none was chosen, or there was no choice."""
        return replace(self, precision=chosen) if chosen and self.allowed_precisions else self

    def priced(self, prices: Mapping[str, Decimal]) -> JobSpec:
        """Return the job with these prices of its pools; pools that are absent keep theirs."""
        pools = tuple(
            replace(pool, price_per_unit_hour=prices.get(pool.name, pool.price_per_unit_hour)) for pool in self.pools
        )
        return replace(self, pools=pools)

    @property
    def prices(self) -> dict[str, Decimal]:
        """Price per unit and hour, by pool name."""
        return {pool.name: pool.price_per_unit_hour for pool in self.pools}

    @classmethod
    def from_manifests(cls, job: Json, pools: Iterable[Json], goal: str | None = None) -> JobSpec:
        """Read validated manifests with their defaults.

        Args:
            job: the HeterPSJob.
            pools: the DevicePools; those that the job does not name are ignored.
            goal: replaces the goal that `spec.mode` sets.
        """
        spec = job["spec"]
        by_name = {pool["metadata"]["name"]: pool["spec"] for pool in pools}
        training, objective, scheduling = spec["training"], spec["objective"], spec["scheduling"]
        policy, balancing, elasticity = spec["runPolicy"], spec["balancing"], spec["elasticity"]
        servers, cost = spec["parameterServer"], objective.get("maxCostPerHour")
        memory = servers.get("memoryLimit")
        exchange = DenseExchange.of_job(training["denseExchange"], encrypted=spec["encryption"] == "Required")
        if all(by_name[entry["name"]]["deviceType"] != "CPU" for entry in spec["pools"]):
            exchange = exchange or DenseExchange.ALL_REDUCE  # that of all its stages
        return cls(
            name=job["metadata"]["name"],
            pools=tuple(_pool(entry, by_name[entry["name"]]) for entry in spec["pools"]),
            global_batch_size=training["globalBatchSize"],
            micro_batches=training["microBatches"],
            consistency=training["consistency"],
            precision=training["precision"],
            allowed_precisions=tuple(training.get("allowedPrecisions", ())),
            dense_exchange=exchange,
            any_exchange=exchange is None,
            goal=goal or ("plan" if spec["mode"] == "Plan" else "train"),
            paused=spec["paused"],
            epochs=training.get("epochs"),
            steps=training.get("steps"),
            min_samples_per_second=float(objective["minSamplesPerSecond"]),
            max_cost_per_hour=None if cost is None else Decimal(str(cost)),
            method=scheduling["method"],
            planner_timeout_seconds=float(scheduling["timeoutSeconds"]),
            stages_by_hand=tuple(scheduling["stages"]),
            server_replicas=servers.get("replicas"),
            replication=servers["replication"],
            checkpoint_steps=int(spec["checkpoint"]["everySteps"]),
            server_memory_bytes=None if memory is None else parse_quantity(memory),
            run_policy=RunPolicy(
                suspend=policy["suspend"],
                backoff_limit=policy["backoffLimit"],
                start_deadline_seconds=_number(policy.get("startDeadlineSeconds")),
                cordon_policy=str(policy["cordonPolicy"]),
                disruption_budgets=str(policy["disruptionBudgets"]),
                active_deadline_seconds=_number(policy.get("activeDeadlineSeconds")),
                hang_timeout_seconds=float(policy["hangTimeoutSeconds"]),
                ttl_seconds_after_finished=_number(policy.get("ttlSecondsAfterFinished")),
                clean_pod_policy=policy["cleanPodPolicy"],
                failure_rules=tuple(_failure_rule(rule) for rule in policy["failurePolicy"]["rules"]),
            ),
            balancing=Balancing(
                policy=balancing["policy"],
                interval_seconds=float(balancing["intervalSeconds"]),
                min_gain_percent=float(balancing["minGainPercent"]),
                seed=training["seed"],
            ),
            elasticity=Elasticity(
                mode=elasticity["mode"],
                cooldown_seconds=float(elasticity["cooldownSeconds"]),
                max_scale_down_percent=float(elasticity["maxScaleDownPercent"]),
                workers=elasticity["workers"] or None,
                price_policy=str(elasticity["pricePolicy"]),
            ),
        )


def _failure_rule(rule: Json) -> FailureRule:
    return FailureRule(
        FailureAction(rule["action"]),
        _ROLES[rule["role"]] if "role" in rule else None,
        frozenset(rule.get("exitCodes") or ()),
        frozenset(rule.get("reasons") or ()),
    )


def _pool(entry: Mapping[str, Any], spec: Mapping[str, Any]) -> PoolSpec:
    limits = [int(limit) for limit in (entry.get("maxUnits"), spec.get("maxUnits")) if limit is not None]
    memory = spec.get("memoryPerUnit")
    return PoolSpec(
        name=entry["name"],
        device_type=spec["deviceType"],
        price_per_unit_hour=Decimal(str(spec["pricePerUnitHour"])),
        max_units=min(limits, default=None),
        units_per_pod=spec["unitsPerPod"],
        autoscaled=bool(spec.get("autoscaled")),
        interruptions_per_unit_hour=float((spec.get("spot") or {}).get("interruptionsPerUnitHour", 0)),
        memory_bytes_per_pod=None if memory is None else float(parse_quantity(memory) * spec["unitsPerPod"]),
    )


def _number(value: Any) -> float | None:
    return None if value is None else float(value)
