"""Why pods do not start: each case with the cluster's wording, and the fix shown to the user."""

from __future__ import annotations

from typing import Any

import pytest

from heterps_operator.kubernetes.api import ApiError
from heterps_operator.kubernetes.reading.problems import pod_problem, refused, start_error
from tests.heterps_operator.helpers.documents import (
    COORDINATOR,
    CPU_WORKER,
    GPU_WORKER,
    NOW,
    Json,
    condition,
    observed,
    running,
    waiting,
)

SCHEDULED = condition("PodScheduled", "True")


def unschedulable(message: str, spec: Any = CPU_WORKER) -> Json:
    return observed(spec, phase="Pending", conditions=[condition("PodScheduled", "False", "Unschedulable", message)])


def stuck(reason: str, message: str = "", name: str = "heterps") -> Json:
    key = "containerStatuses" if name == "heterps" else "initContainerStatuses"
    status: dict[str, Any] = {key: waiting(reason, message, name)}
    return observed(phase="Pending", conditions=[SCHEDULED], **status)


# Pod, seconds since it was scheduled, reason, expected words in the message.
CASES: dict[str, tuple[Json, float, str, tuple[str, ...]]] = {
    "no room": (
        unschedulable(
            "0/5 nodes are available: 2 node(s) didn't match Pod's node affinity/selector, 3 Insufficient cpu. "
            "no new claims to deallocate, preemption: 0/5 nodes are available: 5 Preemption is not helpful."
        ), 0, "Unschedulable",
        ("affinity/selector, 3 Insufficient cpu); pool cpu", "pool cpu has no node with enough cpu left",
         "lower maxUnits of pool cpu in spec.pools"),
    ),
    "no cards": (
        unschedulable("0/2 nodes are available: 1 Insufficient nvidia.com/gpu, 2 Insufficient cpu.", GPU_WORKER), 0,
        "Unschedulable", ("pool v100 has no node with enough cpu and nvidia.com/gpu left",),
    ),
    "no device": (
        unschedulable(
            "0/3 nodes are available: 1 cannot allocate all claims, 2 node(s) didn't match affinity/selector. "
            "no new claims to deallocate, preemption: 0/3 nodes are available: 3 Preemption is not helpful.", GPU_WORKER
        ), 0, "Unschedulable",
        ("affinity/selector); no node of pool v100 has a free device of its DeviceClass: see the ResourceClaims",),
    ),
    "no room for the coordinator": (
        unschedulable("0/1 nodes are available: 1 Insufficient memory.", COORDINATOR), 0,
        "Unschedulable", ("coordinator fits no node", "the cluster has no node with enough memory left"),
    ),
    "taint": (
        unschedulable("0/2 nodes are available: 2 node(s) had untolerated taint {dedicated: ads}.", GPU_WORKER), 0,
        "Unschedulable", ("add a toleration of the taint {dedicated: ads} to DevicePool v100",),
    ),
    "taint before the coordinator": (
        unschedulable("0/2 nodes are available: 2 node(s) had untolerated taint {dedicated: ads}.", COORDINATOR), 0,
        "Unschedulable", ("spec.podTemplates.coordinator",),
    ),
    "labels": (
        unschedulable("0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector.", GPU_WORKER), 0,
        "Unschedulable", ("label nodes with node.example.com/gpu=v100", "nodeSelector of DevicePool v100 or of"),
    ),
    "volume claim": (
        unschedulable('0/2 nodes are available: persistentvolumeclaim "cache" not found.'), 0,
        "Unschedulable", ("create the volume claims",),
    ),
    "anything else": (
        unschedulable("0/2 nodes are available: 2 node(s) didn't have free ports."), 0,
        "Unschedulable", ("add nodes to pool cpu",),
    ),
    "scheduling gate": (
        observed(phase="Pending", conditions=[condition("PodScheduled", "False", "SchedulingGated", "gated")]), 0,
        "SchedulingGated", ("waits behind the scheduling gate",),
    ),
    "image does not exist": (
        stuck("ErrImagePull", 'failed to resolve reference "registry.example.com/flights:1": not found'), 0,
        "ImagePullBackOff",
        ("worker-0-1 on node node-7 cannot get the image registry.example.com/flights:1", "push the image"),
    ),
    "registry wants a password": (
        stuck("ImagePullBackOff", "pull access denied, repository does not exist or may require authorization"), 0,
        "ImagePullBackOff", ("imagePullSecrets",),
    ),
    "image without a reason": (
        stuck("ImagePullBackOff", 'Back-off pulling image "x"'), 0, "ImagePullBackOff",
        ("check that spec.image exists",),
    ),
    "registry away": (
        stuck("ErrImagePull", "dial tcp: lookup registry.example.com: no such host"), 0, "ImagePullBackOff",
        ("does not reach the registry",),
    ),
    "image of an init container": (
        stuck("ErrImagePull", "manifest unknown", "fetch"), 0, "ImagePullBackOff", ("correct spec.podTemplates.all",),
    ),
    "image of the init container with the code": (
        stuck("ErrImagePull", "manifest unknown", "heterps-code"), 0, "ImagePullBackOff", ("or correct spec.image",),
    ),
    "image's name": (stuck("InvalidImageName", "couldn't parse image"), 0, "InvalidImageName", ("correct the name",)),
    "never pulled": (stuck("ErrImageNeverPull"), 0, "ErrImageNeverPull", ("load it onto the node",)),
    "secret is missing": (
        stuck("CreateContainerConfigError", 'secret "s3" not found'), 0,
        "CreateContainerConfigError",
        ('secret "s3" not found', "create it in the job's namespace, or correct spec.credentials"),
    ),
    "image runs as root": (
        stuck("CreateContainerConfigError", "container has runAsNonRoot and image will run as root"), 0,
        "CreateContainerConfigError", ("remove runAsNonRoot",),
    ),
    "command is missing": (
        stuck("RunContainerError", 'exec: "heterps-runtime": executable file not found in $PATH: unknown'), 0,
        "RunContainerError", ("use an image with heterps-runtime on its PATH",),
    ),
    "container cannot be created": (
        stuck("CreateContainerError", "context deadline exceeded"), 0, "CreateContainerError", ("check spec.image",),
    ),
    "sidecar ends again and again": (
        stuck("CrashLoopBackOff", "back-off 5m0s", "proxy"), 0, "CrashLoopBackOff", ("--container proxy --previous",),
    ),
    "sidecar that starts first ends again and again": (
        observed(phase="Pending", conditions=[SCHEDULED], containerStatuses=waiting("PodInitializing"),
                 initContainerStatuses=[{"name": "proxy", "restartCount": 2, "state": {
                     "terminated": {"exitCode": 128, "reason": "StartError", "message": "exec: not found"}}}]),
        0, "CrashLoopBackOff", ("container proxy ends repeatedly (exec: not found)", "--previous"),
    ),
    "preparing takes too long": (
        stuck("ContainerCreating"), 95, "ContainerCreating", ("kubectl describe pod flights-worker-0-1-1-1",),
    ),
    "init containers take too long": (stuck("PodInitializing"), 700, "Initialising", ("have run for 700 s",)),
    "not ready": (
        observed(COORDINATOR, phase="Running", conditions=[SCHEDULED, condition("Ready", "False")],
                 containerStatuses=[{**running()[0], "ready": False}]), 70,
        "ContainersNotReady", ("has run for 70 s without becoming ready", "kubectl logs flights-coordinator-1-1"),
    ),
    "node does not answer": (
        observed(phase="Running", conditions=[SCHEDULED, condition("Ready", "False")], containerStatuses=running()), 20,
        "NodeNotReady", ("node node-7, where worker-0-1 runs, has not answered for 20 s",),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_problem_says_what_where_and_the_way_out(case: str) -> None:
    pod, seconds, reason, words = CASES[case]
    problem = pod_problem(pod, NOW + seconds)
    assert problem is not None
    assert problem.reason == reason
    for word in words:
        assert word in problem.message
    assert "; " in problem.message or ": " in problem.message
    assert "\n" not in problem.message
    assert len(problem.message) < 1500


@pytest.mark.parametrize(
    ("pod", "seconds"),
    [
        (observed(phase="Pending"), 5),
        (stuck("ContainerCreating"), 25),
        (stuck("PodInitializing"), 300),
        (observed(phase="Running", conditions=[condition("Ready", "True")], containerStatuses=running()), 999),
        (observed(phase="Running", conditions=[SCHEDULED, condition("Ready", "False")],
                  containerStatuses=[{**running()[0], "ready": False}]), 30),
        (observed(phase="Succeeded"), 999),
        (observed(phase="Failed", conditions=[condition("PodScheduled", "False", "Unschedulable", "x")]), 999),
    ],
    ids=["new", "creating", "initialising", "ready", "not yet ready", "succeeded", "failed"],
)  # fmt: skip
def test_what_is_normal_is_no_problem(pod: Json, seconds: float) -> None:
    assert pod_problem(pod, NOW + seconds) is None


def test_a_pod_that_no_scheduler_takes_up() -> None:
    pod = observed(phase="Pending")
    del pod["spec"]["nodeName"]
    pod["spec"]["schedulerName"] = "volcano"
    assert pod_problem(pod, NOW + 29) is None
    problem = pod_problem(pod, NOW + 31)
    assert problem is not None
    assert problem.reason == "NotScheduled"
    assert "check that volcano runs" in problem.message


def test_a_queue_is_named() -> None:
    pod = observed(phase="Pending", conditions=[condition("PodScheduled", "False", "SchedulingGated")])
    pod["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "ads"
    problem = pod_problem(pod, NOW)
    assert problem is not None
    assert "waits in queue ads until there is quota" in problem.message


@pytest.mark.parametrize(
    ("reason", "message", "expected"),
    [
        ("FailedMount", 'MountVolume.SetUp failed for volume "disk": configmap "c" not found', "FailedMount"),
        ("FailedAttachVolume", "Multi-Attach error for volume", "FailedAttachVolume"),
        ("Pulled", "Container image is present", None),
        ("Pulling", "Pulling image", None),
    ],
)
def test_volumes_that_cannot_be_mounted_stand_in_events_only(reason: str, message: str, expected: str | None) -> None:
    problem = pod_problem(stuck("ContainerCreating"), NOW + 10, [{"reason": reason, "message": message}])
    assert (problem.reason if problem else None) == expected
    assert problem is None or message in problem.message


def test_code_that_is_gone_has_to_be_submitted_again() -> None:
    words = 'MountVolume.SetUp failed for volume "heterps-code-archive" : configmap "heterps-code-6b" not found'
    problem = pod_problem(stuck("ContainerCreating"), NOW + 10, [{"reason": "FailedMount", "message": words}])
    assert problem is not None
    assert "submit the job again with heterps submit --code" in problem.message


def test_a_large_image_takes_its_time() -> None:
    pulling = [{"reason": "Scheduled", "message": "to node-7"}, {"reason": "Pulling", "message": "image"}]
    assert pod_problem(stuck("ContainerCreating"), NOW + 500, pulling) is None
    late = pod_problem(stuck("ContainerCreating"), NOW + 700, pulling)
    assert late is not None
    assert "has been pulling its image for 700 s" in late.message
    done = [*pulling, {"reason": "Pulled", "message": "image"}]
    assert pod_problem(stuck("ContainerCreating"), NOW + 95, done) is not None


QUOTA = (
    'pods "flights-worker-0-1-1-1" is forbidden: exceeded quota: compute, requested: requests.cpu=4, '
    "used: requests.cpu=6, limited: requests.cpu=8"
)
REFUSALS: dict[str, tuple[ApiError, str, str]] = {
    "quota": (ApiError(403, "Forbidden", QUOTA), "QuotaExceeded", "raise the ResourceQuota"),
    "quota without limits": (
        ApiError(403, "Forbidden", "failed quota: compute: must specify limits.memory for: heterps"),
        "QuotaExceeded", "spec.podTemplates.all",
    ),
    "pod security": (
        ApiError(403, "Forbidden", 'violates PodSecurity "restricted:latest": runAsNonRoot != true'),
        "PodSecurity", "spec.podTemplates.all",
    ),
    "namespace ends": (
        ApiError(403, "Forbidden", "unable to create new content in namespace ml because it is being terminated"),
        "NamespaceTerminating", "another namespace",
    ),
    "rights": (
        ApiError(403, "Forbidden", 'User "system:serviceaccount:a:b" cannot create resource "pods" in API group ""'),
        "Forbidden", "Helm chart",
    ),
    "claims": (
        ApiError(403, "Forbidden", 'User "a" cannot get resource "resourceclaimtemplates" in API group "x"'),
        "Forbidden", "dynamicResourceAllocation.enabled=true",
    ),
    "no image": (
        ApiError(422, "Invalid", 'Pod "x" is invalid: spec.containers[0].image: Required value'),
        "InvalidPod", "spec.image",
    ),
    "template": (
        ApiError(422, "Invalid", 'Pod "x" is invalid: spec.volumes[3].name: Required value'),
        "InvalidPod", "correct spec.podTemplates of the job",
    ),
    "template of wrong types": (
        ApiError(400, "BadRequest", "Pod in version v1 cannot be handled: json: cannot unmarshal string into Go value"),
        "InvalidPod", "correct spec.podTemplates of the job",
    ),
    "priority": (
        ApiError(403, "Forbidden", 'pods "x" is forbidden: no PriorityClass with name high was found'),
        "InvalidPod", "runPolicy.schedulingPolicy.priorityClassName",
    ),
    "webhook": (
        ApiError(400, "Invalid", 'admission webhook "policy.example.com" denied the request: no latest tags'),
        "AdmissionRefused", "policy",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSALS)
def test_a_refusal_says_what_to_change(case: str) -> None:
    error, reason, fix = REFUSALS[case]
    problem = refused(CPU_WORKER, error)
    assert problem.reason == reason
    assert problem.message.startswith(f"the pod of worker-0-1 is refused: {error.message}")
    assert fix in problem.message.removeprefix(f"the pod of worker-0-1 is refused: {error.message}")


def test_words_of_the_cluster_are_shortened() -> None:
    assert len(start_error("x" * 5000)) < 800
    assert "let the image's user run" in start_error("exec: permission denied")


def test_only_a_lack_of_room_is_called_crowded() -> None:
    """Another plan can help then, and in no other case."""
    problems = {name: pod_problem(pod, NOW + age) for name, (pod, age, *_) in CASES.items()}
    crowded = {name for name, problem in problems.items() if problem is not None and problem.crowded}
    assert crowded == {"no room", "no cards", "no device", "no room for the coordinator"}
