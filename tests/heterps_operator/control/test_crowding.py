"""Plans that find no room on the nodes, though the count of the pool's units says that there is some."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heterps_operator.api.job import JobSpec
from heterps_operator.control.disruptions.crowding import limited_to_room
from heterps_operator.state.plan import JobPlan
from heterps_operator.state.status import Status
from heterps_operator.state.values import ComputePlan, PodProblem, PoolCapacity
from tests.heterps_operator.helpers.world import JOB_PLAN, PLAN, World, make_job


def crowded_world(problem: PodProblem, job: JobSpec | None = None) -> World:
    """A job of which one worker finds no room at the start."""
    world = World(job).planned()
    world.processes["worker-0-1"] = replace(world.processes["worker-0-1"], problem=problem)
    world.settle()
    return world


CROWDED = PodProblem("Unschedulable", "2 Insufficient cpu", crowded=True)
LESS = JobPlan.from_json({**PLAN, "stages": [{**PLAN["stages"][0], "units": 1, "pods": 1}, PLAN["stages"][1]]})


def test_a_plan_that_finds_no_room_at_the_start_is_replaced_by_one_that_does() -> None:
    world = crowded_world(CROWDED)
    world.time += 59
    assert world.settle() == []
    world.time += 2
    world.settle()
    assert (world.status.phase, world.status.incarnation, world.status.plan) == ("Restarting", 2, None)
    assert world.events[-1].message == (
        "worker-0-1 has found no room in pool cpu for 60 s, 2 of 3 units have: the job is planned again with these"
    )
    for name in world.running():
        world.end(name, -15)
    [asked] = [action for action in world.settle() if isinstance(action, ComputePlan)]
    assert {pool["name"]: pool["maxUnits"] for pool in asked.problem["pools"]} == {"cpu": 2, "gpu": 2}
    world.answer(dict(LESS.document))
    world.settle()
    assert world.status.plan == LESS
    world.listen()
    world.settle()
    world.join(*LESS.workers, "ps-0")
    world.set_phase("Training", committedSteps=1, samplesPerSecond=50_000.0)
    world.settle()
    assert world.status.phase == "Running"
    assert world.status.crowded == {}, "later it may have more"


@pytest.mark.parametrize("why", ["another reason", "nodes will come", "by hand", "nothing fits"])
def test_a_plan_is_kept_that_waits_for_something_else_than_room(why: str) -> None:
    job, problem = make_job(), CROWDED
    if why == "another reason":
        problem = PodProblem("Unschedulable", "a volume claim is missing")
    elif why == "nodes will come":
        job = make_job(pools=tuple(replace(pool, autoscaled=True) for pool in job.pools))
    elif why == "by hand":
        job = make_job(stages_by_hand=({"pool": "cpu"}, {"pool": "gpu"}))
    world = crowded_world(problem, job)
    if why == "nothing fits":
        for name in ("ps-0", "worker-0-0"):
            world.processes[name] = replace(world.processes[name], problem=problem)
    world.time += 120
    assert world.settle() == []
    assert (world.status.incarnation, world.status.plan) == (1, JOB_PLAN)


def test_a_job_that_waits_for_more_room_tries_again_after_a_while() -> None:
    status = replace(Status(), crowded={"cpu": 1}, crowded_since=1_000.0)
    observed = replace(World().observed(), capacity=PoolCapacity({"cpu": 8, "gpu": 2}, {"cpu": 8}))
    limited = limited_to_room(observed, status).capacity
    assert (limited.free_units, limited.room) == ({"cpu": 1, "gpu": 2}, {"cpu": 1})
    assert limited_to_room(replace(observed, time=1_301.0), status).capacity == observed.capacity
