"""Joint planning of jobs that share pools at the same time.

The sum of all costs is minimised; each job keeps its own floor and ceiling, and all of them together keep the limits of
the pools that they share by name. Planning one job after the other gives the first jobs units that others may need
more: the joint plan starts from the best order and never costs more (`coupling` describes the method and its
guarantee).
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from heterps_planner.errors import DeadlineError, ProblemError
from heterps_planner.model.pieces import FloatArray
from heterps_planner.model.problem import Pool, Problem
from heterps_planner.model.segments import Segments, build_segments
from heterps_planner.plans.plan import Infeasible, Plan, build_plan
from heterps_planner.plans.refusal import explain_infeasible
from heterps_planner.search.coupling import Coupled, CoupledJob, Tariff, solve
from heterps_planner.search.points import Choice
from heterps_planner.search.priced_search import PricedJob
from heterps_planner.search.servers import minimise
from heterps_planner.search.sweep import SearchOptions, SweepResult

__all__ = ["MAX_JOBS", "METHOD", "JointInfeasible", "JointPlan", "plan_together"]

METHOD = "joint"
MAX_JOBS = 32
_ALL_ORDERS = 4  # jobs; with more, only some orders are tried
_SHARED_FIELDS = ("device_type", "price_per_unit_hour", "units_per_pod")


@dataclass(frozen=True)
class JointPlan:
    """One plan per job; all of them may run at the same time."""

    plans: tuple[Plan, ...]  # lower bound and gap of each compare it with having all pools to itself
    cost: float  # dollars of all jobs
    lower_bound: float  # dollars; no plans that share the pools cost less together
    gap: float  # (cost - lower bound) / cost
    optimal: bool
    alone_cost: float  # dollars if each job had all pools to itself
    sequential_cost: float | None  # dollars of the best sequential order; None: no order works
    sequential_order: tuple[int, ...]  # of the jobs
    used_units: dict[str, int]  # units of each used pool, over all jobs
    seconds: float = 0.0

    def to_json(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the plans as a JSON object; `names` are those of the jobs."""
        return {
            "feasible": True,
            "method": METHOD,
            "seconds": self.seconds,
            "cost": self.cost,
            "lowerBound": self.lower_bound,
            "gap": self.gap,
            "optimal": self.optimal,
            "aloneCost": self.alone_cost,
            "sequentialCost": self.sequential_cost,
            "sequentialOrder": [names[i] for i in self.sequential_order],
            "usedUnits": dict(self.used_units),
            "plans": {name: plan.to_json() for name, plan in zip(names, self.plans, strict=True)},
        }


