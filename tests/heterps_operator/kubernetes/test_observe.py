"""Conversion of pods from an API server to processes of the control loop."""

from __future__ import annotations

from typing import Any

import pytest

from heterps_operator.kubernetes.reading.observe import deletion_deadline, exit_code, view
from tests.heterps_operator.helpers.documents import (
    CPU_WORKER,
    NOW,
    Json,
    condition,
    observed,
    pod_of,
    running,
    stamp,
    terminated,
    waiting,
)

READY = [condition("PodScheduled", "True"), condition("Ready", "True")]


def test_a_pod_that_was_just_created_runs_and_is_charged() -> None:
    pod = pod_of(CPU_WORKER)
    pod["metadata"]["creationTimestamp"] = stamp(NOW)
    seen = view(pod, NOW + 1)
    assert (seen.spec, seen.started, seen.running, seen.exit_code) == (CPU_WORKER, NOW, True, None)
    assert (seen.stopping, seen.problem, seen.reason) == (False, None, "")
    assert seen.log == "kubectl logs --namespace ml flights-worker-0-1-1-1"


def test_a_pod_that_runs_is_a_process_that_runs() -> None:
    seen = view(observed(phase="Running", containerStatuses=running(), conditions=READY), NOW + 100)
    assert seen.running
    assert seen.started == NOW
    assert seen.problem is None
    stopping = view(observed(deleted=NOW + 130, phase="Running", containerStatuses=running()), NOW + 110)
    assert stopping.running
    assert stopping.stopping


def test_a_pod_answers_if_its_node_says_so_and_is_heard_of() -> None:
    pod = observed(phase="Running", containerStatuses=running(), conditions=READY)
    assert view(pod, NOW + 100).ready
    assert not view(pod, NOW + 100, heard=False).ready
    silent = observed(phase="Running", containerStatuses=running(), conditions=[condition("Ready", "False")])
    assert not view(silent, NOW + 100).ready
    assert not view(observed(phase="Failed", containerStatuses=terminated(1), conditions=READY), NOW + 100).ready


@pytest.mark.parametrize(
    ("code", "expected"),
    [(0, 0), (1, 1), (2, 2), (128, 128), (130, 130), (134, -6), (137, -9), (139, -11), (143, -15), (255, 255)],
)
def test_ends_by_a_signal_are_negative_as_for_processes(code: int, expected: int) -> None:
    assert exit_code(code) == expected
    phase = "Failed" if code else "Succeeded"
    seen = view(observed(phase=phase, containerStatuses=terminated(code)), NOW + 1000)
    assert (seen.ended, seen.exit_code, seen.reason) == (NOW + 60, expected, "")


def test_the_end_of_the_runtime_is_the_end_whatever_a_sidecar_does() -> None:
    statuses = [{"name": "proxy", "ready": True, "state": {"running": {}}}, *terminated(1)]
    seen = view(observed(phase="Running", containerStatuses=statuses), NOW + 100)
    assert (seen.ended, seen.exit_code) == (NOW + 60, 1)


def test_the_last_words_come_from_the_status_or_from_the_log() -> None:
    pod = observed(phase="Failed", containerStatuses=terminated(1, message="line 1\n\nUserError: no column late\n"))
    assert view(pod, NOW).last_lines == ("line 1", "UserError: no column late")
    assert view(pod, NOW, ("from the log",)).last_lines == ("from the log",)


