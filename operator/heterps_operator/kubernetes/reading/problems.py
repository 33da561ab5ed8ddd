"""Why a pod does not start, with the fix. Pure.

Waiting is normal for a while. Problems that do not resolve by themselves are reported at once: a pod that fits no node,
an image that does not exist. The rest is reported after a grace period.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from heterps_operator.documents import Json
from heterps_operator.kubernetes.api import ApiError
from heterps_operator.kubernetes.names import CODE_CONTAINER, CONTAINER, LABEL_POOL, LABEL_PROCESS
from heterps_operator.kubernetes.reading.statuses import find_condition, unix_seconds
from heterps_operator.state.values import PodProblem, ProcessSpec

__all__ = ["REFUSALS", "name_taken", "object_refused", "pod_problem", "refused", "start_error"]

REFUSALS = frozenset({400, 403, 413, 422})  # API server responses that a retry does not change

_UNCLAIMED_SECONDS = 30.0  # for a scheduler to consider a pod
_CREATING_SECONDS = 30.0  # for a node to prepare volumes and network
_PULLING_SECONDS = 600.0  # for an image
_INITIALISING_SECONDS = 600.0  # for init containers, which may load data
_UNREADY_SECONDS = 60.0  # for a container to answer its readiness probe
_SILENT_SECONDS = 15.0  # for a node to answer
_LONGEST_QUOTE = 600  # characters of a quoted cluster message

_PULLING = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ImageInspectError", "ErrImageNeverPull"})
_MOUNTING = frozenset({"FailedMount", "FailedAttachVolume", "FailedMapVolume"})
_NETWORKING = frozenset({"FailedCreatePodSandBox", "NetworkNotReady"})
# Patterns of the API server's refusals, with reason and fix; the first match applies.
_REFUSALS = (
    (
        'resource "resourceclaimtemplates"',
        "Forbidden",
        "install the operator's Helm chart with dynamicResourceAllocation.enabled=true, which grants it",
    ),
    (
        "must specify",
        "QuotaExceeded",
        "set what the quota asks for in spec.podTemplates.all, or add a LimitRange to the namespace",
    ),
    (
        "exceeded quota",
        "QuotaExceeded",
        "raise the ResourceQuota of the namespace, or lower maxUnits of the job's pools",
    ),
    (
        "violates PodSecurity",
        "PodSecurity",
        "set the fields that it names in spec.podTemplates.all, or lower the label "
        "pod-security.kubernetes.io/enforce of the namespace",
    ),
    ("is being terminated", "NamespaceTerminating", "create the job in another namespace"),
    (
        "cannot create resource",
        "Forbidden",
        "give the operator the rights that its Helm chart lists for this namespace",
    ),
    (
        "error looking up service account",
        "InvalidPod",
        "create that ServiceAccount in the job's namespace, or correct serviceAccountName in spec.podTemplates.all",
    ),
    (
        "RuntimeClass",
        "InvalidPod",
        "create that RuntimeClass, or correct runtimeClassName in spec.podTemplates.all",
    ),
    (
        "no PriorityClass with name",
        "InvalidPod",
        "create it, or correct runPolicy.schedulingPolicy.priorityClassName",
    ),
    (".image: Required value", "InvalidPod", "name the image of the runtime and your code in spec.image"),
)
_FORBIDDEN = 403
_POLICY = (
    "AdmissionRefused",
    "change spec.podTemplates.all so that the cluster's policy admits it, or ask who set that policy",
)
_TOO_LARGE = re.compile(r"Too long: may not be more than|must have at most|too large", re.IGNORECASE)
_INSUFFICIENT = re.compile(r"Insufficient ([A-Za-z0-9./-]+[A-Za-z0-9])")
_NO_DEVICE = "cannot allocate all claims"
_PREEMPTION = re.compile(r" (?:no new claims to deallocate|preemption:)")
_TAINT = re.compile(r"untolerated taint\(?s?\)? ?\{([^}]*)\}")


def pod_problem(pod: Json, now: float, events: Sequence[Json] = ()) -> PodProblem | None:
    """Return why a pod does not start; None if it runs, has ended, or waits no longer than is normal.

    Args:
        pod: pod from the API server.
        now: current time, Unix seconds.
        events: events of the pod, if they were read; mount failures appear nowhere else.
    """
    status = pod.get("status") or {}
    if status.get("phase") not in (None, "Pending", "Running") or pod["metadata"].get("deletionTimestamp"):
        return None
    scheduled = find_condition(status, "PodScheduled")
    if scheduled.get("status") == "False":
        return _not_scheduled(pod, scheduled)
    age = now - (unix_seconds(pod["metadata"].get("creationTimestamp")) or now)
    if not scheduled and not (pod.get("spec") or {}).get("nodeName"):
        return _unclaimed(pod, age) if age >= _UNCLAIMED_SECONDS else None
    return _not_created(pod, now, events) or _not_ready(pod, now)


def refused(spec: ProcessSpec, error: ApiError) -> PodProblem:
    """Return why the API server refused a pod."""
    faulty = error.code in (400, 413, 422) and "admission webhook" not in error.message
    return _refusal(
        f"the pod of {spec.name}",
        error,
        ("InvalidPod", "correct spec.podTemplates of the job") if faulty else _POLICY,
    )


def object_refused(what: str, error: ApiError) -> PodProblem:
    """Return why the API server refused another object of a job.

    Args:
        what: kind and name of the object.
        error: the API server's response.
    """
    if _TOO_LARGE.search(error.message) and error.code != _FORBIDDEN:
        fix = (
            "shorten the longest parts of the job's spec (templates, arguments, stages): "
            "it is stored in ConfigMaps of at most 1 MiB"
        )
        return _refusal(what, error, ("TooLarge", fix))
    return _refusal(what, error, ("ObjectRefused", "correct the job, or ask who set the cluster's policy"))


def name_taken(what: str, found: Json) -> PodProblem:
    """Return why an object cannot be created: its name is taken by another owner's object or an earlier job's.

    Args:
        what: kind and name of the object.
        found: the existing object.
    """
    if any(owner.get("kind") == "HeterPSJob" for owner in found["metadata"].get("ownerReferences") or ()):
        return PodProblem("NameNotFree", f"{what} belongs to an earlier job of this name, which is being deleted")
    return PodProblem(
        "NameTaken", f"{what} already exists and does not belong to this job; delete it, or give the job another name"
    )


def _refusal(what: str, error: ApiError, otherwise: tuple[str, str]) -> PodProblem:
    known = ((reason, fix) for words, reason, fix in _REFUSALS if words in error.message)
    reason, fix = next(known, otherwise)
    return PodProblem(reason, f"{what} is refused: {_quote(error.message)}; {fix}")


def start_error(words: str) -> str:
    """Return a container runtime's start error, with the fix."""
    text = _quote(words)
    if "executable file not found" in words or "no such file or directory" in words:
        return f"the container cannot start: {text}; use an image with heterps-runtime on its PATH (spec.image)"
    if "permission denied" in words.lower():
        return f"the container cannot start: {text}; let the image's user run heterps-runtime"
    return f"the container cannot start: {text}; check spec.image and the container's template"


