"""The number of units follows the measured throughput, without a restart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from heterps_operator.control.problem import build_problem
from heterps_operator.control.tuning.adoption import needs_restart
from heterps_operator.control.tuning.calibration import calibrate, divide_workers
from heterps_operator.state.plan import JobPlan
from heterps_operator.state.values import ComputePlan, PoolCapacity, StartProcess, StopProcess, SubmitPlan
from heterps_planner.model.problem import Problem
from heterps_planner.plans.plan import Infeasible, Plan
from heterps_planner.scenarios.evaluate import evaluate
from tests.heterps_operator.helpers.world import JOB_PLAN, PLAN, PROFILE, World, make_job

LOOK, GIVE_UP = 60.0, 180.0  # seconds of measurements before units may be added or removed


def trained(
    world: World, rate: float, stages: Sequence[float] | None = None, steps: int = 50, past: float = LOOK
) -> World:
    """Bring a job into training at a measured throughput, until just before the review after `past` seconds."""
    rates = [60_000.0 for _ in present(world).stages] if stages is None else stages
    figures = [{"name": f"stage-{i}", "samplesPerSecond": value} for i, value in enumerate(rates)]
    world.set_phase("Training", committedSteps=steps, samplesPerSecond=rate, stages=figures)
    world.settle()
    for _ in range(int(past / 10) - 1):
        world.time += 10
        world.settle()
    world.time += 10
    return world


def running(plan: dict[str, Any] = PLAN, **changes: Any) -> World:
    world = World(make_job(**changes)).profiled()
    world.answer(plan)
    world.settle()
    world.join("ps-0", *present(world).workers)
    return world


def present(world: World) -> JobPlan:
    assert world.status.plan is not None
    return world.status.plan


def rescaled(pods: int, cost: float = 2.6) -> dict[str, Any]:
    first, second = PLAN["stages"]
    return {**PLAN, "method": "fixed", "stages": [{**first, "pods": pods, "units": pods}, second], "costPerHour": cost}


def test_a_missed_floor_adds_workers_and_leaves_the_others_alone() -> None:
    world = trained(running(), rate=12_000.0)
    [request] = world.turn().actions
    assert isinstance(request, ComputePlan)
    assert request.revision == 2
    assert request.stages == ({"pool": "cpu", "lastLayer": 0}, {"pool": "gpu", "lastLayer": 2})
    world.answer(rescaled(4))
    actions = world.settle()
    assert [a for a in actions if isinstance(a, SubmitPlan)] == [SubmitPlan(present(world), 2)]
    assert [a.spec.name for a in actions if isinstance(a, StartProcess)] == ["worker-0-2", "worker-0-3"]
    assert not any(isinstance(a, StopProcess) for a in actions)
    assert "Rescaled" in [c.type for c in world.status.conditions if c.status == "True"]
    [event] = [e for e in world.events if e.reason == "UnitsChanged"]
    assert event.message == "measured 12,000 samples/s, the floor is 20,000: stage-0 on cpu: 2 -> 4 workers"
    first, second = world.status.history
    assert (first.revision, first.reason) == (1, "PlanComputed")
    assert first.measured == pytest.approx(12_000.0)
    assert (second.revision, second.reason, second.message) == (2, "UnitsChanged", event.message)
    assert world.status.restarts == {}


def test_units_that_others_took_meanwhile_are_not_taken() -> None:
    world = trained(running(), rate=12_000.0)
    world.turn()
    world.answer(rescaled(4))
    world.free_units = {"cpu": 4}  # two workers and the server hold three of them
    assert world.settle() == []
    assert (world.status.plan, world.status.review) == (JOB_PLAN, None)


def test_units_beyond_what_the_floor_needs_are_given_up_slowly() -> None:
    world = running(elasticity={"max_scale_down_percent": 25})
    world.status = replace(world.status, plan=JobPlan.from_json(rescaled(8, 5.0)), plan_revision=2)
    world.settle()
    world.join(*(f"worker-0-{i}" for i in range(8)))
    trained(world, rate=50_000.0, past=GIVE_UP).turn()
    world.answer(rescaled(2))
    actions = world.settle()
    plan = present(world)
    assert plan.pods == (6, 1), "a quarter of eight at once"
    assert plan.cost_per_hour == pytest.approx(6 * 0.04 + 2.42 + 0.04)
    assert not any(isinstance(a, StartProcess | StopProcess) for a in actions), "the coordinator ends them"
    world.end("worker-0-7", 0)
    world.end("worker-0-6", 0)
    world.settle()
    assert world.status.failures == 0, "that is no death"


def test_a_dropped_worker_that_does_not_end_is_ended() -> None:
    world = running(rescaled(2, 3.0))
    trained(world, rate=50_000.0, past=GIVE_UP).turn()
    world.answer(rescaled(1, 2.4))
    world.settle()
    world.time += 11
    stops = [a for a in world.settle() if isinstance(a, StopProcess)]
    assert [stop.name for stop in stops] == ["worker-0-1"]


def test_a_worker_that_is_wanted_again_is_a_new_attempt() -> None:
    world = running(rescaled(2, 3.0))
    trained(world, rate=50_000.0, past=GIVE_UP).turn()
    world.answer(rescaled(1, 2.4))
    world.settle()
    world.end("worker-0-1", 0)
    trained(world, rate=10_000.0).turn()
    world.answer(rescaled(2))
    [start] = [a for a in world.settle() if isinstance(a, StartProcess)]
    assert (start.spec.name, start.spec.attempt) == ("worker-0-1", 2)


@pytest.mark.parametrize("rate", [19_700.0, 20_000.0, 22_500.0])
def test_a_throughput_near_the_floor_changes_nothing(rate: float) -> None:
    assert trained(running(), rate, past=GIVE_UP).settle() == []


@pytest.mark.parametrize(
    "changes",
    [
        {"elasticity": {"mode": "Disabled"}},
        {"elasticity": {"workers": 3}},
        {"elasticity": {"workers": 3}, "min_samples_per_second": 0.0},
        {"min_samples_per_second": 0.0},
        {"stages_by_hand": ({"pool": "cpu"},)},
    ],
)
def test_nothing_is_changed_where_nobody_wants_it(changes: dict[str, Any]) -> None:
    assert trained(running(**changes), 1_000.0, past=GIVE_UP).settle() == []


def test_too_early_figures_are_not_trusted() -> None:
    assert trained(running(), 1_000.0, steps=19).settle() == []
    world = running()
    world.member("worker-0-1")["state"] = "absent"
    assert not any(isinstance(a, ComputePlan) for a in trained(world, 1_000.0).settle())


TOO_SLOW = {"feasible": False, "message": "these stages reach 15,000 samples/s; limited by cpu"}
OTHER_STAGES: dict[str, Any] = {
    **PLAN,
    "stages": [{**PLAN["stages"][1], "name": "stage-0", "firstLayer": 0, "layers": ["embedding", "mlp", "head"]}],
    "throughput": 21_000.0,
    "costPerHour": 2.46,
}


def out_of_reach(world: World) -> ComputePlan:
    """Miss the floor with all units that the stages could have, until the planner is asked for other stages."""
    began = trained(world, 12_000.0).time
    while world.time < began + 600:
        for action in world.turn().actions:
            if isinstance(action, ComputePlan):
                if not action.stages:
                    assert world.time >= began - LOOK + GIVE_UP
                    return action
                world.answer(TOO_SLOW)
        world.time += 10
    raise AssertionError("other stages are not asked for")


def test_a_floor_out_of_reach_is_said_and_training_goes_on() -> None:
    world = running()
    request = out_of_reach(world)
    assert request.problem["minSamplesPerSecond"] == 20_000.0
    problem = Problem.from_json({**request.problem, "minSamplesPerSecond": 0.0})
    found = evaluate(problem, [{"pool": "cpu", "lastLayer": 0, "units": 2}, {"pool": "gpu", "units": 1}])
    assert isinstance(found, Plan)
    assert found.throughput == pytest.approx(12_000.0), "the corrected profile predicts what is measured"
    world.answer({"feasible": False, "message": "no plan reaches 20,000 samples/s"})
    world.settle()
    condition = world.status.condition("Rescaled")
    assert (condition.status, condition.reason) == ("False", "CannotRescale")
    assert condition.message == (
        "measured 12,000 samples/s, the floor is 20,000; these stages reach 15,000 samples/s; limited by cpu; "
        "no plan reaches 20,000 samples/s"
    )
    assert world.status.plan == JOB_PLAN
    assert world.status.phase == "Running"
    world.time += 30
    assert world.settle() == [], "not asked again before the pause is over"


def test_other_stages_that_reach_the_floor_replace_those_that_cannot() -> None:
    world = running()
    out_of_reach(world)
    world.answer(OTHER_STAGES)
    world.settle()
    assert (world.status.phase, "stop" in world.accepted) == ("Stopping", True)
    [event] = [e for e in world.events if e.reason == "StagesChanged"]
    assert event.message == (
        "measured 12,000 samples/s, the floor is 20,000; these stages reach 15,000 samples/s; limited by cpu; "
        "gpu x1 [embedding..head] does by the corrected profile: the job saves a checkpoint and moves to it"
    )
    world.set_phase("Stopped")
    for name in sorted(world.running()):
        world.end(name, 0)
    world.settle()
    plan = present(world)
    assert (plan.summary, world.status.plan_revision) == ("gpu x1 [embedding..head]", 2)
    assert (world.status.plan_reason, world.status.history[-1].message) == ("Replanned", event.message)
    assert (world.status.incarnation, world.status.failures, world.status.outcome) == (2, 0, None)
    assert "coordinator" in world.running()


CPU_STAGES: dict[str, Any] = {
    **PLAN,
    "stages": [
        {**PLAN["stages"][0], "lastLayer": 1, "layers": ["embedding", "mlp"], "units": 3, "pods": 3},
        {**PLAN["stages"][0], "name": "stage-1", "firstLayer": 2, "lastLayer": 2, "layers": ["head"]},
    ],
}
ONE_CPU_STAGE: dict[str, Any] = {
    **PLAN,
    "stages": [{**PLAN["stages"][0], "lastLayer": 2, "layers": ["embedding", "mlp", "head"]}],
}


def test_other_cpu_stages_take_effect_while_the_job_runs() -> None:
    world = running(ONE_CPU_STAGE)
    out_of_reach(world)
    world.answer(CPU_STAGES)
    actions = world.settle()
    assert (world.status.phase, "stop" in world.accepted) == ("Running", False)
    assert (present(world).summary, world.status.plan_revision) == ("cpu x3 [embedding..mlp] -> cpu x2 [head]", 2)
    [event] = [e for e in world.events if e.reason == "Redivided"]
    assert event.message.endswith("does by the corrected profile: the job changes to it while it runs")
    assert (world.status.plan_reason, world.status.history[-1].message) == ("Redivided", event.message)
    assert world.status.moved_for_floor.floor == 20_000.0, "the next change waits"
    started = [action.spec.name for action in actions if isinstance(action, StartProcess)]
    assert started == ["worker-0-2", "worker-1-0", "worker-1-1"]
    assert world.status.incarnation == 1


def test_a_dropped_worker_is_not_ended_while_it_trains() -> None:
    """The stages of before go on until those of the next plan can begin."""
    world = running(CPU_STAGES)
    out_of_reach(world)
    world.answer(ONE_CPU_STAGE)
    assert world.document is not None
    before = world.document["members"]
    world.settle()
    after, world.document["members"] = world.document["members"], before
    world.time += 60
    assert not [action for action in world.settle() if isinstance(action, StopProcess)]
    world.document["members"] = after
    stopped = {action.name for action in world.settle() if isinstance(action, StopProcess)}
    assert stopped == {"worker-0-2", "worker-1-0", "worker-1-1"}


def test_a_new_server_starts_beside_the_present_ones() -> None:
    world = running(CPU_STAGES)
    out_of_reach(world)
    world.answer({**ONE_CPU_STAGE, "parameterServer": {"pool": "cpu", "replicas": 2, "units": 2}})
    actions = world.settle()
    started = [action.spec.name for action in actions if isinstance(action, StartProcess)]
    assert "ps-1" in started
    assert not [action for action in actions if isinstance(action, StopProcess)]
    assert world.status.incarnation == 1


@pytest.fixture
def with_fewer_servers() -> World:
    """A job that has changed from two servers to one."""
    world = running({**CPU_STAGES, "parameterServer": {"pool": "cpu", "replicas": 2, "units": 2}})
    world.join("ps-1")
    out_of_reach(world)
    world.answer(CPU_STAGES)
    world.settle()
    assert present(world).servers.replicas == 1
    return world


def test_a_change_of_the_servers_alone_says_so(with_fewer_servers: World) -> None:
    [event] = [event for event in with_fewer_servers.events if event.reason == "Redivided"]
    assert " with 2 -> 1 parameter servers does by the corrected profile" in event.message


def test_the_end_of_a_dropped_server_is_no_death(with_fewer_servers: World) -> None:
    world = with_fewer_servers
    world.end("ps-1", 0)
    world.settle()
    assert (world.status.failures, world.status.restarts) == (0, {})
    assert not [event for event in world.events if event.reason == "ProcessRestarts"]
    world.end("ps-0", 0)
    world.settle()
    assert (world.status.failures, world.status.restarts) == (1, {"ps-0": 1}), "the job needs this one"


def test_a_dropped_server_that_does_not_end_is_ended(with_fewer_servers: World) -> None:
    with_fewer_servers.time += 11
    stopped = [action.name for action in with_fewer_servers.settle() if isinstance(action, StopProcess)]
    assert stopped == ["ps-1"]


@pytest.mark.parametrize(
    ("new", "changes", "restarts"),
    [
        ({}, {}, False),
        ({"parameterServer": {"pool": "cpu", "replicas": 2, "units": 2}}, {"free_units": {"cpu": 7}}, False),
        ({"parameterServer": {"pool": "cpu", "replicas": 2, "units": 2}}, {"free_units": {"cpu": 6}}, True),
        ({"parameterServer": {"pool": "cpu", "replicas": 1, "units": 2}}, {}, True),  # the server needs more units
        ({"parameterServer": {"pool": "accelerator", "replicas": 1, "units": 1}}, {}, True),
        ({"stages": PLAN["stages"]}, {}, True),  # the second stage all-reduces
        ({}, {"free_units": {"cpu": 5}}, True),  # one server, two workers that run, and three more
        ({}, {"free_units": {"cpu": 6}}, False),
        ({}, {"max_units": 5}, True),
    ],
)
def test_what_needs_a_restart(new: dict[str, Any], changes: dict[str, Any], *, restarts: bool) -> None:
    job = make_job()
    pools = tuple(replace(pool, max_units=changes.get("max_units")) for pool in job.pools)
    capacity = PoolCapacity(free_units=changes.get("free_units", {}))
    observed = replace(running().observed(), capacity=capacity)
    plans = JobPlan.from_json(ONE_CPU_STAGE), JobPlan.from_json({**CPU_STAGES, **new})
    assert needs_restart(replace(job, pools=pools), observed, *plans) == restarts


def test_stages_that_miss_the_floor_again_are_kept_for_a_while() -> None:
    world = running()
    out_of_reach(world)
    world.answer(OTHER_STAGES)
    world.settle()
    moves = world.status.moved_for_floor
    assert (moves.floor, moves.time, moves.wait) == (20_000.0, world.time, 600.0)
    assert moves.until(20_000.0, moves.time + 600) is None
    assert moves.until(25_000.0, moves.time) is None, "another floor is another question"
    waits = [moves.again(floor, moves.time + 700, 60.0).wait for floor in (20_000.0, 25_000.0)]
    assert waits == [1200.0, 600.0]

    again = running()
    again.status = replace(again.status, moved_for_floor=replace(moves, time=again.time))
    out_of_reach(again)
    assert again.time >= 1_000.0 + 600.0, "not before the wait is over"
    told = [e.message for e in again.events if e.reason == "CannotRescale"]
    assert told[-1].endswith("; the last move to other stages did not help, the next is tried at 1970-01-01T00:26:40Z")


def test_other_stages_without_room_are_left() -> None:
    world = running()
    out_of_reach(world)
    world.answer(OTHER_STAGES)
    world.free_units = {"gpu": 0}
    assert world.settle() == []
    assert (world.status.plan, world.status.phase, world.status.review) == (JOB_PLAN, "Running", None)


def test_a_machine_whose_cores_are_all_busy_gets_no_more_workers() -> None:
    machine = {"cores": 2.0, "busyCores": 2.1, "throughputOnPools": 20_000.0}
    world = trained(running({**PLAN, "machine": machine}), 12_000.0)
    for _ in range(20):
        assert world.settle() == []
        world.time += 30
    condition = world.status.condition("Rescaled")
    assert (condition.status, condition.reason) == ("False", "CoresBusy")
    assert condition.message.startswith("this machine has 2 cores; the plan keeps 2.1 busy, so more workers would not")
    assert [e.reason for e in world.events].count("CoresBusy") == 1
    spare = trained(running({**PLAN, "machine": {**machine, "busyCores": 1.9}}), 12_000.0)
    assert any(isinstance(a, ComputePlan) for a in spare.turn().actions)


def test_servers_that_are_too_few_for_the_floor_are_named() -> None:
    world = running(min_samples_per_second=30_000.0)
    servers = {"processorSecondsPerSample": 4e-5, "workers": 2}  # one sustains 25,000 samples/s
    world.profiles = {"cpu": {**PROFILE, "parameterServer": servers}, "gpu": PROFILE}
    [request] = trained(world, rate=24_000.0).turn().actions
    assert isinstance(request, ComputePlan)
    assert request.problem["parameterServer"] == {"pool": "cpu", "units": 1, "coresPerSamplePerSecond": 4e-5}
    found = evaluate(Problem.from_json(request.problem), list(request.stages))
    assert isinstance(found, Infeasible)
    world.answer(found.to_json())
    world.settle()
    condition = world.status.condition("Rescaled")
    assert (condition.status, condition.reason) == ("False", "CannotRescale")
    assert "1 parameter server on cpu sustains 25,000 samples/s" in condition.message
    assert "spec.parameterServer.replicas" in condition.message


def test_a_calibrated_problem_predicts_what_is_measured() -> None:
    job = make_job()
    problem = build_problem(job, {"cpu": PROFILE, "gpu": PROFILE})
    plan = JOB_PLAN
    changed = calibrate(problem, plan, 8_000.0, [9_000.0, 14_000.0])
    stages = [{"pool": "cpu", "lastLayer": 0, "units": 2}, {"pool": "gpu", "units": 1}]
    free = {**changed, "minSamplesPerSecond": 0}
    found = evaluate(Problem.from_json(free), stages)
    assert isinstance(found, Plan)
    assert found.throughput == pytest.approx(8_000.0)
    assert [stage.throughput for stage in found.stages] == pytest.approx([8_000.0, 14_000.0 * 8 / 9])
    with pytest.raises(ValueError, match="another model"):
        calibrate({**problem, "layers": problem["layers"][:2]}, plan, 8_000.0, [9_000.0, 14_000.0])


@pytest.mark.parametrize(("workers", "pods"), [(1, [1, 1]), (2, [1, 1]), (3, [2, 1]), (5, [4, 1]), (6, [5, 1])])
def test_every_worker_goes_to_the_slowest_stage(workers: int, pods: list[int]) -> None:
    plan = JOB_PLAN
    problem = build_problem(make_job(), {"cpu": PROFILE, "gpu": PROFILE})
    layers = [{**layer, "pools": {**layer["pools"]}} for layer in problem["layers"]]
    layers[0]["pools"]["cpu"] = {**layers[0]["pools"]["cpu"], "computeSeconds": 5.0, "parallelFraction": 1.0}
    found = divide_workers({**problem, "layers": layers}, plan, workers)
    assert found == pods


def test_workers_are_divided_so_that_no_other_division_is_faster() -> None:
    plan = JOB_PLAN
    gpu = {"name": "gpu", "maxUnits": 8}
    document = build_problem(make_job(), {"cpu": PROFILE, "gpu": PROFILE})
    pools = [pool | gpu if pool["name"] == "gpu" else pool for pool in document["pools"]]
    problem = {**document, "pools": pools, "minSamplesPerSecond": 0.0}

    def throughput(first: int, second: int) -> float:
        stages = [{"pool": "cpu", "lastLayer": 0, "units": first}, {"pool": "gpu", "units": second}]
        found = evaluate(Problem.from_json(problem), stages)
        assert isinstance(found, Plan)
        return found.throughput

    for workers in range(2, 10):
        first, second = divide_workers(problem, plan, workers)
        assert first + second == workers
        best = max(throughput(n, workers - n) for n in range(1, workers) if n <= 7 and workers - n <= 8)
        assert throughput(first, second) == pytest.approx(best)


def test_pools_have_limits() -> None:
    problem = build_problem(make_job(), {"cpu": PROFILE, "gpu": PROFILE})
    first, second = divide_workers(problem, JOB_PLAN, 100)
    assert (first, second) == (7, 2), "8 units of cpu of which the server has one, 2 of gpu"


@pytest.mark.parametrize("floor", [0.0, 20_000.0, 1e9])
def test_the_number_of_workers_that_somebody_wants_goes_before_the_floor(floor: float) -> None:
    world = trained(running(elasticity={"workers": 5}, min_samples_per_second=floor), 50_000.0)
    [request] = world.turn().actions
    assert isinstance(request, ComputePlan)
    assert request.problem["minSamplesPerSecond"] == 0
    assert sum(stage["units"] for stage in request.stages) == 5
    pods = [stage["units"] for stage in request.stages]
    first, second = PLAN["stages"]
    stages = [{**first, "pods": pods[0], "units": pods[0]}, {**second, "pods": pods[1], "units": pods[1]}]
    world.answer({**PLAN, "stages": stages, "costPerHour": 5.0})
    started = [a.spec.name for a in world.settle() if isinstance(a, StartProcess)]
    assert len(started) == 2
    [event] = [e for e in world.events if e.reason == "UnitsChanged"]
    assert event.message.startswith("elasticity.workers asks for 5 workers, the plan has 3: stage-")
    world.join(*started)
    assert trained(world, 50_000.0).settle() == [], "that is what is wanted"
