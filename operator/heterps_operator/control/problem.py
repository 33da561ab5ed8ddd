"""From measured profiles to a planning problem.

A pool's profile is what `heterps-runtime profile` measured there. It depends on the model, the columns that it reads
and the batch, not on prices or the throughput floor, so it is kept under a key of the former and serves many plans.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from heterps_operator.api.job import JobSpec, PoolSpec
from heterps_operator.documents import Json
from heterps_operator.state.plan import JobPlan
from heterps_planner.errors import ProblemError, UnknownNameError
from heterps_planner.model.problem import Problem
from heterps_planner.model.segments import build_segments
from heterps_planner.model.servers import ParameterServer
from heterps_planner.plans.plan import choice_of
from heterps_planner.scenarios.variants import EXCHANGES, PRECISIONS
from heterps_planner.search.points import cost_rate
from heterps_runtime.contract import PROFILE_VERSION, DenseExchange, ServersDocument

__all__ = [
    "adapt_problem",
    "build_problem",
    "cost_per_sample",
    "with_running_servers",
]


_STAGE_FACTS = (
    "stageSeconds",
    "stageFixedSeconds",
    "stageParallelFraction",
    "stageProcessorSeconds",
    "stageSerialSeconds",
)
_LAYER_FACTS = ("kind", "inputBytes", "weightBytes", "denseBytes")
_LAYER_TIMES = (
    "computeSeconds",
    "computeFixedSeconds",
    "parallelFraction",
    "serverSeconds",
    "serverFixedSeconds",
    "transferSeconds",
    "transferFixedSeconds",
    "transferParallelFraction",
    "processorSeconds",
    "processorFixedSeconds",
    "transferProcessorSeconds",
    "transferProcessorFixedSeconds",
    "spread",
)
_LAYER_BYTES = ("residentBytes", "activationBytes")
_POD_BYTES = "memoryBytesPerPod"
_USABLE_MEMORY = 0.8  # of a pod's: allocators keep what is freed, and libraries take scratch memory
_SERVER_COST = "coresPerSamplePerSecond"
# Without any limit a planner may take a thousand machines; no pool of one job is larger than this.
_NO_LIMIT_UNITS = 1_000_000


def build_problem(job: JobSpec, profiles: Mapping[str, Json], restart_seconds: float | None = None) -> dict[str, Any]:
    """Merge the profiles of a job's pools into one planning problem (docs/cli.md).

    Args:
        job: names the pools, the floor and how much is trained.
        profiles: by pool; each of the job's pools.
        restart_seconds: measured, of a start from a checkpoint; None: the planner's default counts.

    Returns:
        The problem; one for each variant if the planner has yet to choose.

    Raises:
        ValueError: the profiles do not describe the same layers or the same batch, lack a variant, or are of a newer
            runtime.
    """
    if several := _variants(job):
        key, jobs = several
        return {"version": 1, key: {name: build_problem(one, profiles, restart_seconds) for name, one in jobs.items()}}
    profiles = {pool.name: _of_variant(job, pool, profiles[pool.name]) for pool in job.pools}
    first_pool = job.pools[0].name
    first = profiles[first_pool]
    names = [layer["name"] for layer in first["layers"]]
    for pool in job.pools:
        profile = profiles[pool.name]
        if profile["version"] > PROFILE_VERSION:
            raise ValueError(
                f"profile of pool {pool.name}: has version {profile['version']}, but this operator reads versions "
                f"up to {PROFILE_VERSION}; upgrade the operator before the runtime's image"
            )
        others = [layer["name"] for layer in profile["layers"]]
        if others != names:
            raise ValueError(f"profile of pool {pool.name}: has the layers {others}, pool {first_pool} has {names}")
        if profile["batchSize"] != first["batchSize"]:
            raise ValueError(
                f"profile of pool {pool.name}: measured with {profile['batchSize']} samples per batch, "
                f"pool {first_pool} with {first['batchSize']}"
            )
    rows = int(first["samples"])
    samples = rows * job.epochs if job.steps is None and job.epochs else (job.steps or 0) * job.global_batch_size
    layers = []
    for index, layer in enumerate(first["layers"]):
        facts = {key: layer[key] for key in _LAYER_FACTS if key in layer}
        there = [profiles[pool.name]["layers"][index] for pool in job.pools]
        facts |= {key: max(known) for key in _LAYER_BYTES if (known := [x[key] for x in there if x.get(key)])}
        times = {pool.name: _times(profiles[pool.name]["layers"][index]) for pool in job.pools}
        layers.append({"name": layer["name"], **facts, **_waits(job, layer), "pools": times})
    problem: dict[str, Any] = {
        "version": 1,
        "batchSize": int(first["batchSize"]),
        "globalBatchSize": job.global_batch_size,
        "microBatches": job.micro_batches,
        "samples": samples,
        "minSamplesPerSecond": job.min_samples_per_second,
        "provenance": {pool.name: profiles[pool.name].get("measured", {}) for pool in job.pools},
        "parameterServer": _servers(job, profiles),
        "pools": [
            _pool(job, pool, profiles[pool.name].get("stage") or {})
            | _memory(pool, profiles[pool.name].get("memory") or {})
            for pool in job.pools
        ],
        "layers": layers,
    }
    if any(pool.interruptions_per_unit_hour for pool in job.pools):
        problem["interruption"] = _interruption(job, restart_seconds)
    if job.max_cost_per_hour is not None:
        problem["maxCostPerHour"] = float(job.max_cost_per_hour)
    return problem


def _waits(job: JobSpec, layer: Json) -> dict[str, bool]:
    """Whether a stage with the layer waits for the commit of a step before it computes the next one.

    In `hybrid` these are the stages with dense parameters; of a layer measured by an earlier release it is not known.
    """
    waits = job.consistency == "sync" or (job.consistency == "hybrid" and layer.get("denseBytes", 1) > 0)
    return {"waitsForCommit": waits}


def adapt_problem(problem: Json, job: JobSpec) -> dict[str, Any]:
    """A problem file's layer times under a job's present pools, prices, limits and floor.

    Args:
        problem: with measured layers, from `heterps profile JOB --to FILE`.
        job: what is to be planned.

    Returns:
        The problem; one for each variant if the planner has yet to choose.

    Raises:
        ProblemError: the problem does not know a pool of the job, or a variant.
    """
    if several := _variants(job):
        key, jobs = several
        return {"version": 1, key: {name: adapt_problem(problem, one) for name, one in jobs.items()}}
    among = f"of one precision, and the job allows {', '.join(job.allowed_precisions)}"
    problem = _part(problem, PRECISIONS, job.precision, among if job.allowed_precisions else "")
    both = "of one exchange of dense gradients, and the job allows each"
    problem = _part(problem, EXCHANGES, job.dense_exchange or "", both if job.any_exchange else "")
    measured = {pool.get("name"): pool for pool in problem.get("pools") or () if isinstance(pool, dict)}
    pools = []
    for pool in job.pools:
        if pool.name not in measured:
            raise UnknownNameError("problem.pools", "pool", pool.name, map(str, measured))
        known = measured[pool.name]
        stage = {key: known[key] for key in _STAGE_FACTS if key in known}
        pools.append(_pool(job, pool, stage) | {key: known[key] for key in (_POD_BYTES,) if key in known})
    names = {pool.name for pool in job.pools}
    layers = []
    for layer in problem.get("layers") or ():
        times = {name: entry for name, entry in layer.get("pools", {}).items() if name in names}
        layers.append({**layer, **_waits(job, layer), "pools": times})
    adapted = {**problem, "pools": pools, "layers": layers, "parameterServer": _adapted_servers(problem, job)}
    adapted |= {"globalBatchSize": job.global_batch_size, "microBatches": job.micro_batches}
    adapted |= {"minSamplesPerSecond": job.min_samples_per_second}
    adapted.pop("maxCostPerHour", None)
    if any(pool.interruptions_per_unit_hour for pool in job.pools):
        adapted["interruption"] = {**adapted.get("interruption", {}), **_interruption(job, None)}
    if job.max_cost_per_hour is not None:
        adapted["maxCostPerHour"] = float(job.max_cost_per_hour)
    return adapted


def cost_per_sample(problem: Json, plan: JobPlan) -> float:
    """Dollars per sample that a plan costs by the measured times and the prices of a problem.

    Args:
        problem: by `build_problem`.
        plan: of the same model; it may exceed the problem's limits.

    Raises:
        ValueError: the plan belongs to another model, or uses a pool that the problem does not have.
    """
    parsed = Problem.from_json(problem)
    names = [pool.name for pool in parsed.pools]
    if plan.stages[-1].lastLayer != len(parsed.layers) - 1 or not set(plan.units) <= set(names):
        raise ValueError("the plan belongs to another model")
    stages = [(stage.firstLayer, stage.lastLayer, names.index(stage.pool)) for stage in plan.stages]
    servers = plan.servers.units // parsed.pools[names.index(plan.servers.pool)].units_per_pod
    server = ParameterServer(plan.servers.pool, (problem["parameterServer"]).get(_SERVER_COST), plan.servers.units)
    segments = build_segments(replace(parsed, parameter_server=server))
    choice = choice_of(segments, stages, list(plan.pods), servers)
    return cost_rate(segments, choice) / 3600


def with_running_servers(problem: Json, servers: ServersDocument) -> dict[str, Any]:
    """The problem for a job whose parameter servers stay as they are, with what they sustain if that is known.

    Args:
        problem: by `build_problem`, which may have chosen another pool for the servers.
        servers: of the running plan.
    """
    planned = problem["parameterServer"]
    known = {name: planned[name] for name in (_SERVER_COST,) if name in planned and planned["pool"] == servers.pool}
    return {**problem, "parameterServer": {"pool": servers.pool, "units": servers.units, **known}}


def _variants(job: JobSpec) -> tuple[str, dict[str, JobSpec]] | None:
    """The next choice of the planner: its key in problem files, and the job with each answer; None: it has none."""
    if job.chooses_precision:
        return PRECISIONS, {name: job.in_precision(name) for name in job.allowed_precisions}
    if job.chooses_exchange:
        return EXCHANGES, {exchange.value: job.in_exchange(exchange) for exchange in DenseExchange}
    return None


def _of_variant(job: JobSpec, pool: PoolSpec, profile: Json) -> Json:
    """The part of a pool's profile that was measured in the job's variant.

    Raises:
        ValueError: it was not measured.
    """
    wanted = [(PRECISIONS, "in", job.precision)] if job.allowed_precisions else []
    if job.any_exchange and pool.device_type == "CPU":
        wanted.append((EXCHANGES, "with", str(job.exchange_on(pool))))
    for key, word, name in wanted:
        measured: Json = profile.get(key, {})
        if name not in measured:
            raise ValueError(f"profile of pool {pool.name}: was not measured {word} {name}; measure it again")
        profile = measured[name]
    return profile


def _part(problem: Json, key: str, name: str, one: str) -> Json:
    """The part of a problem file for the job's variant.

    Args:
        problem: the file's content, with a part for each name under the key, or of one variant.
        key: as in the file.
        name: of the job's variant.
        one: what is wrong with a file of one variant; empty: nothing.

    Raises:
        ProblemError: there is no part for it.
    """
    fix = "measure the job with heterps profile JOB --to FILE"
    if key not in problem:
        if one:
            raise ProblemError(f"problem.{key}", f"is missing: the file is {one}; {fix}")
        return problem
    known = problem[key]
    if not isinstance(known, dict) or not isinstance(known.get(name), dict):
        raise ProblemError(f"problem.{key}", f"lacks {name}, which the job trains with; {fix}")
    part: Json = known[name]
    return part


def _times(layer: Json) -> dict[str, Any]:
    """One layer's times on one pool; none if it cannot run there."""
    return {key: layer[key] for key in _LAYER_TIMES if key in layer}