# --- before a node ----------------------------------------------------------------------------------------------------


def _not_scheduled(pod: Json, condition: Json) -> PodProblem:
    reason = str(condition.get("reason") or "Unschedulable")
    name, words = _process(pod), str(condition.get("message") or "")
    if reason == "SchedulingGated":
        gates = ", ".join(str(g.get("name")) for g in (pod.get("spec") or {}).get("schedulingGates") or ())
        queue = (pod["metadata"].get("labels") or {}).get("kueue.x-k8s.io/queue-name")
        if queue:
            text = f"{name} waits in queue {queue} until there is quota for the whole group"
            return PodProblem(reason, f"{text}; see kubectl get workloads, or raise the quota of its ClusterQueue")
        return PodProblem(reason, f"{name} waits behind the scheduling gate {gates}; its owner has to remove it")
    # The preemption part of the message is not about this pod's needs.
    words = _PREEMPTION.split(words)[0].strip()
    told = f"{name} fits no node ({_quote(words.rstrip('.'))})"
    crowded = _INSUFFICIENT.search(words) is not None or _NO_DEVICE in words
    return PodProblem(reason, f"{told}; {_way_onto_a_node(pod, words)}", crowded=crowded)


def _way_onto_a_node(pod: Json, words: str) -> str:
    pool = (pod["metadata"].get("labels") or {}).get(LABEL_POOL)
    short = sorted(set(_INSUFFICIENT.findall(words)))
    if short:
        where = f"pool {pool}" if pool else "the cluster"
        lower = f"lower maxUnits of pool {pool} in spec.pools, so that the plan asks for less" if pool else "free some"
        return f"{where} has no node with enough {' and '.join(short)} left: add nodes, or {lower}"
    if _NO_DEVICE in words:
        text = f"no node of pool {pool} has a free device of its DeviceClass" if pool else "no node has free devices"
        return f"{text}: see the ResourceClaims of other pods, or lower maxUnits of the pool"
    if "persistentvolumeclaim" in words.lower() or "volume" in words.lower():
        return "create the volume claims that spec.podTemplates.all names, where the pool's nodes can reach them"
    taint = _TAINT.search(words)
    if taint:
        if pool is None:
            return f"tolerate the taint {{{taint[1]}}} in spec.podTemplates.coordinator, or add a node without it"
        return f"add a toleration of the taint {{{taint[1]}}} to DevicePool {pool}"
    if "node affinity" in words or "node selector" in words or "affinity/selector" in words:
        selector = (pod.get("spec") or {}).get("nodeSelector") or {}
        labels = ", ".join(f"{key}={value}" for key, value in selector.items()) or "that spec.podTemplates.all asks for"
        owner = f"DevicePool {pool} or of spec.podTemplates.all" if pool else "spec.podTemplates.all"
        return f"label nodes with {labels}, or correct the nodeSelector of {owner}"
    return f"add nodes to pool {pool}, or choose other pools in spec.pools" if pool else "add a node that can take it"


