"""A line of jobs: the first are admitted, beside each other where possible, and none gives way to a later one."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from heterps_planner.errors import ProblemError
from heterps_planner.model.problem import Problem
from heterps_planner.scenarios.joint import JointPlan, plan_together
from heterps_planner.scenarios.line import Line, LineJob, plan_line
from tests.heterps_planner.helpers.problems import random_problem, with_floor


def problem(floor: float, *, on_cpu: bool = True, gpus: int = 2) -> Problem:
    """One layer that runs at 100 samples/s on a unit of the cpu, and at 1,000 on a much cheaper one of the gpu."""
    times: dict[str, Any] = {"gpu": {"computeSeconds": 0.1, "parallelFraction": 1.0}}
    if on_cpu:
        times["cpu"] = {"computeSeconds": 1.0, "parallelFraction": 1.0}
    return Problem.from_json(
        {
            "version": 1, "batchSize": 100, "samples": 1e6, "minSamplesPerSecond": floor,
            "pools": [
                {"name": "cpu", "deviceType": "CPU", "pricePerUnitHour": 1.0, "maxUnits": 8},
                {"name": "gpu", "deviceType": "GPU", "pricePerUnitHour": 2.0, "maxUnits": gpus},
            ],
            "layers": [{"name": "mlp", "pools": times}],
        }
    )  # fmt: skip


def units(line: Line) -> dict[str, dict[str, int]]:
    found = plan_line(line)
    return {name: {s.pool: s.units for s in plan.stages} for name, plan in found.plans.items()}


FREE = {"cpu": 8, "gpu": 1}


def test_a_job_makes_room_for_one_that_has_no_other_pool() -> None:
    a, b = LineJob("a", problem(700)), LineJob("b", problem(700, on_cpu=False))
    assert units(Line((a,), FREE, {})) == {"a": {"gpu": 1}}, "it is cheaper there"
    assert units(Line((a, b), FREE, {})) == {"a": {"cpu": 7}, "b": {"gpu": 1}}


def test_who_comes_first_is_admitted_and_later_ones_as_far_as_they_fit() -> None:
    large, small = problem(1_500, on_cpu=False), problem(300)
    jobs = (
        LineJob("one", problem(700, on_cpu=False)),
        LineJob("two", problem(700, on_cpu=False)),
        LineJob("three", small),
    )
    assert units(Line(jobs, FREE, {})) == {"one": {"gpu": 1}, "three": {"cpu": 3}}
    assert units(Line((LineJob("large", large), *jobs[1:]), FREE, {})) == {"two": {"gpu": 1}, "three": {"cpu": 3}}


def test_nobody_is_admitted_past_a_job_whose_claims_are_kept() -> None:
    jobs = (LineJob("large", problem(1_500, on_cpu=False), first=True), LineJob("small", problem(300)))
    found = plan_line(Line(jobs, FREE, {}))
    assert (found.plans, set(found.refused)) == ({}, {"large", "small"})
    assert found.refused["small"] == "waits until large is admitted"


def test_a_job_keeps_its_own_limit_beside_the_common_one() -> None:
    mine = LineJob("mine", problem(700, gpus=0))
    other = LineJob("other", problem(700, on_cpu=False))
    assert units(Line((mine, other), FREE, {})) == {"mine": {"cpu": 7}, "other": {"gpu": 1}}
    assert units(Line((mine,), {"cpu": 6, "gpu": 2}, {})) == {}


@pytest.mark.parametrize("seed", range(8))
def test_what_is_admitted_keeps_the_limits_and_whole_lines_cost_as_little_as_joint_plans(seed: int) -> None:
    rng = np.random.default_rng([seed, 11])
    shared = random_problem(rng, 3, 2, most_pods=6).pools
    jobs = []
    for number in range(3):
        job = replace(random_problem(rng, 3, 2, most_pods=6, specialised=True), pools=shared)
        jobs.append(LineJob(str(number), with_floor(job, float(rng.uniform(0.1, 0.7)))))
    limits = {pool.name: pool.max_units for pool in shared}
    found = plan_line(Line(tuple(jobs), limits, {}))
    used = dict.fromkeys(limits, 0)
    for plan in found.plans.values():
        for stage in plan.stages:
            used[stage.pool] += stage.units
    assert all(used[pool] <= limits[pool] for pool in limits)
    joint = plan_together([job.problem for job in jobs])
    assert (len(found.plans) == len(jobs)) == isinstance(joint, JointPlan)
    if isinstance(joint, JointPlan):
        assert found.cost == pytest.approx(joint.cost, rel=1e-8)
    admitted = [job.problem for job in jobs if job.name in found.plans]
    for one in jobs:
        if one.name in found.refused:
            before = [j.problem for j in jobs[: jobs.index(one)] if j.name in found.plans]
            assert not isinstance(plan_together([*before, one.problem]), JointPlan), "it is left out without need"
    assert len(admitted) + len(found.refused) == len(jobs)


def document() -> dict[str, Any]:
    job = {"name": "a", "problem": problem(700).to_json()}
    return {"version": 1, "limits": dict(FREE), "jobs": [job, {**copy.deepcopy(job), "name": "b", "first": True}]}


def test_an_invalid_problem_excludes_its_own_job_only() -> None:
    value = document()
    value["jobs"][0]["problem"]["layers"][0]["pools"]["gpu"]["computeSeconds"] = -1
    line = Line.from_json(value)
    assert [(job.name, job.first) for job in line.jobs] == [("b", True)]
    found = plan_line(line).to_json()
    assert set(found["plans"]) == {"b"}
    assert found["refused"]["a"].startswith("problem.layers[0].pools.gpu.computeSeconds: must be")


def test_a_problem_with_another_idea_of_a_pool_excludes_its_own_job_only() -> None:
    value = document()
    value["jobs"][1]["problem"]["pools"][0]["pricePerUnitHour"] = 3.0
    found = plan_line(Line.from_json(value))
    assert (set(found.plans), set(found.refused)) == ({"a"}, {"b"})
    assert "pricePerUnitHour is 3.0" in found.refused["b"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda line: line.update(version=2), "line.version"),
        (lambda line: line.pop("limits"), "line.limits"),
        (lambda line: line["limits"].update(cpu=-1), "line.limits.cpu"),
        (lambda line: line.update(jobs=[]), "line.jobs"),
        (lambda line: line["jobs"][1].update(name="a"), "line.jobs[1].name"),
        (lambda line: line["jobs"][1].update(first=1), "line.jobs[1].first"),
        (lambda line: line["jobs"][1].update(more=1), "line.jobs[1].more"),
        (lambda line: line.update(more=1), "line.more"),
    ],
)
def test_malformed_lines_are_refused_with_the_field(change: Any, told: str) -> None:
    value = document()
    change(value)
    with pytest.raises(ProblemError) as raised:
        Line.from_json(value)
    assert raised.value.path == told


def test_a_pool_that_the_limits_lack_is_named() -> None:
    found = plan_line(Line((LineJob("a", problem(700)),), {"cpu": 8}, {}))
    assert found.refused == {"a": "a: limits: lack the pool 'gpu' of a; add its units"}