def _pool(job: JobSpec, pool: PoolSpec, stage: Json) -> dict[str, Any]:
    exchange = job.exchange_on(pool)
    return {
        "name": pool.name,
        "deviceType": pool.device_type,
        "pricePerUnitHour": float(pool.price_per_unit_hour),
        "maxUnits": _NO_LIMIT_UNITS if pool.max_units is None else pool.max_units,
        "unitsPerPod": pool.units_per_pod,
        **({"interruptionsPerUnitHour": pool.interruptions_per_unit_hour} if pool.interruptions_per_unit_hour else {}),
        **({"denseExchange": exchange.value} if exchange != DenseExchange.of_pool(pool.device_type) else {}),
        **{key: stage[key] for key in _STAGE_FACTS if key in stage},
    }


def _memory(pool: PoolSpec, measured: Json) -> dict[str, float]:
    """What a stage may take of a pod's memory, if that is limited: beside what a worker takes without a stage.

    Args:
        pool: says how much its pods have; a card has what was measured, unless the pool says so.
        measured: `baseBytes`, `deviceBytes` and `deviceBaseBytes` of the profile.
    """
    on_host = pool.device_type == "CPU"
    limit = pool.memory_bytes_per_pod or (None if on_host else measured.get("deviceBytes"))
    if not limit or not measured:  # an earlier release measured it
        return {}
    taken = measured.get("baseBytes" if on_host else "deviceBaseBytes") or 0.0
    return {_POD_BYTES: max(1.0, _USABLE_MEMORY * limit - taken)}


