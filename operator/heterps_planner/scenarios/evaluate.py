"""Hand-written plans: `scheduling.stages` of a job, validated, provisioned and priced like any other plan.

Stages without `units` get the number that is cheapest for exactly this schedule (`provisioning.provision`); stages with
`units` keep them. The result carries the lower bound of the exact optimum, so that its gap shows the cost of the
choice.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from heterps_planner.errors import ProblemError, UnknownNameError
from heterps_planner.model.cost_model import FLOOR_TOLERANCE
from heterps_planner.model.fields import Fields, check_integer
from heterps_planner.model.limits import MAX_UNITS
from heterps_planner.model.memory import needed_bytes
from heterps_planner.model.pieces import FloatArray
from heterps_planner.model.problem import Problem
from heterps_planner.model.segments import Segments, build_segments
from heterps_planner.planning import allowance, check_servers, deadline_test
from heterps_planner.plans.plan import (
    COST_CEILING_EXCEEDED,
    THROUGHPUT_FLOOR_UNREACHABLE,
    Infeasible,
    Plan,
    build_plan,
    choice_of,
    describe_bytes,
    describe_rate,
)
from heterps_planner.plans.refusal import describe_servers
from heterps_planner.search.limits import shadow_prices
from heterps_planner.search.path import Stage
from heterps_planner.search.points import cost_rate
from heterps_planner.search.provisioning import fastest_provision, provision, schedule_of
from heterps_planner.search.servers import MAX_SERVERS, minimise, provision_stages
from heterps_planner.search.sweep import SearchOptions

__all__ = ["evaluate"]

METHOD = "fixed"
_PATH = "scheduling"


def evaluate(
    problem: Problem,
    stages: Any,
    *,
    deadline: float | None = None,
    ps_pool: str | None = None,
    ps_replicas: int = 0,
    clock: Callable[[], float] = time.monotonic,
) -> Plan | Infeasible:
    """Convert hand-written stages to a plan.

    Args:
        problem: the problem.
        stages: list of `{"pool": name, "lastLayer": name or index, "units": number}`; `units` is optional, and so
            is the `lastLayer` of the last stage.
        deadline: time on `clock` at which to stop the search for the bound and the shadow prices.
        ps_pool: pool of the parameter servers if the problem does not charge any.
        ps_replicas: parameter-server processes; 0: derived from the charged units, or 1.
        clock: returns seconds; only differences matter.

    Returns:
        The plan, or why these stages cannot meet the floor or the ceiling.

    Raises:
        ProblemError: a stage is invalid; the message names its field.
    """
    check_servers(problem, ps_pool, ps_replicas)
    began = clock()
    should_stop = deadline_test(deadline, clock)
    parsed, fixed = _read_stages(problem, stages)
    segments = build_segments(problem)
    _check_limits(problem, segments, parsed, fixed)
    found = provision_stages(segments, parsed, fixed)
    if not math.isfinite(found.rate[0]):
        return replace(_refuse(problem, segments, parsed, fixed), seconds=clock() - began)
    pods = [int(n) for n in found.pods[0]]
    choice = choice_of(segments, parsed, pods[:-1], pods[-1])
    rate = cost_rate(segments, choice)
    optimum = minimise(segments, SearchOptions(rate=rate, should_stop=should_stop))
    best = optimum.choice or choice
    plan = build_plan(
        problem,
        segments,
        choice,
        method=METHOD,
        lower_rate=optimum.bound,
        shadow=shadow_prices(segments, best, cost_rate(segments, best), allowance(should_stop, clock() - began, clock)),
        ps_pool=ps_pool,
        ps_replicas=ps_replicas,
    )
    return replace(plan, seconds=clock() - began)


def _read_stages(problem: Problem, value: Any) -> tuple[list[Stage], list[int | None]]:
    """Return the stages and their pods (None where open)."""
    names = [layer.name for layer in problem.layers]
    pools = [pool.name for pool in problem.pools]
    top = Fields({"stages": value}, _PATH)
    items = list(top.take_list("stages", most=len(names)))
    stages: list[Stage] = []
    fixed: list[int | None] = []
    first = 0
    for i, (path, item) in enumerate(items):
        if first >= len(names):
            raise ProblemError(path, "all layers are in earlier stages already")
        fields = Fields(item, path)
        name = fields.take_name("pool")
        if name not in pools:
            raise UnknownNameError(fields.at("pool"), "pool", name, pools)
        pool = pools.index(name)
        if stages and stages[-1][2] == pool:
            raise ProblemError(
                fields.at("pool"), f"the stage before is on {name!r} too; neighbouring stages on one pool are one stage"
            )
        is_last = i == len(items) - 1
        last = len(names) - 1 if is_last and "lastLayer" not in fields else _read_layer(fields, names)
        if last < first:
            raise ProblemError(fields.at("lastLayer"), f"must be {names[first]!r} or a later layer, is {names[last]!r}")
        if is_last and last != len(names) - 1:
            raise ProblemError(
                fields.at("lastLayer"), f"the last stage must end with the last layer {names[-1]!r}, is {names[last]!r}"
            )
        units = fields.take("units", None)
        fixed.append(None if units is None else _read_pods(fields, problem, pool))
        fields.finish()
        for layer in problem.layers[first : last + 1]:
            if name not in layer.pools:
                raise ProblemError(fields.at("pool"), f"pool {name!r} cannot run layer {layer.name!r}")
        stages.append((first, last, pool))
        first = last + 1
    return stages, fixed


def _read_layer(fields: Fields, names: list[str]) -> int:
    value = fields.take("lastLayer")
    path = fields.at("lastLayer")
    if isinstance(value, str):
        if value not in names:
            raise UnknownNameError(path, "layer", value, names)
        return names.index(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ProblemError(path, f"must be the name or the index of a layer, is {value!r}")
    return check_integer(path, value, least=0, most=len(names) - 1)


def _read_pods(fields: Fields, problem: Problem, pool: int) -> int:
    units = fields.take_integer("units", least=1, most=MAX_UNITS)
    per_pod = problem.pools[pool].units_per_pod
    if units % per_pod:
        raise ProblemError(
            fields.at("units"),
            f"must be a multiple of the {per_pod} units per pod of pool {problem.pools[pool].name!r}, is {units}",
        )
    return units // per_pod


def _check_limits(problem: Problem, segments: Segments, stages: list[Stage], fixed: list[int | None]) -> None:
    used = np.zeros(segments.num_pools)
    servers = int(segments.server_need(np.zeros(1))[0])  # the minimum number
    used[segments.server_pool] = servers
    for i, (stage, pods) in enumerate(zip(stages, fixed, strict=True)):
        pool = stage[2]
        limit = problem.pools[pool]
        least = segments.least(*stage)
        if (pods or least) < least or math.isinf(least):
            need = needed_bytes(problem, stage[0], stage[1], math.inf if pods is None else pods)
            raise ProblemError(
                f"{_PATH}.stages[{i}].{'pool' if math.isinf(least) else 'units'}",
                f"each pod of pool {limit.name!r} needs {describe_bytes(need)} for this stage and has "
                f"{describe_bytes(limit.memory_bytes_per_pod or 0)}; "
                + (
                    "no number of units is enough: put fewer layers into this stage"
                    if math.isinf(least)
                    else f"give it at least {int(least) * limit.units_per_pod} units"
                ),
            )
        used[pool] += pods or least
        if used[pool] > segments.limit_T[pool]:
            others = servers if pool == segments.server_pool else 0
            units = (int(used[pool]) - others) * limit.units_per_pod
            takers = f"the stages up to this one take {units} units of pool {limit.name!r}, which has {limit.max_units}"
            if others:
                takers += f", and the parameter servers take {others * limit.units_per_pod} of them"
            raise ProblemError(f"{_PATH}.stages[{i}].units", takers)


def _refuse(problem: Problem, segments: Segments, stages: list[Stage], fixed: list[int | None]) -> Infeasible:
    """Return why a schedule cannot meet the floor or the ceiling."""
    floor = problem.min_samples_per_second

    def reach(limits: Segments) -> tuple[float, FloatArray]:
        return fastest_provision(schedule_of(limits, stages, fixed), limits)

    numbers = [2**i for i in range(MAX_SERVERS.bit_length())] if segments.wait_LLT is not None else [0]
    segments = max((segments.for_servers(number) for number in numbers), key=lambda numbered: reach(numbered)[0])
    best, pods = reach(segments)
    if best >= floor * (1 - FLOOR_TOLERANCE) and best > 0:
        free = replace(segments, ceiling=math.inf)
        cheapest = provision(schedule_of(free, stages, fixed), replace(free, floor=floor))
        choice = choice_of(free, stages, [int(n) for n in cheapest.pods[0, :-1]], int(cheapest.pods[0, -1]))
        return Infeasible(
            METHOD,
            COST_CEILING_EXCEEDED,
            best,
            f"these stages cannot reach {describe_rate(floor)} for at most {segments.ceiling:.2f} $/h; the cheapest "
            f"provision per sample takes {choice.price:.2f} $/h: raise maxCostPerHour or choose cheaper pools",
        )
    if servers := describe_servers(problem, segments, best):
        message = f"these stages reach {describe_rate(best)}, and the floor is {describe_rate(floor)}; {servers}"
        return Infeasible(METHOD, THROUGHPUT_FLOOR_UNREACHABLE, best, message)
    slow = max(range(len(stages)), key=lambda i: segments.stage_time(*stages[i], max(float(pods[i]), 1.0)))
    pools = []
    for t, pool in enumerate(problem.pools):
        if reach(segments.with_limit(t, 3 * float(segments.limit_T[t]) + 1))[0] > best * (1 + 1e-6):
            pools.append(pool.name)
    message = f"these stages reach {describe_rate(best)}, and the floor is {describe_rate(floor)}; the slowest is "
    message += f"stage-{slow} on {problem.pools[stages[slow][2]].name}"
    if pools:
        message += f"; limited by {', '.join(pools)}: raise maxUnits or move layers to other pools"
    elif any(n is not None for n in fixed):
        message += "; give it more units or leave its units out, so that they are chosen for you"
    return Infeasible(METHOD, THROUGHPUT_FLOOR_UNREACHABLE, best, message, tuple(pools))
