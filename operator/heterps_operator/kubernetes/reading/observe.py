"""The process that runs in a pod. Pure.

Sources of termination reasons: https://kubernetes.io/docs/concepts/workloads/pods/disruptions/ (condition
DisruptionTarget), https://kubernetes.io/docs/concepts/scheduling-eviction/node-pressure-eviction/ (status.reason).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from heterps_operator.documents import Json
from heterps_operator.kubernetes.names import CONTAINER
from heterps_operator.kubernetes.reading.problems import pod_problem, start_error
from heterps_operator.kubernetes.reading.processes import process_of
from heterps_operator.kubernetes.reading.statuses import find_condition, unix_seconds
from heterps_operator.state.values import ProcessView
from heterps_runtime.contract import EXIT_INTERRUPTED

__all__ = ["deletion_deadline", "exit_code", "runs_well", "view"]

_TAIL_LINES = 20
# Time after its grace period until a deleted pod counts as gone, as its node no longer acts.
_OVERDUE_SECONDS = 60.0
_UNKNOWN_SECONDS = 120.0  # for a pod whose node reports nothing
_LAST_SIGNAL = 64

# `status.reason` of a pod that a node has failed. A node that rejects a pod because others took its room (OutOfcpu,
# ...) has effectively evicted it.
_POD_REASONS = {
    "Evicted": "Evicted",
    "NodeAffinity": "Evicted",
    "NodeLost": "NodeLost",
    "NodeShutdown": "NodeLost",
    "Preempting": "Preempted",
    "Shutdown": "NodeLost",
    "Terminated": "NodeLost",
    "UnexpectedAdmissionError": "Evicted",
}
_CONTAINER_REASONS = {
    "ContainerCannotRun": "StartError",
    "ContainerStatusUnknown": "NodeLost",
    "OOMKilled": "OOMKilled",
    "StartError": "StartError",
}
_DISRUPTIONS = {
    "DeletionByPodGC": "NodeLost",
    "DeletionByTaintManager": "NodeLost",
    "EvictionByEvictionAPI": "Evicted",
    "PreemptionByScheduler": "Preempted",
    "TerminationByKubelet": "Evicted",
}


def view(
    pod: Json,
    now: float,
    tail: tuple[str, ...] = (),
    *,
    asked: bool = False,
    heard: bool = True,
    events: Sequence[Json] = (),
) -> ProcessView:
    """Return the process of a pod as the control loop sees it.

    Args:
        pod: pod from the API server.
        now: current time, Unix seconds.
        tail: the last lines of its log, if they were read; otherwise those in its status are used.
        asked: whether the control loop itself deleted it: such an end needs no reason.
        heard: whether its node's kubelet reports.
        events: events of the pod, if they were read; volume problems appear nowhere else.

    Raises:
        UnreadableError: the pod has no valid annotation.
    """
    metadata, status = pod["metadata"], pod.get("status") or {}
    terminated = _terminated(status)
    ended = _ended(pod, terminated, now, heard)
    stopping = bool(metadata.get("deletionTimestamp"))
    over = ended is not None
    return ProcessView(
        process_of(pod),
        started=unix_seconds(metadata.get("creationTimestamp")) or now,
        ended=ended,
        exit_code=_exit(status, terminated) if over else None,
        stopping=stopping,
        last_lines=_last_lines(status, terminated, tail) if over else (),
        log=f"kubectl logs --namespace {metadata.get('namespace')} {metadata.get('name')}",
        # Reported before the end too: a pod may disappear before its end is seen.
        reason=_reason(pod, terminated, asked, over) if over or stopping else "",
        problem=None if over or stopping else pod_problem(pod, now, events),
        begun=_begun(status),
        ready=heard and not over and find_condition(status, "Ready").get("status") == "True",
    )


def runs_well(pod: Json) -> bool:
    """Whether the view of a pod does not depend on time until the pod changes."""
    status = pod.get("status") or {}
    ready = find_condition(status, "Ready").get("status") == "True"
    return ready and status.get("phase") == "Running" and not pod["metadata"].get("deletionTimestamp")


def exit_code(code: int) -> int:
    """Convert a container's exit code: 128 + N becomes -N, death by signal N.

    The runtime's own code for a requested stop, 130, stays, as the runtime catches that signal.
    """
    return 128 - code if 128 < code <= 128 + _LAST_SIGNAL and code != EXIT_INTERRUPTED else code


def deletion_deadline(pod: Json) -> float | None:
    """Time when a deleted pod must be gone; None if it was not deleted."""
    return unix_seconds(pod["metadata"].get("deletionTimestamp"))


def _terminated(status: Json) -> dict[str, Any] | None:
    """Termination state of the runtime's container, whatever other containers do."""
    for container in status.get("containerStatuses") or ():
        if container.get("name") == CONTAINER:
            state: dict[str, Any] | None = (container.get("state") or {}).get("terminated")
            return state
    return None


