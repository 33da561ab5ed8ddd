"""Rules of `runPolicy.failurePolicy`, and deaths that the job did not cause."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from heterps_operator.api.job import FailureAction, FailureRule, JobSpec, RunPolicy
from heterps_operator.api.manifest import read_objects
from heterps_operator.control.disruptions.failures import describe_end
from heterps_operator.state.values import ProcessSpec, ProcessView, ReportLost
from heterps_runtime.contract import Role
from tests.heterps_operator.api.samples import CPU, GPU, JOB, changed, parsed
from tests.heterps_operator.helpers.world import MEMBERS, World, make_job

TAKEN_AWAY = ["Deleted", "Evicted", "NodeLost", "Preempted"]


def world_with(*rules: FailureRule, backoff_limit: int = 2) -> World:
    return World(make_job(run_policy={"backoff_limit": backoff_limit, "failure_rules": rules})).training()


def outcome(world: World) -> str:
    """Return the consequence of the last death."""
    status = world.status
    if status.failure is not None:
        return status.failure.reason
    return "everything restarts" if status.incarnation > 1 else "the process restarts"


def rule(action: str, role: Role | None = None, codes: tuple[int, ...] = (), reasons: tuple[str, ...] = ()) -> Any:
    return FailureRule(FailureAction(action), role, frozenset(codes), frozenset(reasons))


@pytest.mark.parametrize(
    ("rules", "name", "code", "reason", "expected", "counted"),
    [
        ((), "worker-0-0", 1, "", "the process restarts", 1),
        ((), "ps-0", 1, "", "the process restarts", 1),
        ((), "coordinator", 1, "", "everything restarts", 1),
        ((), "worker-0-0", 2, "", "BadInput", 0),
        ((), "worker-0-0", None, "Preempted", "the process restarts", 0),
        ((), "ps-0", -15, "Evicted", "the process restarts", 0),
        ((), "coordinator", None, "NodeLost", "everything restarts", 0),
        ((), "worker-0-0", -9, "OOMKilled", "the process restarts", 1),
        ((), "worker-0-0", 128, "StartError", "the process restarts", 1),
        ((rule("FailJob", codes=(137,)),), "worker-0-0", -9, "", "FailurePolicy", 0),
        ((rule("FailJob", codes=(137,)),), "worker-0-0", 137, "", "FailurePolicy", 0),
        ((rule("FailJob", codes=(137,)),), "worker-0-0", 1, "", "the process restarts", 1),
        ((rule("FailJob", Role.PS, (1,)),), "worker-0-0", 1, "", "the process restarts", 1),
        ((rule("FailJob", Role.PS, (1,)),), "ps-0", 1, "", "FailurePolicy", 0),
        ((rule("FailJob", reasons=("OOMKilled",)),), "worker-1-0", -9, "OOMKilled", "FailurePolicy", 0),
        ((rule("FailJob", reasons=("Evicted",)),), "worker-1-0", None, "Deleted", "the process restarts", 0),
        ((rule("RestartJob", Role.WORKER, (1,)),), "worker-1-0", 1, "", "everything restarts", 1),
        ((rule("RestartPod", reasons=("Deleted",)),), "worker-1-0", None, "Deleted", "the process restarts", 1),
        ((rule("RestartPod", codes=(1,)),), "ps-0", 1, "", "the process restarts", 1),
        ((rule("RestartPod", codes=(1,)),), "coordinator", 1, "", "everything restarts", 1),
        ((rule("RestartJob", Role.PS, (1,)),), "ps-0", 1, "", "everything restarts", 1),
        ((rule("RestartPod", codes=(2,)),), "worker-1-0", 2, "", "the process restarts", 1),
        ((rule("Ignore", codes=(3,)),), "worker-1-0", 3, "", "the process restarts", 0),
        ((rule("Ignore", codes=(3,)),), "ps-0", 3, "", "the process restarts", 0),
        ((rule("Ignore", codes=(3,)), rule("FailJob", codes=(3,))), "ps-0", 3, "", "the process restarts", 0),
        ((rule("FailJob", codes=(3,)), rule("Ignore", codes=(3,))), "ps-0", 3, "", "FailurePolicy", 0),
    ],
)  # fmt: skip
def test_the_first_rule_that_fits_decides(
    rules: tuple[FailureRule, ...], name: str, code: int | None, reason: str, expected: str, counted: int
) -> None:
    world = world_with(*rules)
    world.end(name, code, reason=reason)
    world.settle()
    assert (outcome(world), world.status.failures) == (expected, counted)


def test_a_rule_that_fails_the_job_says_so() -> None:
    world = world_with(rule("FailJob", Role.WORKER, reasons=("OOMKilled",)))
    world.end("worker-0-0", 1)
    world.time += 1
    world.end("worker-1-0", -9, reason="OOMKilled", last_lines=("allocating",))
    world.settle()
    failure = world.status.failure
    assert failure is not None
    assert (failure.member, failure.last_lines) == ("worker-1-0", ("allocating",))
    assert failure.message == (
        "worker-1-0 ended (out of memory; raise the memory limit of container heterps in spec.podTemplates.worker); "
        "a rule of runPolicy.failurePolicy fails the job"
    )


@pytest.mark.parametrize("reason", TAKEN_AWAY)
def test_what_a_cluster_takes_away_never_uses_the_limit_up(reason: str) -> None:
    world = world_with(backoff_limit=0)
    for _ in range(5):
        world.end("worker-0-1", None, reason=reason)
        world.settle()
        world.time += 61
        world.settle()
        world.join("worker-0-1")
        world.settle()
    assert (world.status.failures, world.status.failure) == (0, None)
    assert world.status.restarts == {"worker-0-1": 5}
    told = [event.message for event in world.events if event.reason == "ProcessRestarts"]
    assert len(told) == 5
    assert all("this does not count towards backoffLimit" in message for message in told)


def test_pauses_double_while_a_cluster_keeps_taking_away() -> None:
    world = world_with()
    pauses = []
    for _ in range(8):
        world.end("worker-0-1", None, reason="Preempted")
        world.settle()
        pauses.append(world.status.not_before["worker-0-1"] - world.time)
        world.time += pauses[-1] + 1
        world.settle()
        world.join("worker-0-1")
        world.settle()
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
    world.time += 601
    world.end("worker-0-1", None, reason="Preempted")
    world.settle()
    assert world.status.not_before["worker-0-1"] - world.time == 1


def test_pods_that_a_node_takes_with_it_share_one_pause() -> None:
    world = world_with()
    world.end("worker-0-0", None, reason="NodeLost")
    world.end("worker-0-1", None, reason="NodeLost")
    world.settle()
    world.time += 0.5
    world.end("worker-1-0", None, reason="NodeLost")
    world.settle()
    assert world.status.disruptions == 1
    assert world.status.restarts == {"worker-0-0": 1, "worker-0-1": 1, "worker-1-0": 1}


def test_a_death_that_does_not_count_is_no_excuse_for_the_next() -> None:
    world = world_with(backoff_limit=0)
    world.end("worker-0-0", None, reason="Preempted")
    world.end("worker-0-1", 1)
    world.settle()
    assert outcome(world) == "BackoffLimitExceeded"


def test_the_coordinator_is_told_why_a_member_is_gone() -> None:
    world = world_with()
    world.end("worker-0-0", None, reason="Evicted")
    assert world.settle() == [ReportLost("worker-0-0", "its node evicted it")]
    assert set(MEMBERS) <= set(world.processes)


@pytest.mark.parametrize(
    ("role", "pool", "code", "reason", "words"),
    [
        (Role.PS, "cpu", -9, "OOMKilled", "out of memory; raise spec.parameterServer.memoryLimit"),
        (Role.WORKER, "cpu", -9, "OOMKilled",
         "out of memory; raise the memory limit of container heterps in spec.podTemplates.worker"),
        (Role.COORDINATOR, None, -9, "OOMKilled",
         "out of memory; raise the memory limit of container heterps in spec.podTemplates.coordinator"),
        (Role.WORKER, "gone", 137, "OOMKilled",
         "out of memory; raise the memory limit of container heterps in spec.podTemplates.worker"),
        (Role.WORKER, "cpu", None, "Deleted", "its pod was deleted by another client"),
        (Role.WORKER, "cpu", -15, "Preempted", "a pod of higher priority took its place, killed by SIGTERM"),
        (Role.WORKER, "cpu", 128, "StartError", "its container could not start, exit code 128"),
        (Role.WORKER, "cpu", 3, "", "exit code 3"),
    ],
)  # fmt: skip
def test_an_end_is_told_in_words(role: Role, pool: str | None, code: int | None, reason: str, words: str) -> None:
    process = ProcessView(ProcessSpec("it", role, pool=pool), 0.0, 1.0, code, reason=reason)
    assert describe_end(process, make_job()) == words


@pytest.mark.parametrize(
    ("role", "pool", "server_memory", "field"),
    [
        (Role.WORKER, "cpu", None, "spec.memoryPerUnit of DevicePool cpu"),
        (Role.PS, "cpu", None, "spec.memoryPerUnit of DevicePool cpu"),
        (Role.PS, "cpu", Decimal(1), "spec.parameterServer.memoryLimit"),
        (Role.PROFILE, "cpu", None, "the memory limit of container heterps in spec.podTemplates.profiler"),
        (Role.WORKER, "gpu", None, "the memory limit of container heterps in spec.podTemplates.worker"),
    ],
)
def test_the_field_that_limits_memory_is_that_of_the_pool_if_it_has_one(
    role: Role, pool: str, server_memory: Decimal | None, field: str
) -> None:
    job = make_job(server_memory_bytes=server_memory)
    job = replace(job, pools=tuple(replace(one, memory_bytes_per_pod=1e9) for one in job.pools))
    process = ProcessView(ProcessSpec("it", role, pool=pool), 0.0, 1.0, -9, reason="OOMKilled")
    assert describe_end(process, job) == f"out of memory; raise {field}"


def run_policy(job: dict[str, Any]) -> RunPolicy:
    manifest = read_objects(job, [parsed(CPU), parsed(GPU)])
    return JobSpec.from_manifests(manifest.job, manifest.pools).run_policy


def test_the_policy_is_read_from_the_manifest() -> None:
    policy = {
        "ttlSecondsAfterFinished": 60,
        "cleanPodPolicy": "All",
        "failurePolicy": {
            "rules": [
                {"action": "FailJob", "role": "ParameterServer", "reasons": ["OOMKilled"]},
                {"action": "Ignore", "exitCodes": [3, 4]},
            ]
        },
    }
    read = run_policy(changed(parsed(JOB), "spec.runPolicy", policy))
    assert (read.ttl_seconds_after_finished, read.clean_pod_policy) == (60.0, "All")
    assert read.failure_rules == (rule("FailJob", Role.PS, (), ("OOMKilled",)), rule("Ignore", None, (3, 4)))
    bare = run_policy(parsed(JOB))
    assert (bare.ttl_seconds_after_finished, bare.clean_pod_policy, bare.failure_rules) == (None, "Running", ())
