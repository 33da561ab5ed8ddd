"""`training.precision: Auto`: the planner chooses once, and the job keeps it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from heterps_operator.api.shapes import UnreadableError
from heterps_operator.control.problem import adapt_problem, build_problem
from heterps_operator.control.profiles import check_profile, is_profile, profile_digest, profile_warnings
from heterps_operator.state.status import Phase, Status
from heterps_operator.state.values import ComputePlan, StartProcess, SubmitPlan
from heterps_planner.errors import ProblemError
from heterps_planner.planning import plan
from heterps_planner.scenarios.variants import choose_variant, read_problems
from tests.heterps_operator.helpers.world import MEMBERS, PLAN, POOLS, PROFILE, World, make_job

JOB = make_job(precision="Auto", allowed_precisions=("fp32", "bf16"))


def faster(share: float) -> dict[str, Any]:
    """A profile whose layers take this share of the time."""
    layers = [{**layer, "computeSeconds": layer["computeSeconds"] * share} for layer in PROFILE["layers"]]
    return {**PROFILE, "layers": layers}


def measured(bf16: float) -> dict[str, Any]:
    """A pool's profile in both precisions."""
    return {"version": 1, "precisions": {"fp32": PROFILE, "bf16": {**faster(bf16), "warnings": ["noisy"]}}}


def choice(name: str) -> dict[str, Any]:
    """A plan with a choice, as the planner writes it."""
    candidates = [
        {"name": "fp32", "throughput": 26_000.0, "costPerHour": 2.54, "cost": 0.02},
        {"name": "bf16", "throughput": 52_000.0, "costPerHour": 2.54, "cost": 0.01},
    ]
    return {**PLAN, "precision": name, "precisions": candidates}


def profiled() -> World:
    world = World(JOB)
    world.settle()
    world.listen()
    world.settle()
    for pool in JOB.pools:
        world.profiles[pool.name] = measured(0.5)
        world.end(f"profile-{pool.name}", 0)
        world.settle()
    return world


def training() -> World:
    world = profiled()
    world.answer(choice("bf16"))
    world.settle()
    return world.train()


def problems(world: World) -> list[dict[str, Any]]:
    return [dict(action.problem) for action in world.actions if isinstance(action, ComputePlan)]


@pytest.mark.parametrize(("bf16", "chosen"), [(0.5, "bf16"), (1.0, "fp32"), (1.5, "fp32")])
def test_profiles_decide(bf16: float, chosen: str) -> None:
    given = read_problems(build_problem(JOB, {pool.name: measured(bf16) for pool in JOB.pools}))
    _, found = choose_variant(given, {variant: plan(problem) for variant, problem in given.items()})
    assert found.to_json()["precision"] == chosen


def test_the_planner_is_asked_about_every_allowed_precision() -> None:
    [asked] = problems(profiled())
    alone = {"cpu": faster(0.5), "gpu": faster(0.5)}
    assert asked["precisions"] == {
        "fp32": build_problem(make_job(), {"cpu": PROFILE, "gpu": PROFILE}),
        "bf16": build_problem(make_job(), alone),
    }


def test_members_and_coordinator_are_told_the_choice() -> None:
    world = training()
    specs = {action.spec.name: action.spec for action in world.actions if isinstance(action, StartProcess)}
    assert all(specs[name].arguments[-2:] == ("--precision", "bf16") for name in MEMBERS)
    assert not any(word == "--precision" for name in ("coordinator", "profile-cpu") for word in specs[name].arguments)
    assert [action.precision for action in world.actions if isinstance(action, SubmitPlan)] == ["bf16"]


def test_the_choice_is_told_with_the_figures_of_each_precision() -> None:
    told = training().status.condition("Planned").message
    assert told.endswith(
        "precision bf16 is the choice: fp32 costs $0.0200 (26,000 samples/s at $2.54/h); "
        "bf16 costs $0.0100 (52,000 samples/s at $2.54/h)"
    )


def test_a_later_plan_keeps_the_precision_even_if_another_is_cheaper_now() -> None:
    world = training()
    world.profiles = {pool.name: measured(3.0) for pool in JOB.pools}
    world.status = replace(world.status.without_plan("pools have changed"), incarnation=2)
    world.processes.clear()
    world.actions.clear()
    world.settle()
    [asked] = problems(world)
    assert asked == build_problem(make_job(), {"cpu": faster(3.0), "gpu": faster(3.0)})
    world.answer(PLAN)
    world.settle()
    world.listen()
    world.settle()
    specs = [action.spec for action in world.actions if isinstance(action, StartProcess)]
    assert {spec.precision for spec in specs if spec.name in MEMBERS} == {"bf16"}
    assert [action.precision for action in world.actions if isinstance(action, SubmitPlan)] == ["bf16"]


