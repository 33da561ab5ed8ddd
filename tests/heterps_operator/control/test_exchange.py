"""`training.denseExchange: Auto`: the planner chooses, and the job keeps the exchange as long as its plan."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from heterps_operator.api.defaults import complete_job
from heterps_operator.api.job import JobSpec
from heterps_operator.api.schema import load_schemas
from heterps_operator.control.choices import as_chosen, as_claimed
from heterps_operator.control.members import members
from heterps_operator.control.problem import adapt_problem, build_problem
from heterps_operator.control.profiles import is_profile, profile_digest, profile_warnings
from heterps_operator.state.plan import JobPlan
from heterps_operator.state.status import Status
from heterps_operator.state.values import ComputePlan, StartProcess
from heterps_planner.errors import ProblemError
from heterps_planner.planning import plan
from heterps_planner.scenarios.variants import choose_variant, read_problems
from heterps_runtime.config import RunConfig
from heterps_runtime.contract import DenseExchange
from tests.heterps_operator.helpers import documents
from tests.heterps_operator.helpers.documents import make_job as make_document
from tests.heterps_operator.helpers.world import MEMBERS, PLAN, PROFILE, World, make_job

JOB = make_job(dense_exchange=None, any_exchange=True)
BOTH = ("ParameterServer", "AllReduce")


def faster(share: float) -> dict[str, Any]:
    """A profile whose layers take this share of the time."""
    layers = [{**layer, "computeSeconds": layer["computeSeconds"] * share} for layer in PROFILE["layers"]]
    return {**PROFILE, "layers": layers}


def measured(all_reduce: float) -> dict[str, Any]:
    """The profiles of both pools: only cores can exchange gradients in two ways."""
    reduced = {**faster(all_reduce), "warnings": ["noisy"]}
    return {"cpu": {"version": 1, "denseExchanges": {"ParameterServer": PROFILE, "AllReduce": reduced}}, "gpu": PROFILE}


def choice(name: str) -> dict[str, Any]:
    """A plan with a choice, as the planner writes it."""
    stages = [
        {**stage, "denseExchange": name} if stage["pool"] == "cpu" and name == "AllReduce" else stage
        for stage in PLAN["stages"]
    ]
    candidates = [
        {"name": "ParameterServer", "throughput": 26_000.0, "costPerHour": 2.54, "cost": 0.02},
        {"name": "AllReduce", "throughput": 52_000.0, "costPerHour": 2.54, "cost": 0.01},
    ]
    return {**PLAN, "stages": stages, "denseExchange": name, "denseExchanges": candidates}


def training(name: str = "AllReduce") -> World:
    world = World(JOB)
    world.profiles = measured(0.5)
    world.settle()
    world.answer(choice(name))
    world.settle()
    world.listen()
    world.settle()
    return world.train()


def problems(world: World) -> list[dict[str, Any]]:
    return [dict(action.problem) for action in world.actions if isinstance(action, ComputePlan)]


@pytest.mark.parametrize(
    ("all_reduce", "chosen"), [(0.5, "AllReduce"), (1.0, "ParameterServer"), (1.5, "ParameterServer")]
)
def test_profiles_decide(all_reduce: float, chosen: str) -> None:
    given = read_problems(build_problem(JOB, measured(all_reduce)))
    _, found = choose_variant(given, {variant: plan(problem) for variant, problem in given.items()})
    written = found.to_json()
    assert written["denseExchange"] == chosen
    on_cores = [stage for stage in written["stages"] if stage["pool"] == "cpu"]
    assert {stage.get("denseExchange", "ParameterServer") for stage in on_cores} <= {chosen}
    assert JobPlan.from_json(written).exchange_on_cpus == (chosen if on_cores else "ParameterServer")


def test_the_planner_is_asked_about_both() -> None:
    world = World(JOB)
    world.profiles = measured(0.5)
    world.settle()
    [asked] = problems(world)
    assert asked["denseExchanges"] == {
        "ParameterServer": build_problem(make_job(), {"cpu": PROFILE, "gpu": PROFILE}),
        "AllReduce": build_problem(
            make_job(dense_exchange=DenseExchange.ALL_REDUCE),
            {"cpu": measured(0.5)["cpu"]["denseExchanges"]["AllReduce"], "gpu": PROFILE},
        ),
    }


def test_workers_on_cores_are_told_the_choice_and_it_is_told_with_its_reason() -> None:
    world = training()
    specs = {action.spec.name: action.spec for action in world.actions if isinstance(action, StartProcess)}
    told = {name: spec.dense_exchange for name, spec in specs.items() if name in MEMBERS and spec.dense_exchange}
    on_cores = [one.name for one in members(JOB, JobPlan.from_json(PLAN)) if one.pool == "cpu" and one.role == "worker"]
    assert told == dict.fromkeys(on_cores, "AllReduce")
    assert world.status.condition("Planned").message.endswith(
        "dense exchange AllReduce is the choice: ParameterServer costs $0.0200 (26,000 samples/s at $2.54/h); "
        "AllReduce costs $0.0100 (52,000 samples/s at $2.54/h)"
    )


@pytest.mark.parametrize("name", BOTH)
def test_a_job_keeps_the_exchange_of_its_plan(name: str) -> None:
    status = training(name).status
    kept = as_chosen(JOB, Status.from_json(status.to_json()))
    assert (kept.dense_exchange, kept.chooses_exchange) == (name, False)
    assert "denseExchanges" not in build_problem(kept, measured(0.5))


def test_a_new_plan_of_a_stopped_job_may_have_the_other() -> None:
    world = training()
    world.profiles = measured(3.0)
    world.status = replace(world.status.without_plan("pools have changed"), incarnation=2)
    world.processes.clear()
    world.actions.clear()
    world.settle()
    [asked] = problems(world)
    assert asked == build_problem(JOB, measured(3.0))


def test_a_waiting_job_stands_in_line_with_the_exchange_that_it_would_have_alone() -> None:
    world = World(JOB)
    world.profiles = measured(0.5)
    world.free_units = {"cpu": 1, "gpu": 0}
    world.most_units = {"cpu": 8, "gpu": 2}
    world.settle()
    assert as_claimed(JOB, world.status).dense_exchange == "ParameterServer", "until it is known"
    world.answer({"feasible": False, "reason": "ThroughputFloorUnreachable", "message": "no units"})
    world.settle()
    world.answer(choice("AllReduce"))
    world.settle()
    assert world.status.claim == {"cpu": 3, "gpu": 1}
    assert as_claimed(JOB, world.status).dense_exchange == "AllReduce"


@pytest.mark.parametrize(
    ("pools", "encryption", "chosen"),
    [
        (("cpu", "v100"), "Disabled", None),
        (("cpu", "v100"), "Required", "ParameterServer"),
        (("v100",), "Disabled", "AllReduce"),
    ],
)
def test_a_job_without_cores_or_with_encryption_has_no_choice(
    pools: tuple[str, ...], encryption: str, chosen: str | None
) -> None:
    document = complete_job(
        load_schemas()["HeterPSJob"].with_defaults(
            make_document(
                training={"globalBatchSize": 4096, "denseExchange": "Auto"},
                pools=[{"name": name} for name in pools],
                encryption=encryption,
            )
        )
    )
    job = JobSpec.from_manifests(document, documents.POOLS.values())
    assert (job.dense_exchange, job.any_exchange) == (chosen, chosen is None)
    config = RunConfig.from_json(
        {"version": 1, "job": document, "pools": [*documents.POOLS.values()], "workDirectory": "/work"}
    )
    assert config.dense_exchange == (None if encryption == "Disabled" else "ParameterServer")


def test_a_profile_of_one_exchange_fails_the_job_with_the_pool() -> None:
    world = World(JOB)
    world.profiles = {"cpu": PROFILE, "gpu": PROFILE}
    world.settle()
    assert world.status.failure is not None
    assert (
        world.status.failure.message == "profile of pool cpu: was not measured with ParameterServer; measure it again"
    )


def test_a_problem_file_is_adapted_with_each_exchange() -> None:
    file = build_problem(JOB, measured(0.5))
    assert adapt_problem(file, JOB) == file
    fixed = make_job(dense_exchange=DenseExchange.ALL_REDUCE)
    assert adapt_problem(file, fixed) == file["denseExchanges"]["AllReduce"]
    with pytest.raises(ProblemError, match=r"problem\.denseExchanges: is missing: the file is of one exchange"):
        adapt_problem(build_problem(make_job(), {"cpu": PROFILE, "gpu": PROFILE}), JOB)
    lacking = {"version": 1, "denseExchanges": {"AllReduce": file["denseExchanges"]["AllReduce"]}}
    with pytest.raises(
        ProblemError, match=r"problem\.denseExchanges: lacks ParameterServer, which the job trains with"
    ):
        adapt_problem(lacking, make_job())


def test_precision_and_exchange_may_both_be_left_to_the_planner() -> None:
    job = replace(JOB, precision="Auto", allowed_precisions=("fp32", "bf16"))
    cpu, gpu = measured(0.5)["cpu"], {"version": 1, "precisions": {"fp32": PROFILE, "bf16": PROFILE}}
    profiles = {"cpu": {"version": 1, "precisions": {"fp32": cpu, "bf16": cpu}}, "gpu": gpu}
    assert all(map(is_profile, profiles.values()))
    file = build_problem(job, profiles)
    assert [*read_problems(file)] == [(precision, exchange) for precision in ("fp32", "bf16") for exchange in BOTH]
    assert adapt_problem(file, job) == file
    assert profile_warnings(profiles) == [
        f"profile of pool cpu in {precision} with AllReduce: noisy" for precision in ("fp32", "bf16")
    ]
    nested = {"version": 1, "denseExchanges": {"AllReduce": gpu}}
    assert not is_profile(nested), "the precision comes first"


def test_a_stored_profile_is_found_for_the_same_exchange_only() -> None:
    def digest(device: str, **training: Any) -> str:
        spec = {"model": {"entrypoint": "a:b"}, "data": {}, "training": {"globalBatchSize": 8, **training}}
        pools = [{"metadata": {"name": "pool"}, "spec": {"deviceType": device}}]
        return profile_digest({"job": {"spec": spec}, "pools": pools}, "pool", "source")

    names = ("ParameterServer", "AllReduce", "Auto")
    assert len({digest("CPU", denseExchange=name) for name in names}) == 3
    assert len({digest("GPU", denseExchange=name) for name in names}) == 1
    assert digest("CPU") == digest("CPU", denseExchange="ParameterServer"), "as earlier releases found it"
