"""A problem that predicts what is measured, and the best division of a number of workers by it."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import Any

from heterps_operator.state.plan import JobPlan
from heterps_planner.model.problem import Problem
from heterps_planner.model.segments import build_segments

__all__ = ["calibrate", "divide_workers"]

_WIDEST = 50.0  # a profile further off than this says that the measurement is wrong
_TIMES = (
    "computeSeconds",
    "computeFixedSeconds",
    "serverSeconds",
    "serverFixedSeconds",
    "transferSeconds",
    "transferFixedSeconds",
    "transferProcessorSeconds",
    "transferProcessorFixedSeconds",
)
_STAGE_TIMES = ("stageSeconds", "stageFixedSeconds", "stageSerialSeconds")


def calibrate(problem: Mapping[str, Any], plan: JobPlan, throughput: float, stages: Sequence[float]) -> dict[str, Any]:
    """Scale the times of a problem so that it predicts what is measured.

    Each stage's layers are scaled by measured / predicted seconds per sample on their pool, and all of them by what the
    whole job loses beyond its slowest stage: that contains the wait while the pipeline drains, which is not predicted
    a second time. Layers that run elsewhere are scaled like the stages of the same pool. The parameter servers sustain
    at least what is measured.

    Args:
        problem: a problem document with the profiled times.
        plan: what runs.
        throughput: samples/s of the job.
        stages: samples/s that each stage could have alone.

    Raises:
        ValueError: plan and problem do not fit together.
    """
    problem = {**problem, "layers": [{**layer, "waitsForCommit": False} for layer in problem["layers"]]}
    parsed = Problem.from_json(problem)
    segments = build_segments(parsed)
    if plan.stages[-1].lastLayer != len(parsed.layers) - 1 or len(stages) != len(plan.stages):
        raise ValueError("the running plan belongs to another model")
    loss = max(1.0, min(stages) / throughput)
    factors: dict[tuple[str, int], float] = {}  # (pool, layer)
    of_pool: dict[str, list[float]] = {}
    for stage, rate in zip(plan.stages, stages, strict=True):
        pool = parsed.pool_index(stage.pool)
        predicted = segments.stage_time(stage.firstLayer, stage.lastLayer, pool, stage.pods)
        factor = min(max(loss / (rate * predicted), 1 / _WIDEST), _WIDEST)
        of_pool.setdefault(stage.pool, []).append(factor)
        factors |= {(stage.pool, layer): factor for layer in range(stage.firstLayer, stage.lastLayer + 1)}
    mean = {pool: sum(values) / len(values) for pool, values in of_pool.items()}

    def scaled(times: Mapping[str, Any], names: tuple[str, ...], factor: float) -> dict[str, Any]:
        return {key: value * factor if key in names else value for key, value in times.items()}

    pools = [scaled(pool, _STAGE_TIMES, mean.get(pool["name"], loss)) for pool in problem["pools"]]
    layers = [
        {
            **layer,
            "pools": {
                name: scaled(times, _TIMES, factors.get((name, index), mean.get(name, loss)))
                for name, times in layer["pools"].items()
            },
        }
        for index, layer in enumerate(problem["layers"])
    ]
    servers = dict(problem["parameterServer"])
    if "coresPerSamplePerSecond" in servers:
        cost = plan.servers.units / throughput
        servers["coresPerSamplePerSecond"] = min(servers["coresPerSamplePerSecond"], cost)
    return {**problem, "pools": pools, "layers": layers, "parameterServer": servers}


def divide_workers(problem: Mapping[str, Any], plan: JobPlan, workers: int) -> list[int]:
    """Give each worker to the stage that is slowest without it, which is the division with the highest throughput.

    Args:
        problem: a problem document, which predicts the stages' times.
        plan: its stages, and what its servers take of their pool.
        workers: in all stages together. Each stage has at least one, and pools have limits.

    Returns:
        Workers of each stage.
    """
    parsed = Problem.from_json(problem)
    segments = build_segments(parsed)
    pools = [parsed.pool_index(stage.pool) for stage in plan.stages]
    free = {index: pool.max_units for index, pool in enumerate(parsed.pools)}
    servers = parsed.pool_index(plan.servers.pool)
    free[servers] -= plan.servers.units
    for pool in pools:
        free[pool] -= parsed.pools[pool].units_per_pod
    pods = [1] * len(pools)

    def entry(stage: int) -> tuple[float, int]:
        of = plan.stages[stage]
        return -segments.stage_time(of.firstLayer, of.lastLayer, pools[stage], pods[stage]), stage

    slowest = [entry(stage) for stage in range(len(pools))]
    heapq.heapify(slowest)
    while slowest and sum(pods) < workers:
        _, stage = heapq.heappop(slowest)
        units = parsed.pools[pools[stage]].units_per_pod
        if free[pools[stage]] >= units:
            free[pools[stage]] -= units
            pods[stage] += 1
            heapq.heappush(slowest, entry(stage))
    return pods
