"""The planning problem of a job: its parameter servers, its memory, and whether its pipeline drains."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from heterps_operator.api.job import JobSpec
from heterps_operator.control.problem import adapt_problem, build_problem, with_running_servers
from heterps_operator.control.profiles import profile_digest
from heterps_operator.control.tuning.calibration import calibrate
from heterps_planner import Infeasible, Plan, Problem, plan
from heterps_runtime.contract import ServersDocument
from tests.heterps_operator.helpers.world import JOB_PLAN, PROFILE, make_job

SECONDS = 4e-5  # of the server's processor per sample: one server sustains 25,000 samples/s
MEASURED = {**PROFILE, "parameterServer": {"processorSecondsPerSample": SECONDS, "workers": 2}}
PROFILES = {"cpu": MEASURED, "gpu": PROFILE}


def pods_of(job: JobSpec, units: int) -> JobSpec:
    """The job with pods of several cores."""
    return replace(job, pools=(replace(job.pool("cpu"), units_per_pod=units), job.pool("gpu")))


def test_the_planner_gets_the_measured_cost_and_chooses_the_number() -> None:
    problem = build_problem(make_job(), PROFILES)
    assert problem["parameterServer"] == {"pool": "cpu", "coresPerSamplePerSecond": SECONDS}


def test_a_number_in_the_spec_is_kept_with_what_it_sustains() -> None:
    problem = build_problem(make_job(server_replicas=2), PROFILES)
    assert problem["parameterServer"] == {"pool": "cpu", "coresPerSamplePerSecond": SECONDS, "units": 2}


def test_a_server_uses_one_core_of_its_pod() -> None:
    """So pods of two cores serve no more than pods of one, and twice as many units are needed."""
    job = pods_of(make_job(), 2)
    assert build_problem(job, PROFILES)["parameterServer"]["coresPerSamplePerSecond"] == 2 * SECONDS
    assert build_problem(replace(job, server_replicas=3), PROFILES)["parameterServer"]["units"] == 6


@pytest.mark.parametrize("servers", [None, {"processorSecondsPerSample": 0.0, "workers": 1}])
def test_without_a_measured_cost_there_is_one_server(servers: Any) -> None:
    problem = build_problem(make_job(), {"cpu": {**PROFILE, "parameterServer": servers}, "gpu": PROFILE})
    assert problem["parameterServer"] == {"pool": "cpu", "units": 1}


def test_a_floor_that_needs_three_servers_gets_three() -> None:
    cpu = make_job().pool("cpu")
    # 30 ms per 512 samples, which workers share, and an overhead of 1 ms: five workers reach 73,000 samples/s.
    layers = [{**layer, "computeSeconds": 0.01, "parallelFraction": 1.0} for layer in PROFILE["layers"]]
    profile = {**MEASURED, "layers": layers}
    job = make_job(pools=(replace(cpu, max_units=16),), min_samples_per_second=70_000.0)
    found = plan(Problem.from_json(build_problem(job, {"cpu": profile})))
    assert isinstance(found, Plan)
    assert found.parameter_server.to_json() == {"pool": "cpu", "replicas": 3, "units": 3}
    fixed = plan(Problem.from_json(build_problem(replace(job, server_replicas=5), {"cpu": profile})))
    assert isinstance(fixed, Plan)
    assert fixed.parameter_server.replicas == 5
    few = replace(job, pools=(replace(cpu, max_units=3),))
    refused = plan(Problem.from_json(build_problem(few, {"cpu": profile})))
    assert isinstance(refused, Infeasible)
    assert "limited by cpu (3 units): raise maxUnits" in refused.message
    one = plan(Problem.from_json(build_problem(replace(job, server_replicas=1), {"cpu": profile})))
    assert isinstance(one, Infeasible)
    assert "1 parameter server on cpu sustains 25,000 samples/s" in one.message


def test_each_copy_of_a_row_is_on_another_server_which_computes_as_much() -> None:
    job = pods_of(make_job(replication=2), 2)
    servers = build_problem(job, PROFILES)["parameterServer"]
    assert servers == {"pool": "cpu", "coresPerSamplePerSecond": 2 * 2 * SECONDS, "leastUnits": 4}
    found = plan(Problem.from_json(build_problem(replace(job, min_samples_per_second=1.0), PROFILES)))
    assert isinstance(found, Plan)
    assert found.parameter_server.to_json() == {"pool": "cpu", "replicas": 2, "units": 4}
    unmeasured = {"cpu": {**PROFILE, "parameterServer": None}, "gpu": PROFILE}
    assert build_problem(job, unmeasured)["parameterServer"] == {"pool": "cpu", "units": 4}
    fixed = build_problem(replace(job, server_replicas=3), PROFILES)["parameterServer"]
    assert fixed == {"pool": "cpu", "coresPerSamplePerSecond": 2 * 2 * SECONDS, "units": 6}


DENSE: tuple[dict[str, float], ...] = ({"denseBytes": 0}, {"denseBytes": 8}, {})
BYTES: tuple[dict[str, float], ...] = (
    {"residentBytes": 1e9, "activationBytes": 1e6},
    {"residentBytes": 2e9, "activationBytes": 0.0},
    {},
)


def measured_memory(**memory: float) -> dict[str, Any]:
    """A profile with the memory of its layers."""
    layers = [{**layer, **known} for layer, known in zip(PROFILE["layers"], BYTES, strict=True)]
    return {**PROFILE, "layers": layers, "memory": {"baseBytes": 5e8, **memory}}


def with_memory(cpu: float | None, gpu: float | None) -> JobSpec:
    job = make_job()
    pools = (("cpu", cpu), ("gpu", gpu))
    return replace(job, pools=tuple(replace(job.pool(name), memory_bytes_per_pod=limit) for name, limit in pools))


@pytest.mark.parametrize(
    ("consistency", "waits"),
    [("sync", [True, True, True]), ("hybrid", [False, True, True]), ("async", [False, False, False])],
)
def test_stages_with_dense_parameters_wait_for_commits(consistency: str, waits: list[bool]) -> None:
    """The third layer is one of an earlier release, which did not tell what its parameters are."""
    layers = [{**la, **known} for la, known in zip(PROFILE["layers"], DENSE, strict=True)]
    profiles = {pool: {**PROFILE, "layers": layers} for pool in PROFILES}
    job = make_job(consistency=consistency)
    problem = Problem.from_json(build_problem(job, profiles))
    assert [layer.waits_for_commit for layer in problem.layers] == waits
    other = build_problem(make_job(consistency="sync" if consistency == "async" else "async"), profiles)
    assert [layer["waitsForCommit"] for layer in adapt_problem(other, job)["layers"]] == waits


def test_a_stage_may_take_what_a_worker_leaves_of_its_pod() -> None:
    profiles = {"cpu": measured_memory(), "gpu": measured_memory(deviceBytes=80e9, deviceBaseBytes=1e9)}
    problem = Problem.from_json(build_problem(with_memory(4e9, None), profiles))
    assert [pool.memory_bytes_per_pod for pool in problem.pools] == [0.8 * 4e9 - 5e8, 0.8 * 80e9 - 1e9]
    assert [layer.resident_bytes for layer in problem.layers] == [1e9, 2e9, 0]
    assert [layer.activation_bytes for layer in problem.layers] == [1e6, 0, 0]
    said = Problem.from_json(build_problem(with_memory(None, 16e9), profiles))
    assert [pool.memory_bytes_per_pod for pool in said.pools] == [None, 0.8 * 16e9 - 1e9]
    assert adapt_problem(build_problem(with_memory(4e9, None), profiles), make_job())["pools"][0][
        "memoryBytesPerPod"
    ] == pytest.approx(0.8 * 4e9 - 5e8)


def test_the_pool_that_needs_more_for_a_layer_counts() -> None:
    smaller = measured_memory()
    smaller["layers"] = [{**layer, "residentBytes": 1.0} for layer in smaller["layers"]]
    problem = build_problem(with_memory(None, None), {"cpu": smaller, "gpu": measured_memory()})
    assert [layer["residentBytes"] for layer in problem["layers"]] == [1e9, 2e9, 1.0]


def test_a_stage_that_fits_into_no_pod_is_not_planned() -> None:
    profiles = {"cpu": measured_memory(), "gpu": measured_memory()}
    fits = plan(Problem.from_json(build_problem(with_memory(8e9, 8e9), profiles)))
    assert isinstance(fits, Plan)
    refused = plan(Problem.from_json(build_problem(with_memory(2e9, 2e9), profiles)))
    assert isinstance(refused, Infeasible)
    assert refused.reason == "MemoryExceeded"
    assert "raise memoryPerUnit of the pool" in refused.message


def test_a_profile_without_memory_limits_nothing() -> None:
    problem = build_problem(with_memory(1e6, 1e6), PROFILES)
    assert not any("memoryBytesPerPod" in pool for pool in problem["pools"])


def test_a_pool_that_says_its_memory_is_measured_with_it() -> None:
    configuration: dict[str, Any] = {
        "job": {"spec": {"model": {}, "data": {}, "training": {}}},
        "pools": [{"metadata": {"name": "cpu"}, "spec": {"deviceType": "CPU"}}],
    }
    before = profile_digest(configuration, "cpu", "source")
    configuration["pools"][0]["spec"]["memoryPerUnit"] = "4Gi"
    after = profile_digest(configuration, "cpu", "source")
    assert after != before
    configuration["pools"][0]["spec"]["memoryPerUnit"] = "8Gi"
    assert profile_digest(configuration, "cpu", "source") == after  # its layers need the same


def test_a_problem_file_keeps_its_servers() -> None:
    job = make_job()
    measured = build_problem(job, PROFILES)
    assert adapt_problem(measured, job)["parameterServer"] == measured["parameterServer"]
    two = adapt_problem(measured, pods_of(job, 2))["parameterServer"]
    assert two == {"pool": "cpu", "coresPerSamplePerSecond": 2 * SECONDS}
    by_hand = {**measured, "parameterServer": {"pool": "cpu", "units": 4}}
    assert adapt_problem(by_hand, job)["parameterServer"] == {"pool": "cpu", "units": 4}
    assert adapt_problem(by_hand, replace(job, server_replicas=2))["parameterServer"] == {"pool": "cpu", "units": 2}
    without = {name: value for name, value in measured.items() if name != "parameterServer"}
    assert adapt_problem(without, job)["parameterServer"] == {"pool": "cpu", "units": 1}


def test_a_running_job_keeps_its_servers_with_what_they_sustain() -> None:
    problem = build_problem(make_job(), PROFILES)
    there = with_running_servers(problem, ServersDocument("cpu", 2, 2))
    assert there["parameterServer"] == {"pool": "cpu", "units": 2, "coresPerSamplePerSecond": SECONDS}
    elsewhere = with_running_servers(problem, ServersDocument("gpu", 1, 1))
    assert elsewhere["parameterServer"] == {"pool": "gpu", "units": 1}, "nothing was measured of servers there"


def test_servers_sustain_at_least_what_is_measured() -> None:
    problem = with_running_servers(build_problem(make_job(), PROFILES), ServersDocument("cpu", 1, 1))
    slow = calibrate(problem, JOB_PLAN, 8_000.0, [9_000.0, 14_000.0])
    assert slow["parameterServer"] == problem["parameterServer"]
    fast = calibrate(problem, JOB_PLAN, 50_000.0, [60_000.0, 60_000.0])
    assert fast["parameterServer"]["coresPerSamplePerSecond"] == pytest.approx(1 / 50_000)


def spot(job: JobSpec, *names: str) -> JobSpec:
    """The job with pools whose units are interrupted."""
    pools = [replace(p, interruptions_per_unit_hour=0.5) if p.name in names else p for p in job.pools]
    return replace(job, pools=tuple(pools))


def test_a_problem_says_what_interruptions_cost() -> None:
    job = spot(make_job(checkpoint_steps=200), "gpu")
    problem = build_problem(job, PROFILES)
    assert [pool.get("interruptionsPerUnitHour") for pool in problem["pools"]] == [None, 0.5]
    assert problem["interruption"] == {"checkpointSamples": 200 * 512}
    measured = build_problem(job, PROFILES, restart_seconds=17.5)
    assert measured["interruption"] == {"checkpointSamples": 200 * 512, "serverSeconds": 17.5}
    assert Problem.from_json(measured).interruption.server_seconds == 17.5
    assert "interruption" not in build_problem(make_job(), PROFILES, restart_seconds=17.5)
    replicated = build_problem(replace(job, replication=2), PROFILES)
    assert replicated["interruption"] == {"checkpointSamples": 0}, "no step is trained again"
    by_hand = {**problem, "interruption": {"workerSeconds": 3.0, "checkpointSamples": 7}}
    assert adapt_problem(by_hand, job)["interruption"] == {"workerSeconds": 3.0, "checkpointSamples": 200 * 512}


def test_servers_avoid_pools_whose_units_are_interrupted() -> None:
    cpu = make_job().pool("cpu")
    cheap = replace(cpu, name="spot", price_per_unit_hour=cpu.price_per_unit_hour / 4, interruptions_per_unit_hour=0.5)
    profiles = dict.fromkeys(("cpu", "spot"), MEASURED)
    assert build_problem(make_job(pools=(cheap, cpu)), profiles)["parameterServer"]["pool"] == "cpu"
    assert build_problem(make_job(pools=(cheap,)), profiles)["parameterServer"]["pool"] == "spot"
    full = make_job(pools=(cheap, replace(cpu, max_units=0)))
    assert build_problem(full, profiles)["parameterServer"]["pool"] == "spot"