def _interruption(job: JobSpec, restart_seconds: float | None) -> dict[str, Any]:
    """What an interruption costs the job, as far as that is known."""
    known = {} if restart_seconds is None else {"serverSeconds": restart_seconds}
    # Another server has what a lost one had, so that no step is repeated.
    samples = job.checkpoint_steps * job.global_batch_size if job.replication == 1 else 0
    return {"checkpointSamples": samples, **known}


def _servers(job: JobSpec, profiles: Mapping[str, Json]) -> dict[str, Any]:
    """The parameter servers' pool, what they cost there, and their number if the job fixes it."""
    pool = _server_pool(job)
    seconds = (profiles[pool.name].get("parameterServer") or {}).get("processorSecondsPerSample") or 0.0
    # Those of the busiest core, which bounds a pod of any size. Copies get the pushes, which are most of the work, but
    # no pulls.
    cost = seconds * pool.units_per_pod * job.replication
    return _numbered(job, pool, {_SERVER_COST: cost} if seconds > 0 else {})


def _adapted_servers(problem: Json, job: JobSpec) -> dict[str, Any]:
    """The same with the cost, or else the number, that a problem file gives."""
    pool, given = _server_pool(job), problem.get("parameterServer") or {}
    measured = {p.get("name"): p for p in problem.get("pools") or () if isinstance(p, dict)}.get(given.get("pool"), {})
    cost = given.get(_SERVER_COST)
    if cost:
        return _numbered(job, pool, {_SERVER_COST: cost * pool.units_per_pod / measured.get("unitsPerPod", 1)})
    units = given.get("units") if given.get("pool") == pool.name else None
    return _numbered(job, pool, {"units": units} if units else {})