@dataclass(frozen=True)
class JointInfeasible:
    """The jobs cannot run at the same time."""

    message: str
    job: int | None  # the job that has no plan even alone; None: sharing is the problem
    alone: Infeasible | None = None  # the reason of that job
    seconds: float = 0.0

    def to_json(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the refusal as a JSON object; `names` are those of the jobs."""
        return {
            "feasible": False,
            "method": METHOD,
            "seconds": self.seconds,
            "reason": self.alone.reason if self.alone is not None else "PoolsTooSmall",
            "job": None if self.job is None else names[self.job],
            "message": self.message,
        }


def plan_together(
    problems: Sequence[Problem],
    *,
    names: Sequence[str] = (),
    limits: Mapping[str, int] | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.monotonic,
) -> JointPlan | JointInfeasible:
    """Plan several jobs at once.

    Jobs whose workers wait for parameter servers get as many of them as the job would have alone; the bound and the gap
    are those of plans with these numbers. What interruptions cost is not counted.

    Args:
        problems: one per job; pools of the same name are the same pool and must agree in price, limit and pod size.
        names: names of the jobs, for messages; `job 0`, `job 1`, ... by default.
        limits: units of each pool for all jobs together. Then `max_units` of a problem's pool limits this job alone,
            and the plans may not be proven optimal where such a limit matters.
        should_stop: called regularly; when it returns True, the best plans so far are returned with their bound.
        clock: returns seconds; only differences matter.

    Raises:
        ProblemError: pools of the same name differ, or there are too many jobs.
        DeadlineError: no plans were found in time, and infeasibility is not proven.
    """
    began = clock()
    labels = list(names) or [f"job {i}" for i in range(len(problems))]
    if not 1 <= len(problems) <= MAX_JOBS:
        raise ProblemError("problems", f"must be 1 to {MAX_JOBS} jobs, are {len(problems)}")
    problems = [problem.without_interruptions() for problem in problems]
    pools = _shared_pools(problems, labels, limits)
    if limits is not None:
        problems = [_within(problem, limits) for problem in problems]
    all_segments = [build_segments(problem) for problem in problems]
    alone: list[SweepResult] = []
    for i, (problem, segments) in enumerate(zip(problems, all_segments, strict=True)):
        found = minimise(segments, SearchOptions(should_stop=should_stop))
        if found.choice is None:
            if not found.finished:
                raise DeadlineError("the deadline passed before any plans were found; allow more time")
            refusal = explain_infeasible(problem, segments, METHOD, should_stop, "no plan")
            message = f"{labels[i]}, even alone: {refusal.message}"
            return JointInfeasible(message, i, refusal, clock() - began)
        alone.append(found)
        all_segments[i] = segments.for_servers(found.choice.server_pods)
    members = [
        CoupledJob(
            PricedJob(s, p.samples / 3600), np.array([pools.index(pool.name) for pool in p.pools], dtype=np.intp)
        )
        for p, s in zip(problems, all_segments, strict=True)
    ]
    limit = np.zeros(len(pools.names))
    for member, segments in zip(members, all_segments, strict=True):
        limit[member.pools] = segments.limit_T
    if limits is not None:
        limit = np.array([limits[n] // size for n, size in zip(pools.names, pools.pod_sizes, strict=True)], dtype=float)
    alone_bound = math.fsum(found.bound * p.samples / 3600 for found, p in zip(alone, problems, strict=True))
    order, choices = _one_after_another(members, limit, alone, should_stop)
    nothing = np.zeros(len(limit))
    incumbents = [[found.choice for found in alone if found.choice is not None], *([choices] if choices else [])]
    result = solve(members, Tariff(limit, nothing, nothing), incumbents, alone_bound, should_stop)
    if result.choices is None:
        return _refuse(result, problems, members, limit, pools, clock() - began)
    used = sum((m.used(c, len(limit)) for m, c in zip(members, result.choices, strict=True)), nothing)
    plans = tuple(
        build_plan(p, s, c, method=METHOD, lower_rate=found.bound)
        for p, s, c, found in zip(problems, all_segments, result.choices, alone, strict=True)
    )
    cost = math.fsum(plan.cost for plan in plans)
    bound = min(cost, result.bound)
    gap = 0.0 if cost <= 0 or result.bound >= result.dollars else (cost - bound) / cost
    return JointPlan(
        plans=plans,
        cost=cost,
        lower_bound=cost if gap == 0 else bound,
        gap=gap,
        optimal=gap == 0.0,
        alone_cost=math.fsum(found.rate * p.samples / 3600 for found, p in zip(alone, problems, strict=True)),
        sequential_cost=None if choices is None else _dollars(members, choices),
        sequential_order=order,
        used_units={n: int(u * size) for n, u, size in zip(pools.names, used, pools.pod_sizes, strict=True) if u},
        seconds=clock() - began,
    )


@dataclass(frozen=True)
class _Pools:
    names: list[str]
    pod_sizes: list[int]

    def index(self, name: str) -> int:
        return self.names.index(name)


def _within(problem: Problem, limits: Mapping[str, int]) -> Problem:
    """Return a problem that takes no more than all jobs together may."""
    pools = tuple(replace(pool, max_units=min(pool.max_units, limits[pool.name])) for pool in problem.pools)
    return replace(problem, pools=pools)


def _shared_pools(problems: Sequence[Problem], labels: Sequence[str], limits: Mapping[str, int] | None) -> _Pools:
    """Return the pools of all jobs, each once."""
    fields = _SHARED_FIELDS if limits is not None else (*_SHARED_FIELDS, "max_units")
    first: dict[str, tuple[Pool, str]] = {}
    for problem, label in zip(problems, labels, strict=True):
        for pool in problem.pools:
            known, owner = first.setdefault(pool.name, (pool, label))
            if limits is not None and pool.name not in limits:
                raise ProblemError("limits", f"lack the pool {pool.name!r} of {label}; add its units")
            for field in fields:
                if getattr(known, field) != getattr(pool, field):
                    words = field.split("_")
                    name = words[0] + "".join(map(str.capitalize, words[1:]))
                    raise ProblemError(
                        f"{label}: pool {pool.name!r}",
                        f"{name} is {getattr(pool, field)!r}, and {getattr(known, field)!r} in {owner}; a pool that "
                        "jobs share is the same for all of them: make the values equal, or give one another name",
                    )
    return _Pools(list(first), [pool.units_per_pod for pool, _ in first.values()])


def _one_after_another(
    members: Sequence[CoupledJob], limit: FloatArray, alone: Sequence[SweepResult], should_stop: Callable[[], bool]
) -> tuple[tuple[int, ...], list[Choice] | None]:
    """Plan the jobs one by one on the remaining units, in every order (for many jobs: in some)."""
    count = len(members)
    orders: list[tuple[int, ...]] = [tuple(range(count)), tuple(range(count))[::-1]]
    if count <= _ALL_ORDERS:
        orders = list(itertools.permutations(range(count)))
    known: dict[tuple[int, bytes], SweepResult] = {(i, limit.tobytes()): found for i, found in enumerate(alone)}
    best_order, best, best_cost = orders[0], None, math.inf
    for order in orders:
        left = limit.copy()
        choices: dict[int, Choice] = {}
        for i in order:
            key = (i, left.tobytes())
            if key not in known:
                known[key] = minimise(_with_limits(members[i], left), SearchOptions(should_stop=should_stop))
            choice = known[key].choice
            if choice is None:
                break
            choices[i] = choice
            left = left - members[i].used(choice, len(limit))
        else:
            listed = [choices[i] for i in range(count)]
            if (cost := _dollars(members, listed)) < best_cost:
                best_order, best, best_cost = order, listed, cost
    return best_order, best


def _with_limits(member: CoupledJob, left: FloatArray) -> Segments:
    return replace(member.job.segments, limit_T=np.minimum(left[member.pools], member.job.segments.limit_T))


def _dollars(members: Sequence[CoupledJob], choices: Sequence[Choice]) -> float:
    return math.fsum(m.job.dollars(c) for m, c in zip(members, choices, strict=True))


def _refuse(
    result: Coupled,
    problems: Sequence[Problem],
    members: Sequence[CoupledJob],
    limit: FloatArray,
    pools: _Pools,
    seconds: float,
) -> JointInfeasible:
    """Return that the pools are too small for all jobs, and which larger pools would help.

    Raises:
        DeadlineError: that is not proven.
    """
    if result.bound < math.inf:
        raise DeadlineError(
            f"no plans were found that let all {len(problems)} jobs run at the same time, and it is not proven that "
            "there are none; allow more time, raise maxUnits of the pools, or lower minSamplesPerSecond of a job"
        )
    helpful = []
    for t, name in enumerate(pools.names):
        wider = limit.copy()
        wider[t] = limit[t] * len(problems) + 1
        _, choices = _one_after_another(
            [replace(m, job=_with_wider(m, wider)) for m in members], wider, (), lambda: False
        )
        if choices is not None:
            helpful.append(name)
    message = f"each of the {len(problems)} jobs can be planned alone, but the pools are too small for all at once"
    message += f"; raise maxUnits of {' or '.join(helpful)}" if helpful else "; raise maxUnits of several pools"
    return JointInfeasible(
        message + ", lower a minSamplesPerSecond, or run the jobs one after the other", None, None, seconds
    )


def _with_wider(member: CoupledJob, limit: FloatArray) -> PricedJob:
    """Return a member's job with different limits of the shared pools."""
    segments = replace(member.job.segments, limit_T=limit[member.pools])
    return PricedJob(segments, member.job.hours_per_rate, member.job.hours)