def _begun(status: Json) -> float | None:
    """Start time of the runtime's container; None if it has not started."""
    for container in status.get("containerStatuses") or ():
        if container.get("name") == CONTAINER:
            state = container.get("state") or {}
            return unix_seconds((state.get("running") or state.get("terminated") or {}).get("startedAt"))
    return None


def _ended(pod: Json, terminated: Json | None, now: float, heard: bool) -> float | None:
    """End time of the process; None while it may still run."""
    status = pod.get("status") or {}
    if terminated is not None:
        return unix_seconds(terminated.get("finishedAt")) or _last_change(status) or now
    if status.get("phase") in ("Succeeded", "Failed"):
        return _last_change(status) or now
    deadline = deletion_deadline(pod)
    # An unreachable node does not carry out the deletion. The process may still run there until the node is back; until
    # then the coordinator distinguishes it from its replacement.
    if deadline is not None and (now >= deadline + _OVERDUE_SECONDS or not heard):
        return min(deadline, now)
    if status.get("phase") == "Unknown":
        return _last_change(status) or now
    silent = find_condition(status, "Ready")
    since = unix_seconds(silent.get("lastTransitionTime"))
    if silent.get("status") == "Unknown" and since is not None and now >= since + _UNKNOWN_SECONDS:
        return since
    return None


def _exit(status: Json, terminated: Json | None) -> int | None:
    """The exit code; None if unknown."""
    if terminated is not None:
        number = terminated.get("signal")
        return -int(number) if number else exit_code(int(terminated.get("exitCode", 1)))
    failed = next(_failed_init(status), None)
    if failed is not None:
        return exit_code(int(failed["state"]["terminated"]["exitCode"]))
    return 0 if status.get("phase") == "Succeeded" else None


def _reason(pod: Json, terminated: Json | None, asked: bool, over: bool) -> str:
    """Why it ended or ends, if the cluster knows more than the exit code; the most specific reason first."""
    status = pod.get("status") or {}
    why = str((terminated or {}).get("reason") or "")
    if why == "OOMKilled":
        return why
    reason = str(status.get("reason") or "")
    if reason in _POD_REASONS or reason.startswith("OutOf"):
        return _POD_REASONS.get(reason, "Evicted")
    disruption = find_condition(status, "DisruptionTarget")
    if disruption.get("status") == "True":
        return _DISRUPTIONS.get(str(disruption.get("reason")), "Evicted")
    if find_condition(status, "TerminationTarget").get("status") == "True":  # set by Kueue
        return "Preempted"
    deleted = bool(pod["metadata"].get("deletionTimestamp"))
    # Kubelets also write ContainerStatusUnknown for a container that never ran when its pod is deleted.
    if why in _CONTAINER_REASONS and not (deleted and why == "ContainerStatusUnknown"):
        return _CONTAINER_REASONS[why]
    if deleted:
        overdue = over and terminated is None and status.get("phase") not in ("Succeeded", "Failed")
        return "NodeLost" if overdue else "" if asked else "Deleted"
    if terminated is None and status.get("phase") not in ("Succeeded", "Failed"):
        return "NodeLost"
    return "StartError" if terminated is None and next(_failed_init(status), None) is not None else ""


def _last_lines(status: Json, terminated: Json | None, tail: tuple[str, ...]) -> tuple[str, ...]:
    """The last lines of the process's log, and the cluster's message about its end."""
    lines = list(tail)
    if terminated is not None and terminated.get("message"):
        words = str(terminated["message"])
        if terminated.get("reason") in ("StartError", "ContainerCannotRun"):
            lines.append(start_error(words))
        elif not lines:
            lines += [line.rstrip() for line in words.splitlines() if line.strip()]
    for container in _failed_init(status):
        end = container["state"]["terminated"]
        *before, last = str(end.get("message") or "").strip().splitlines() or [""]
        lines += [line.rstrip() for line in before if line.strip()]
        said = f": {last.strip()}" if last else ""
        lines.append(f"init container {container['name']} ended with exit code {end['exitCode']}{said}")
    if status.get("message"):
        lines.append(str(status["message"]).strip())
    return tuple(lines)[-_TAIL_LINES:]


def _failed_init(status: Json) -> Iterator[Json]:
    for container in status.get("initContainerStatuses") or ():
        if ((container.get("state") or {}).get("terminated") or {}).get("exitCode"):
            yield container


def _last_change(status: Json) -> float | None:
    """Time of the pod's last recorded change: stable between calls, unlike the current time."""
    times = [unix_seconds(c.get("lastTransitionTime")) for c in status.get("conditions") or ()]
    for key in ("containerStatuses", "initContainerStatuses"):
        ends = [(c.get("state") or {}).get("terminated") or {} for c in status.get(key) or ()]
        times += [unix_seconds(end.get("finishedAt")) for end in ends]
    times.append(unix_seconds(status.get("startTime")))
    return max((time for time in times if time is not None), default=None)