def _unclaimed(pod: Json, age: float) -> PodProblem:
    scheduler = (pod.get("spec") or {}).get("schedulerName") or "default-scheduler"
    text = f"no scheduler has looked at {_process(pod)} for {age:.0f} s"
    fix = f"check that {scheduler} runs, or correct runPolicy.schedulingPolicy"
    return PodProblem("NotScheduled", f"{text}; {fix}")


# --- on its node ------------------------------------------------------------------------------------------------------


def _not_created(pod: Json, now: float, events: Sequence[Json]) -> PodProblem | None:
    """Containers that wait for something missing."""
    where = f"{_process(pod)} on node {(pod.get('spec') or {}).get('nodeName')}"
    since = now - (
        unix_seconds(find_condition(pod.get("status") or {}, "PodScheduled").get("lastTransitionTime")) or now
    )
    creating = False
    for container, waiting in _waiting(pod):
        reason, words = str(waiting.get("reason") or ""), str(waiting.get("message") or "")
        name = str(container.get("name"))
        if reason in _PULLING:
            # The two alternate while an image cannot be pulled.
            told = "ImagePullBackOff" if reason == "ErrImagePull" else reason
            return PodProblem(told, _image_message(where, name, container, reason, words))
        if reason == "CreateContainerConfigError":
            text = f"{where} lacks something that container {name} needs: {_quote(words)}"
            fix = "create it in the job's namespace, or correct spec.credentials or spec.podTemplates.all"
            if "runAsNonRoot" in words:
                fix = "let the image run as a user other than root, or remove runAsNonRoot from spec.podTemplates.all"
            return PodProblem(reason, f"{text}; {fix}")
        if reason in ("RunContainerError", "StartError", "CreateContainerError"):
            return PodProblem(reason, f"{where}, container {name}: {start_error(words)}")
        if reason == "CrashLoopBackOff":
            return _crashes(pod, where, name, "")
        creating = creating or reason == "ContainerCreating"
        if reason == "PodInitializing" and since >= _INITIALISING_SECONDS:
            fix = f"see kubectl logs {pod['metadata'].get('name')} --all-containers"
            return PodProblem("Initialising", f"{where}: init containers have run for {since:.0f} s; {fix}")
    for container in _containers(pod.get("status") or {}, "initContainerStatuses"):
        # For sidecars that start first, kubelets report the last end until the restart.
        end = (container.get("state") or {}).get("terminated") or {}
        if container.get("restartCount") and end.get("exitCode"):
            return _crashes(pod, where, str(container.get("name")), str(end.get("message") or ""))
    if creating:
        return _creating(pod, where, since, events)
    return None


def _crashes(pod: Json, where: str, name: str, words: str) -> PodProblem:
    said = f" ({_quote(words)})" if words else ""
    fix = f"see kubectl logs {pod['metadata'].get('name')} --container {name} --previous"
    return PodProblem("CrashLoopBackOff", f"{where}: container {name} ends repeatedly{said}; {fix}")


