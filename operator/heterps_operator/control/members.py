"""Which processes a job should have: pure, from the plan alone."""

from __future__ import annotations

from heterps_operator.api.job import JobSpec, PoolSpec
from heterps_operator.state.plan import JobPlan
from heterps_operator.state.values import ProcessSpec
from heterps_runtime.contract import DenseExchange, Role, StageDocument, ps_name, worker_name

__all__ = ["COORDINATOR", "coordinator", "members", "profiler"]

COORDINATOR = "coordinator"


def coordinator() -> ProcessSpec:
    """The coordinator: not charged, as no plan counts it (it uses a small part of a core)."""
    return ProcessSpec(COORDINATOR, Role.COORDINATOR)


def profiler(job: JobSpec, pool_name: str) -> ProcessSpec:
    """The process that measures the model's layers on a pool; it occupies a pod's units while it does."""
    pool = job.pool(pool_name)
    return ProcessSpec(f"profile-{pool_name}", Role.PROFILE, pool_name, pool.units_per_pod, pool.threads)


def members(job: JobSpec, plan: JobPlan) -> tuple[ProcessSpec, ...]:
    """Servers and workers of a plan, in the order in which they are started."""
    servers = plan.servers
    precision = job.precision if job.allowed_precisions else None
    result = []
    for index, units in enumerate(plan.server_units):
        name = ps_name(index)
        result.append(ProcessSpec(name, Role.PS, servers.pool, units, max(1, units), index=index, precision=precision))
    for number, stage in enumerate(plan.stages):
        pool = job.pool(stage.pool)
        for index in range(stage.pods):
            name = worker_name(number, index)
            result.append(
                ProcessSpec(
                    name,
                    Role.WORKER,
                    stage.pool,
                    pool.units_per_pod,
                    pool.threads,
                    stage=number,
                    index=index,
                    precision=precision,
                    dense_exchange=_exchange(stage, pool),
                )
            )
    return tuple(result)


def _exchange(stage: StageDocument, pool: PoolSpec) -> str | None:
    """The exchange to tell a worker: only one that it does not assume, as earlier runtimes know no such argument."""
    said = stage.denseExchange
    return None if said in (None, DenseExchange.of_pool(pool.device_type)) else said
