"""`training.denseExchange`: from the job to the problem, the plan, and the processes."""

from __future__ import annotations

import pytest

from heterps_operator.control.members import members
from heterps_operator.control.problem import build_problem
from heterps_operator.control.tuning.adoption import needs_restart
from heterps_operator.state.plan import JobPlan
from heterps_planner.model.problem import Problem
from heterps_planner.planning import plan
from heterps_runtime.contract import DenseExchange, Role, StageDocument
from tests.heterps_operator.helpers.world import PROFILE, World, make_job

RING = DenseExchange.ALL_REDUCE
SERVERS = DenseExchange.PARAMETER_SERVER


def planned(exchange: DenseExchange) -> JobPlan:
    job = make_job(dense_exchange=exchange)
    problem = build_problem(job, {pool.name: PROFILE for pool in job.pools})
    found = plan(Problem.from_json(problem))
    return JobPlan.from_json(found.to_json())


@pytest.mark.parametrize("exchange", list(DenseExchange))
def test_the_choice_of_a_job_is_in_its_plan_and_its_workers_are_told(exchange: DenseExchange) -> None:
    job = make_job(dense_exchange=exchange)
    for stage in (found := planned(exchange)).stages:
        device = job.pool(stage.pool).device_type
        assert stage.all_reduces(device) == (device != "CPU" or exchange == RING)
    for process in members(job, found):
        on_host = process.pool is not None and job.pool(process.pool).device_type == "CPU"
        told = exchange == RING and on_host and process.role == Role.WORKER
        assert ("--dense-exchange" in process.arguments) == told


def test_a_plan_that_says_nothing_means_the_exchange_of_the_device_type() -> None:
    stage = StageDocument("stage-0", "cpu", 0, 1, ("a", "b"), 1, 1)
    assert [stage.all_reduces(device) for device in ("CPU", "GPU", "XPU")] == [False, True, True]


def test_other_stages_take_effect_in_place_only_if_servers_hold_the_dense_parameters() -> None:
    job = make_job()
    observed = World(job).observed()
    cpu = next(pool.name for pool in job.pools if pool.device_type == "CPU")

    def plan_of(exchange: DenseExchange) -> JobPlan:
        one = {"name": "stage-0", "pool": cpu, "firstLayer": 0, "lastLayer": 1, "layers": ["a", "b"], "units": 1}
        stage = {**one, "pods": 1, "denseExchange": exchange}
        return JobPlan.from_json({"stages": [stage], "parameterServer": {"pool": cpu, "replicas": 1, "units": 1}})

    assert not needs_restart(job, observed, plan_of(SERVERS), plan_of(SERVERS))
    assert needs_restart(job, observed, plan_of(SERVERS), plan_of(RING))
    assert needs_restart(job, observed, plan_of(RING), plan_of(SERVERS))