def _creating(pod: Json, where: str, since: float, events: Sequence[Json]) -> PodProblem | None:
    """A node that prepares a pod: its volumes, its network."""
    for event in reversed(events):
        reason, words = str(event.get("reason")), str(event.get("message") or "")
        if reason in _MOUNTING:
            fix = "create what is missing, or correct the volumes of spec.podTemplates.all"
            if f'"{CODE_CONTAINER}' in words:  # of the volume
                fix = "submit the job again with heterps submit --code, or correct spec.code"
            return PodProblem(reason, f"{where}: a volume cannot be mounted: {_quote(words)}; {fix}")
        if reason in _NETWORKING and since >= _UNCLAIMED_SECONDS:
            fix = "the network of that node needs repair; cordon it meanwhile"
            return PodProblem(reason, f"{where}: its network cannot be set up: {_quote(words)}; {fix}")
    said = {str(event.get("reason")) for event in events}
    if "Pulling" in said and "Pulled" not in said:
        if since < _PULLING_SECONDS:
            return None
        fix = "wait, use a smaller image, or a registry closer to the node"
        return PodProblem("ContainerCreating", f"{where} has been pulling its image for {since:.0f} s; {fix}")
    if since >= _CREATING_SECONDS:
        text = f"{where} has been prepared for {since:.0f} s"
        fix = f"an image, a volume or the network is not ready, see kubectl describe pod {pod['metadata'].get('name')}"
        return PodProblem("ContainerCreating", f"{text}; {fix}")
    return None


def _not_ready(pod: Json, now: float) -> PodProblem | None:
    """Containers that run but do not answer, or whose node does not."""
    status = pod.get("status") or {}
    ready = find_condition(status, "Ready")
    runtime: Json = next((c for c in status.get("containerStatuses") or () if c.get("name") == CONTAINER), {})
    running = (runtime.get("state") or {}).get("running")
    if running is None or ready.get("status") == "True" or not ready:
        return None
    since = now - (unix_seconds(ready.get("lastTransitionTime")) or now)
    node = (pod.get("spec") or {}).get("nodeName")
    # The node reports the container as ready; whatever marked the pod unready has lost contact with the node.
    healthy = all(c.get("ready") for c in _containers(status)) and ready.get("reason") != "ReadinessGatesNotReady"
    if (ready.get("status") == "Unknown" or healthy) and since >= _SILENT_SECONDS:
        text = f"node {node}, where {_process(pod)} runs, has not answered for {since:.0f} s"
        return PodProblem("NodeNotReady", f"{text}; if it stays away, its pods are started elsewhere")
    if not runtime.get("ready") and since >= _UNREADY_SECONDS:
        text = f"{_process(pod)} on node {node} has run for {since:.0f} s without becoming ready"
        fix = f"see kubectl logs {pod['metadata'].get('name')}"
        return PodProblem("ContainersNotReady", f"{text}; {fix}")
    return None


def _image_message(where: str, name: str, container: Json, reason: str, words: str) -> str:
    image = container.get("image") or "its image"
    text = f"{where} cannot get the image {image} of container {name}"
    said = f" ({_quote(words)})" if words else ""
    low = words.lower()
    field = "spec.image" if name in (CONTAINER, CODE_CONTAINER) else "spec.podTemplates.all"
    if reason == "InvalidImageName":
        fix = f"correct the name in {field}"
    elif reason == "ErrImageNeverPull":
        fix = "load it onto the node, or set another imagePullPolicy in spec.podTemplates.all"
    elif any(word in low for word in ("unauthorized", "denied", "authentication", "403 forbidden", "401")):
        fix = "add imagePullSecrets for the registry to spec.podTemplates.all, or correct the name"
    elif any(word in low for word in ("not found", "manifest unknown", "404")):
        fix = f"push the image, or correct {field}"
    elif any(word in low for word in ("toomanyrequests", "429")):
        fix = "the registry limits the request rate: sign in with imagePullSecrets, or mirror the image"
    elif any(word in low for word in ("no such host", "i/o timeout", "connection refused", "x509")):
        fix = "the node does not reach the registry: check its name, the network and certificates"
    else:
        fix = f"check that {field} exists and that the node may pull it"
    return f"{text}{said}; {fix}"


# --- reading ----------------------------------------------------------------------------------------------------------


def _waiting(pod: Json) -> Iterator[tuple[Json, Json]]:
    """Waiting containers with their reasons, those that start first at the front."""
    for container in _containers(pod.get("status") or {}, "initContainerStatuses", "containerStatuses"):
        waiting = (container.get("state") or {}).get("waiting")
        if waiting is not None:
            yield container, waiting


def _containers(status: Json, *keys: str) -> list[Json]:
    return [container for key in keys or ("containerStatuses",) for container in status.get(key) or ()]


def _process(pod: Json) -> str:
    return str((pod["metadata"].get("labels") or {}).get(LABEL_PROCESS) or pod["metadata"].get("name"))


def _quote(words: str) -> str:
    """Quote a cluster message as one line of bounded length."""
    text = " ".join(words.split())
    return text if len(text) <= _LONGEST_QUOTE else text[: _LONGEST_QUOTE - 3] + "..."
