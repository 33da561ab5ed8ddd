"""A job's specification, typed: what the control loop reads, and nothing else.

The manifests stay the truth (they are what processes and pods receive); these are read-only views of valid, completed
ones, so that no code of the loop looks into nested dictionaries or parses a price a second time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from heterps_operator.quantity import parse_bytes, parse_decimal

__all__ = [
    "Balancing",
    "Elasticity",
    "JobSpec",
    "Objective",
    "ParameterServer",
    "Pool",
    "RunPolicy",
    "Scheduling",
    "Stage",
    "Training",
    "read_pool",
    "read_spec",
]


@dataclass(frozen=True)
class Pool:
    """A node pool as far as a job may use it."""

    name: str
    device_type: str  # CPU | GPU | XPU
    torch_device: str  # cpu | cuda | xpu | auto
    resource_name: str
    units_per_pod: int
    max_units: int
    price_per_unit_hour: Decimal


@dataclass(frozen=True)
class Training:
    """The amount of training. Exactly one of `epochs` and `steps` is given."""

    global_batch_size: int
    micro_batches: int
    epochs: int | None
    steps: int | None
    consistency: str  # sync | hybrid | async
    max_staleness: int


@dataclass(frozen=True)
class Objective:
    """What a plan must reach."""

    min_samples_per_second: Decimal  # 0: no floor
    max_cost_per_hour: Decimal | None  # None: no limit


@dataclass(frozen=True)
class Stage:
    """A stage of a plan that is given by hand."""

    pool: str
    last_layer: str
    units: int | None  # None: the planner chooses


@dataclass(frozen=True)
class Scheduling:
    """How layers are assigned to pools."""

    method: str
    timeout_seconds: int
    stages: tuple[Stage, ...]  # empty: the planner decides


@dataclass(frozen=True)
class Balancing:
    """How a batch is divided among the workers of a stage."""

    policy: str  # optimal | bno | equal | random
    interval_seconds: int
    min_gain_percent: int


@dataclass(frozen=True)
class Elasticity:
    """Whether the number of units follows the measured throughput."""

    mode: str  # Auto | Off
    cooldown_seconds: int
    max_scale_down_percent: int


@dataclass(frozen=True)
class ParameterServer:
    """The parameter servers."""

    replicas: int  # 0: the planner chooses
    memory_limit_bytes: int | None  # of one server; None: no limit
    wire_precision: str  # full | fp16 | bf16


@dataclass(frozen=True)
class RunPolicy:
    """When a job starts, gives up and is cleared away."""

    suspend: bool
    backoff_limit: int
    start_deadline_seconds: int
    active_deadline_seconds: int | None  # None: no limit
    ttl_seconds_after_finished: int | None  # None: never deleted
    clean_pod_policy: str  # None | Running | All
    hang_timeout_seconds: int


@dataclass(frozen=True)
class JobSpec:
    """A HeterPSJob and the pools that it names."""

    name: str
    mode: str  # Auto | Plan | Paused
    pools: tuple[Pool, ...]  # in the order of the job
    training: Training
    objective: Objective
    scheduling: Scheduling
    balancing: Balancing
    elasticity: Elasticity
    parameter_server: ParameterServer
    run_policy: RunPolicy
    evaluates: bool  # whether there is evaluation data

    def pool(self, name: str) -> Pool:
        """The pool of that name, one of the job's."""
        return next(pool for pool in self.pools if pool.name == name)


def read_spec(job: Mapping[str, Any], pools: Sequence[Mapping[str, Any]]) -> JobSpec:
    """Read a job.

    Args:
        job: the HeterPSJob, valid and complete.
        pools: the NodePools that it names, valid and complete, with the job's own limits (`Manifest.pools`).
    """
    spec = job["spec"]
    training, objective, scheduling = spec["training"], spec["objective"], spec["scheduling"]
    balancing, elasticity, servers = spec["balancing"], spec["elasticity"], spec["parameterServer"]
    policy = spec["runPolicy"]
    cost = objective.get("maxCostPerHour")
    memory = servers.get("memoryLimit")
    return JobSpec(
        name=job["metadata"]["name"],
        mode=spec["mode"],
        pools=tuple(read_pool(pool) for pool in pools),
        training=Training(
            global_batch_size=training["globalBatchSize"],
            micro_batches=training["microBatches"],
            epochs=training.get("epochs"),
            steps=training.get("steps"),
            consistency=training["consistency"],
            max_staleness=training["maxStaleness"],
        ),
        objective=Objective(
            min_samples_per_second=parse_decimal(objective["minSamplesPerSecond"]),
            max_cost_per_hour=None if cost is None else parse_decimal(cost),
        ),
        scheduling=Scheduling(
            method=scheduling["method"],
            timeout_seconds=scheduling["timeoutSeconds"],
            stages=tuple(
                Stage(stage["pool"], stage["lastLayer"], stage.get("units")) for stage in scheduling["stages"]
            ),
        ),
        balancing=Balancing(
            policy=balancing["policy"],
            interval_seconds=balancing["intervalSeconds"],
            min_gain_percent=balancing["minGainPercent"],
        ),
        elasticity=Elasticity(
            mode=elasticity["mode"],
            cooldown_seconds=elasticity["cooldownSeconds"],
            max_scale_down_percent=elasticity["maxScaleDownPercent"],
        ),
        parameter_server=ParameterServer(
            replicas=servers["replicas"],
            memory_limit_bytes=None if memory is None else parse_bytes(memory),
            wire_precision=servers["wirePrecision"],
        ),
        run_policy=RunPolicy(
            suspend=policy["suspend"],
            backoff_limit=policy["backoffLimit"],
            start_deadline_seconds=policy["startDeadlineSeconds"],
            active_deadline_seconds=policy.get("activeDeadlineSeconds"),
            ttl_seconds_after_finished=policy.get("ttlSecondsAfterFinished"),
            clean_pod_policy=policy["cleanPodPolicy"],
            hang_timeout_seconds=policy["hangTimeoutSeconds"],
        ),
        evaluates="evaluation" in spec["data"],
    )


def read_pool(pool: Mapping[str, Any]) -> Pool:
    """Read a NodePool, valid and complete."""
    spec = pool["spec"]
    return Pool(
        name=pool["metadata"]["name"],
        device_type=spec["deviceType"],
        torch_device=spec["torchDevice"],
        resource_name=spec["resourceName"],
        units_per_pod=spec["unitsPerPod"],
        max_units=spec["maxUnits"],
        price_per_unit_hour=parse_decimal(spec["pricePerUnitHour"]),
    )
