"""The plan of a changed spec: kept, changed to while the job trains, or reason for a restart."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from heterps_operator.api.job import JobSpec
from heterps_operator.control.transition import Trial, judge_plan
from heterps_operator.state.plan import JobPlan
from tests.heterps_operator.helpers.world import PLAN, World, make_job

ON_CORES: dict[str, Any] = {
    **PLAN,
    "stages": [{**PLAN["stages"][0], "lastLayer": 2, "layers": ["embedding", "mlp", "head"]}],
}
WITH_TWO_SERVERS = {**ON_CORES, "parameterServer": {"pool": "cpu", "replicas": 2, "units": 2}}


def training(plan: dict[str, Any] = ON_CORES) -> World:
    world = World(make_job()).profiled()
    world.answer(plan)
    world.settle()
    assert world.status.plan is not None
    world.join("ps-0", *world.status.plan.workers)
    world.set_phase("Training", committedSteps=5)
    world.settle()
    return world


def judged(world: World, plan: dict[str, Any], wanted: JobSpec | None = None) -> Trial:
    return judge_plan(world.job, wanted or world.job, world.observed(), world.status, JobPlan.from_json(plan))


def test_a_plan_is_judged_by_what_it_needs() -> None:
    world = training()
    assert judged(world, {**ON_CORES, "throughput": 1.0}) == Trial.SAME, "what it predicts does not count"
    assert judged(world, WITH_TWO_SERVERS) == Trial.IN_PLACE
    assert judged(world, PLAN) == Trial.FEASIBLE, "its second stage all-reduces"


def test_processes_know_no_pool_that_was_added() -> None:
    world = training()
    [first, *others] = world.job.pools
    more = replace(world.job, pools=(first, *others, replace(first, name="other")))
    assert judged(world, WITH_TWO_SERVERS, more) == Trial.FEASIBLE
    assert judged(world, WITH_TWO_SERVERS, replace(world.job, pools=(first,))) == Trial.IN_PLACE
    used = training(PLAN)
    assert judged(used, WITH_TWO_SERVERS, replace(used.job, pools=(first,))) == Trial.FEASIBLE, "it leaves that pool"


def test_a_job_that_does_not_train_starts_over() -> None:
    world = training()
    world.set_phase("Evaluating")
    assert judged(world, WITH_TWO_SERVERS) == Trial.FEASIBLE
    world.set_phase("Training")
    assert judged(world, WITH_TWO_SERVERS) == Trial.IN_PLACE
    world.accepted.clear()  # the coordinator is a new one, and has no plan
    assert judged(world, WITH_TWO_SERVERS) == Trial.FEASIBLE
