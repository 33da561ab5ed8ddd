"""Which processes a job should have: pure, from the plan alone."""

from __future__ import annotations

from heterps_operator.api.job import JobSpec
from heterps_operator.state.values import ProcessSpec
from heterps_runtime.contract import PlanDocument, ps_name, worker_name

__all__ = ["COORDINATOR", "coordinator", "members", "profiler", "units_by_pool"]

COORDINATOR = "coordinator"


def coordinator() -> ProcessSpec:
    """The coordinator: not charged, as no plan counts it (it uses a small part of a core)."""
    return ProcessSpec(COORDINATOR, "coordinator")


def profiler(job: JobSpec, pool_name: str) -> ProcessSpec:
    """The process that measures the model's layers on a pool; it occupies a pod's units while it does."""
    pool = job.pool(pool_name)
    return ProcessSpec(
        f"profile-{pool_name}", "profile", ("--pool", pool_name), pool_name, pool.units_per_pod, pool.threads
    )


def units_by_pool(plan: PlanDocument) -> dict[str, int]:
    """Units that a plan takes of each pool."""
    units = {plan.parameterServer.pool: plan.parameterServer.units}
    for stage in plan.stages:
        units[stage.pool] = units.get(stage.pool, 0) + stage.units
    return units


def members(job: JobSpec, plan: PlanDocument) -> tuple[ProcessSpec, ...]:
    """Servers and workers of a plan, in the order in which they are started."""
    servers = plan.parameterServer
    result = []
    for index in range(servers.replicas):
        # Whole units, shared out as evenly as they go.
        units = servers.units // servers.replicas + (index < servers.units % servers.replicas)
        arguments = ("--index", str(index), "--pool", servers.pool)
        result.append(ProcessSpec(ps_name(index), "ps", arguments, servers.pool, units, max(1, units)))
    for number, stage in enumerate(plan.stages):
        pool = job.pool(stage.pool)
        for index in range(stage.pods):
            place = ("--stage", str(number), "--index", str(index), "--pool", stage.pool)
            result.append(
                ProcessSpec(worker_name(number, index), "worker", place, stage.pool, pool.units_per_pod, pool.threads)
            )
    return tuple(result)