def _numbered(job: JobSpec, pool: PoolSpec, known: dict[str, Any]) -> dict[str, Any]:
    """The servers on a pool: as many as the job says, else as `known` says or lets the planner decide, else the fewest.

    The fewest are one for each copy of a row.
    """
    number = job.server_replicas or (None if known else job.replication)
    units = {} if number is None else {"units": number * pool.units_per_pod}
    least = {"leastUnits": job.replication * pool.units_per_pod} if number is None and job.replication > 1 else {}
    return {"pool": pool.name, **known, **units, **least}


def _server_pool(job: JobSpec) -> PoolSpec:
    """Parameter servers take whole pods of the cheapest CPU pool, or of the cheapest pool if none is a CPU pool.

    A pool whose units are interrupted is only taken where no other is left: each loss costs the work since the last
    checkpoint. One without room for them (other jobs have it, its nodes are gone) is only taken where no other has.
    """
    candidates = [pool for pool in job.pools if pool.device_type == "CPU"] or list(job.pools)
    number = job.server_replicas or job.replication
    fitting = [p for p in candidates if p.max_units is None or p.max_units >= number * p.units_per_pod]
    return min(fitting or candidates, key=lambda p: (p.interruptions_per_unit_hour > 0, p.price_per_unit_hour, p.name))