def test_the_choice_outlives_the_controller_and_a_resumed_run() -> None:
    stored = Status.from_json(training().status.to_json())
    again = Status.from_json(stored.begin_again(2_000.0).to_json())
    assert stored.precision == again.precision == training().status.precision
    assert again.without_plan("x").chosen_precision == "bf16"


def test_a_job_that_is_only_planned_may_choose_again() -> None:
    world = World(replace(JOB, goal="plan"))
    world.profiles = {pool.name: measured(0.5) for pool in JOB.pools}
    world.settle()
    world.answer(choice("bf16"))
    world.settle()
    assert world.status.phase == Phase.PLANNED
    assert (world.status.precision, world.status.chosen_precision) == (None, "bf16")
    assert world.status.without_plan("pools have changed").chosen_precision == ""


def test_a_waiting_job_remembers_the_precision_that_it_would_have_alone() -> None:
    world = World(JOB)
    world.profiles = {pool.name: measured(0.5) for pool in JOB.pools}
    world.free_units = {"cpu": 1, "gpu": 0}
    world.most_units = {"cpu": 8, "gpu": 2}
    world.settle()
    world.answer({"feasible": False, "reason": "ThroughputFloorUnreachable", "message": "no units"})
    world.settle()
    world.answer(choice("bf16"))
    world.settle()
    assert world.status.claim == {"cpu": 3, "gpu": 1}
    assert world.status.claim_precision == "bf16"
    assert world.status.precision is None


def test_a_profile_that_lacks_a_precision_fails_the_job_with_the_pool() -> None:
    world = World(JOB)
    world.profiles = {"cpu": measured(0.5), "gpu": PROFILE}
    world.settle()
    assert world.status.failure is not None
    assert world.status.failure.message == "profile of pool gpu: was not measured in fp32; measure it again"


def test_a_problem_file_is_adapted_in_each_precision() -> None:
    profiles = {pool.name: measured(0.5) for pool in JOB.pools}
    file, dear = build_problem(JOB, profiles), replace(JOB, pools=(replace(POOLS[0], max_units=3), POOLS[1]))
    assert adapt_problem(file, dear) == build_problem(dear, profiles)
    fixed = make_job(precision="bf16")
    assert adapt_problem(file, fixed) == build_problem(JOB.in_precision("bf16"), profiles)
    with pytest.raises(ProblemError, match=r"problem\.precisions: lacks tf32, which the job trains with"):
        adapt_problem(file, make_job(precision="tf32"))
    with pytest.raises(ProblemError, match="is of one precision, and the job allows fp32, bf16"):
        adapt_problem(build_problem(make_job(), {"cpu": PROFILE, "gpu": PROFILE}), JOB)


def test_warnings_say_in_which_precision_they_were_seen() -> None:
    assert profile_warnings({"cpu": measured(0.5)}) == ["profile of pool cpu in bf16: noisy"]


def test_a_profile_of_several_precisions_is_checked_like_one_of_each() -> None:
    assert is_profile(measured(0.5))
    broken = measured(0.5)
    broken["precisions"]["bf16"] = {**PROFILE, "layers": [{}]}
    with pytest.raises(UnreadableError, match=r"profiles\[cpu\].precisions.*layers\[0\].name"):
        check_profile(broken, "profiles[cpu]")
    deep: Any = 1
    for _ in range(20):
        deep = [deep]
    with pytest.raises(UnreadableError, match=r"precisions.fp32"):
        check_profile({"version": 1, "precisions": {"fp32": {**PROFILE, "measured": deep}}})


def test_a_stored_profile_is_found_for_the_same_precisions_only() -> None:
    def digest(**training: Any) -> str:
        spec = {
            "model": {"entrypoint": "a:b"}, "data": {}, "training": {"globalBatchSize": 8, **training},
        }  # fmt: skip
        pools = [{"metadata": {"name": "cpu"}, "spec": {"deviceType": "CPU"}}]
        return profile_digest({"job": {"spec": spec}, "pools": pools}, "cpu", "source")

    auto = digest(precision="Auto", allowedPrecisions=["fp32", "bf16"])
    assert auto == digest(precision="Auto", allowedPrecisions=["bf16", "fp32"])
    others = [digest(precision="Auto", allowedPrecisions=allowed) for allowed in (["fp32"], ["fp32", "fp64"])]
    assert len({auto, *others, digest(precision="fp32")}) == 4