DISRUPTED = "DisruptionTarget"
ENDS: dict[str, tuple[Json, str, int | None]] = {
    "out of memory": ({"phase": "Failed", "containerStatuses": terminated(137, "OOMKilled")}, "OOMKilled", -9),
    "preempted by the scheduler": (
        {"phase": "Failed", "containerStatuses": terminated(143),
         "conditions": [condition(DISRUPTED, "True", "PreemptionByScheduler")]},
        "Preempted", -15,
    ),
    "preempted by its node for a critical pod": (
        {"phase": "Failed", "reason": "Preempting", "message": "Preempted in order to admit critical pod"},
        "Preempted", None,
    ),
    "preempted by a queue": (
        {"phase": "Failed", "containerStatuses": terminated(130),
         "conditions": [condition("TerminationTarget", "True", "WorkloadEvictedDueToPreempted")]},
        "Preempted", 130,
    ),
    "evicted by its node": (
        {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."},
        "Evicted", None,
    ),
    "evicted by kubectl drain": (
        {"phase": "Failed", "containerStatuses": terminated(143),
         "conditions": [condition(DISRUPTED, "True", "EvictionByEvictionAPI")]},
        "Evicted", -15,
    ),
    "sent away by a node that has no room": (
        {"phase": "Failed", "reason": "OutOfcpu", "message": "Node didn't have enough resource: cpu"}, "Evicted", None,
    ),
    "sent away by a node whose card is broken": (
        {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no healthy devices present"},
        "Evicted", None,
    ),
    "deleted because its node was tainted": (
        {"phase": "Failed", "containerStatuses": terminated(143),
         "conditions": [condition(DISRUPTED, "True", "DeletionByTaintManager")]},
        "NodeLost", -15,
    ),
    "node shut down": (
        {"phase": "Failed", "reason": "Terminated", "message": "Pod was terminated, the node shuts down.",
         "conditions": [condition(DISRUPTED, "True", "TerminationByKubelet")]},
        "NodeLost", None,
    ),
    "node rebooted": (
        {"phase": "Failed", "containerStatuses": terminated(137, "ContainerStatusUnknown")}, "NodeLost", -9,
    ),
    "no such command": (
        {"phase": "Failed", "containerStatuses": terminated(
            128, "StartError", message='exec: "heterps-runtime": executable file not found in $PATH')},
        "StartError", 128,
    ),
    "init container failed": (
        {"phase": "Failed", "containerStatuses": waiting("PodInitializing"), "initContainerStatuses": [
            {"name": "fetch", "state": {"terminated": {"exitCode": 3, "finishedAt": stamp(NOW + 60)}}}]},
        "StartError", 3,
    ),
    "phase unknown": (
        {"phase": "Unknown", "conditions": [condition("Ready", "Unknown", at=NOW + 60)]}, "NodeLost", None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ENDS)
def test_why_a_pod_ended(case: str) -> None:
    status, reason, code = ENDS[case]
    status = {"conditions": [condition("Ready", "False", at=NOW + 60)], **status}
    pod = observed(**status)
    seen = view(pod, NOW + 500)
    assert (seen.reason, seen.exit_code) == (reason, code)
    assert seen.ended is not None
    assert not seen.running
    assert seen.problem is None
    assert view(pod, NOW + 900).ended == seen.ended, "an end does not move"


def test_what_the_cluster_says_is_among_the_last_words() -> None:
    evicted = view(observed(**ENDS["evicted by its node"][0]), NOW)
    assert evicted.last_lines == ("The node was low on resource: memory.",)
    failed = view(observed(**ENDS["no such command"][0]), NOW)
    assert failed.last_lines[-1].startswith("the container cannot start: exec:")
    assert "spec.image" in failed.last_lines[-1]
    init = view(observed(**ENDS["init container failed"][0]), NOW)
    assert init.last_lines == ("init container fetch ended with exit code 3",)
    end = {"exitCode": 2, "finishedAt": stamp(NOW + 60), "message": "copying\n\nCodeError: it is damaged\n"}
    told = view(
        observed(phase="Failed", initContainerStatuses=[{"name": "heterps-code", "state": {"terminated": end}}]), NOW
    )
    assert told.last_lines == (
        "copying",
        "init container heterps-code ended with exit code 2: CodeError: it is damaged",
    )


def test_a_pod_that_somebody_else_deleted_says_so() -> None:
    pod = observed(deleted=NOW + 90, phase="Failed", containerStatuses=terminated(143))
    assert view(pod, NOW + 70).reason == "Deleted"
    assert view(pod, NOW + 70, asked=True).reason == ""
    assert view(pod, NOW + 70).exit_code == -15


def test_why_a_pod_ends_is_known_before_it_has_ended() -> None:
    evicted = [condition(DISRUPTED, "True", "EvictionByEvictionAPI")]
    pod = observed(deleted=NOW + 90, phase="Running", containerStatuses=running(), conditions=evicted)
    seen = view(pod, NOW + 61)
    assert (seen.running, seen.stopping, seen.reason) == (True, True, "Evicted")
    pod["status"]["conditions"] = []
    assert view(pod, NOW + 61).reason == "Deleted"
    assert view(pod, NOW + 61, asked=True).reason == ""


def lost_cases() -> list[tuple[str, Json, float]]:
    silent: dict[str, Any] = {"phase": "Running", "containerStatuses": running()}
    return [
        ("overdue", observed(deleted=NOW + 30, **silent), NOW + 30),
        ("silent", observed(conditions=[condition("Ready", "Unknown", "NodeStatusUnknown", at=NOW)], **silent), NOW),
    ]


@pytest.mark.parametrize(
    ("case", "pod", "end"), lost_cases(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_pod_whose_node_stays_silent_is_lost_after_a_while(case: str, pod: Json, end: float) -> None:
    assert view(pod, end + 45).running, case
    seen = view(pod, end + 130)
    assert (seen.ended, seen.reason, seen.exit_code) == (end, "NodeLost", None)
    assert view(pod, end + 900) == seen, "an end does not move"


def test_a_pod_that_is_deleted_on_a_node_that_is_not_heard_of_is_lost_at_once() -> None:
    running_on: dict[str, Any] = {"phase": "Running", "containerStatuses": running()}
    assert view(observed(**running_on), NOW, heard=False).running, "until Kubernetes gives it up"
    pod = observed(deleted=NOW + 30, **running_on)
    assert view(pod, NOW + 5).running
    seen = view(pod, NOW + 5, heard=False)
    assert (seen.ended, seen.reason, seen.exit_code) == (NOW + 5, "NodeLost", None)


def test_when_a_deleted_pod_has_to_be_gone() -> None:
    assert deletion_deadline(observed(phase="Running")) is None
    assert deletion_deadline(observed(deleted=NOW + 30, phase="Running")) == NOW + 30


def test_a_pod_of_somebody_else_is_refused() -> None:
    with pytest.raises(ValueError, match=r"heterps\.io/process\] must be a text"):
        view({"metadata": {"name": "stray", "namespace": "ml"}, "status": {"phase": "Running"}}, NOW)


def test_a_pod_that_does_not_start_is_a_process_that_runs_and_has_a_problem() -> None:
    conditions = [condition("PodScheduled", "False", "Unschedulable", "0/3 nodes are available: 3 Insufficient cpu.")]
    seen = view(observed(phase="Pending", conditions=conditions), NOW + 1)
    assert seen.running
    assert seen.problem is not None
    assert seen.problem.reason == "Unschedulable"
    assert view(observed(deleted=NOW + 30, phase="Pending", conditions=conditions), NOW + 1).problem is None


def test_when_the_program_began_is_told_apart_from_when_the_pod_was_made() -> None:
    assert view(observed(phase="Pending"), NOW).begun is None
    assert view(observed(phase="Pending", containerStatuses=waiting("ContainerCreating")), NOW).begun is None
    assert view(observed(phase="Running", containerStatuses=running(NOW + 90)), NOW).begun == NOW + 90


@pytest.mark.parametrize(("asked", "reason"), [(True, ""), (False, "Deleted")])
def test_a_pod_that_was_deleted_before_it_ran_was_not_lost(asked: bool, reason: str) -> None:
    pod = observed(phase="Failed", containerStatuses=terminated(137, "ContainerStatusUnknown"))
    pod["metadata"]["deletionTimestamp"] = stamp(NOW + 30)
    assert view(pod, NOW + 60, asked=asked).reason == reason
