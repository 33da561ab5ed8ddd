"""Jobs that share pools: the joint plan is optimal, keeps every limit, and infeasibility is reported."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest

from heterps_planner.errors import DeadlineError, ProblemError
from heterps_planner.model.problem import Problem
from heterps_planner.model.servers import ParameterServer
from heterps_planner.planning import plan
from heterps_planner.plans.plan import Plan
from heterps_planner.scenarios.joint import JointInfeasible, JointPlan, plan_together
from tests.heterps_planner.helpers.every_plan import every_plan
from tests.heterps_planner.helpers.problems import random_problem, with_floor


def jobs_on_one_cluster(seed: int, count: int, layers: int, pools: int, most_pods: int) -> list[Problem]:
    """Different models, the same pools."""
    rng = np.random.default_rng([seed, 7])
    shared = random_problem(rng, layers, pools, most_pods=most_pods, pods=bool(seed % 3 == 0)).pools
    jobs = []
    for _ in range(count):
        server = str(rng.choice(["none", "rate", "fixed"])) if seed % 4 == 3 else "none"
        job = random_problem(rng, layers, pools, most_pods=most_pods, specialised=True, server=server)
        servers = job.parameter_server
        if servers is not None and servers.units is not None:
            servers = ParameterServer(servers.pool, units=shared[0].units_per_pod)
        job = replace(job, pools=shared, parameter_server=servers, samples=float(rng.uniform(1e5, 1e7)))
        jobs.append(with_floor(job, float(rng.uniform(0.1, 0.7))))
    return jobs


def best_of_all(jobs: list[Problem]) -> float:
    """The least sum of costs over all plans of all jobs that share one pool: exhaustive."""
    limit = np.array([float(pool.max_pods) for pool in jobs[0].pools])
    totals: dict[tuple[float, ...], float] = {(0.0,) * len(limit): 0.0}  # pods used -> least cost of the jobs so far
    for job in jobs:
        plans = every_plan(job)
        cheapest: dict[tuple[float, ...], float] = {}
        for used, price, throughput in zip(plans.used, plans.price, plans.throughput, strict=True):
            cost = price / throughput * job.samples / 3600
            key = tuple(used.tolist())
            cheapest[key] = min(cost, cheapest.get(key, math.inf))
        after: dict[tuple[float, ...], float] = {}
        for (taken, spent), (used_, cost) in itertools.product(totals.items(), cheapest.items()):
            key = tuple(np.add(taken, used_).tolist())
            if (np.array(key) <= limit).all():
                after[key] = min(spent + cost, after.get(key, math.inf))
        totals = after
    return min(totals.values(), default=math.inf)


@pytest.mark.parametrize("seed", range(24))
def test_joint_plans_cost_as_little_as_the_best_of_all_combinations(seed: int) -> None:
    jobs = jobs_on_one_cluster(seed, 3 if seed % 2 else 2, 3, 2 + seed % 2, 4)
    best = best_of_all(jobs)
    found = plan_together(jobs)
    if best == math.inf:
        assert isinstance(found, JointInfeasible)
        return
    assert isinstance(found, JointPlan)
    assert found.optimal
    assert found.cost == pytest.approx(best, rel=1e-8)


def used_units(found: JointPlan, jobs: list[Problem]) -> dict[str, int]:
    used = {pool.name: 0 for pool in jobs[0].pools}
    for job, one in zip(jobs, found.plans, strict=True):
        for stage in one.stages:
            used[stage.pool] += stage.units
        if job.parameter_server is not None:
            used[one.parameter_server.pool] += one.parameter_server.units
    return {name: units for name, units in used.items() if units}


@pytest.mark.parametrize("seed", range(5))
def test_larger_jobs_share_within_limits_never_dearer_than_one_after_the_other(seed: int) -> None:
    jobs = jobs_on_one_cluster(seed, 2 + seed % 3, 6, 3, 16)
    found = plan_together(jobs)
    if isinstance(found, JointInfeasible):
        assert "pools are too small" in found.message
        return
    limit = {pool.name: pool.max_units for pool in jobs[0].pools}
    assert found.used_units == used_units(found, jobs)
    assert all(units <= limit[name] for name, units in found.used_units.items())
    for job, one in zip(jobs, found.plans, strict=True):
        assert one.throughput >= job.min_samples_per_second * (1 - 1e-8)
    assert found.lower_bound <= found.cost
    assert found.gap == pytest.approx((found.cost - found.lower_bound) / found.cost)
    alone = sum(one.cost for one in map(plan, jobs) if isinstance(one, Plan))
    assert found.alone_cost == pytest.approx(alone)
    assert found.cost >= alone * (1 - 1e-9)
    if found.sequential_cost is not None:
        assert found.cost <= found.sequential_cost * (1 + 1e-9)


def test_sharing_beats_every_order_where_the_first_takes_what_the_second_needs_more() -> None:
    gains = []
    for seed in range(6):
        found = plan_together(jobs_on_one_cluster(seed, 3, 4, 3, 6))
        if isinstance(found, JointPlan) and found.sequential_cost is not None:
            gains.append(1 - found.cost / found.sequential_cost)
    assert max(gains) > 0.01
    assert min(gains) >= -1e-9


def test_one_job_is_planned_as_always() -> None:
    (job,) = jobs_on_one_cluster(1, 1, 6, 3, 8)
    found, single = plan_together([job]), plan(job)
    assert isinstance(found, JointPlan)
    assert isinstance(single, Plan)
    assert found.cost == pytest.approx(single.cost, rel=1e-8)


def test_jobs_that_share_no_pool_do_not_disturb_each_other() -> None:
    first, second = jobs_on_one_cluster(2, 2, 4, 2, 6)
    names = {pool.name: f"other-{pool.name}" for pool in second.pools}
    second = replace(
        second,
        pools=tuple(replace(pool, name=names[pool.name]) for pool in second.pools),
        layers=tuple(
            replace(layer, pools={names[name]: times for name, times in layer.pools.items()}) for layer in second.layers
        ),
    )
    found = plan_together([first, second])
    assert isinstance(found, JointPlan)
    assert found.cost == pytest.approx(found.alone_cost, rel=1e-8)


def test_a_job_that_cannot_run_even_alone_is_named() -> None:
    jobs = jobs_on_one_cluster(5, 2, 4, 2, 6)
    jobs[1] = with_floor(jobs[1], 1.2)
    found = plan_together(jobs, names=["ads", "feed"])
    assert isinstance(found, JointInfeasible)
    assert found.message.startswith("feed, even alone: ")
    assert found.to_json(["ads", "feed"])["job"] == "feed"


def test_pools_too_small_for_all_are_named() -> None:
    job = jobs_on_one_cluster(1, 1, 3, 2, 4)[0]
    tight = with_floor(job, 0.98)
    found = plan_together([tight] * 6)
    assert isinstance(found, JointInfeasible)
    assert "the pools are too small for all at once; raise maxUnits of " in found.message


def test_shared_pools_must_agree() -> None:
    first, second = jobs_on_one_cluster(1, 2, 3, 2, 4)
    other = replace(second, pools=(replace(second.pools[0], price_per_unit_hour=99.0), *second.pools[1:]))
    with pytest.raises(
        ProblemError, match=r"feed: pool 'pool0': pricePerUnitHour is 99\.0, and .* in ads; a pool that"
    ):
        plan_together([first, other], names=["ads", "feed"])


def test_no_jobs_are_refused() -> None:
    with pytest.raises(ProblemError, match="must be 1 to 32 jobs, are 0"):
        plan_together([])


def test_a_deadline_that_has_passed_gives_no_wrong_answer() -> None:
    jobs = jobs_on_one_cluster(1, 2, 6, 3, 8)
    try:
        found = plan_together(jobs, should_stop=lambda: True)
    except DeadlineError:
        return
    assert isinstance(found, JointPlan)


def test_the_json_names_the_jobs() -> None:
    jobs = jobs_on_one_cluster(1, 2, 3, 2, 6)
    found = plan_together(jobs)
    assert isinstance(found, JointPlan)
    value = json.loads(json.dumps(found.to_json(["ads", "feed"])))
    assert set(value["plans"]) == {"ads", "feed"}
    assert value["gap"] == 0
