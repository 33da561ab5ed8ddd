"""From a pod to the process that runs in it: pure.

Reasons of ends: https://kubernetes.io/docs/concepts/workloads/pods/disruptions/ (condition DisruptionTarget),
https://kubernetes.io/docs/concepts/scheduling-eviction/node-pressure-eviction/ (status.reason).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from heterps_operator.documents import Json
from heterps_operator.kubernetes.names import CONTAINER
from heterps_operator.kubernetes.reading.problems import pod_problem, start_error
from heterps_operator.kubernetes.reading.processes import process_of
from heterps_operator.state.values import ProcessView
from heterps_runtime.contract import EXIT_INTERRUPTED

__all__ = ["deletion_deadline", "exit_code", "runs_well", "view"]

_TAIL_LINES = 20
# Beyond its grace, for a pod that has to be gone: then its node does not carry anything out any more.
_OVERDUE_SECONDS = 60.0
_UNKNOWN_SECONDS = 120.0  # for a pod of which its node says nothing
_LAST_SIGNAL = 64

# `status.reason` of a pod that a node has failed. A node that admits a pod after all the others have taken its room
# (OutOfcpu, ...) has as good as evicted it.
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
    """The process of a pod, as the control loop sees processes.

    Args:
        pod: as the API server gives it.
        now: Unix seconds.
        tail: the last lines of its log, if they were read; else those that its status holds are taken.
        asked: whether the control loop itself has deleted it: such an end has no reason of its own.
        heard: whether its node's kubelet reports.
        events: of the pod, if they were read; what hinders its volumes stands nowhere else.

    Raises:
        UnreadableError: the pod does not say what it runs.
    """
    metadata, status = pod["metadata"], pod.get("status") or {}
    terminated = _terminated(status)
    ended = _ended(pod, terminated, now, heard)
    stopping = bool(metadata.get("deletionTimestamp"))
    over = ended is not None
    return ProcessView(
        process_of(pod),
        started=_time(metadata.get("creationTimestamp")) or now,
        ended=ended,
        exit_code=_exit(status, terminated) if over else None,
        stopping=stopping,
        last_lines=_last_lines(status, terminated, tail) if over else (),
        log=f"kubectl logs --namespace {metadata.get('namespace')} {metadata.get('name')}",
        # Told before the end too: a pod may be gone before its end was seen.
        reason=_reason(pod, terminated, asked, over) if over or stopping else "",
        problem=None if over or stopping else pod_problem(pod, now, events),
        begun=_begun(status),
        ready=heard and not over and _condition(status, "Ready").get("status") == "True",
    )


def runs_well(pod: Json) -> bool:
    """Whether the view of a pod is the same at every time, until something about the pod changes."""
    status = pod.get("status") or {}
    ready = _condition(status, "Ready").get("status") == "True"
    return ready and status.get("phase") == "Running" and not pod["metadata"].get("deletionTimestamp")


def exit_code(code: int) -> int:
    """An exit code of a container as the operating system has it: 128 + N becomes -N, an end by signal N.

    The runtime's own code for an orderly stop, 130, stays: it catches that signal.
    """
    return 128 - code if 128 < code <= 128 + _LAST_SIGNAL and code != EXIT_INTERRUPTED else code


def deletion_deadline(pod: Json) -> float | None:
    """When a pod that was deleted has to be gone; None if nobody has deleted it."""
    return _time(pod["metadata"].get("deletionTimestamp"))


def _terminated(status: Json) -> dict[str, Any] | None:
    """How the runtime's container ended, whatever others in the pod still do."""
    for container in status.get("containerStatuses") or ():
        if container.get("name") == CONTAINER:
            state: dict[str, Any] | None = (container.get("state") or {}).get("terminated")
            return state
    return None


def _begun(status: Json) -> float | None:
    """When the runtime's container began to run; None if it has not."""
    for container in status.get("containerStatuses") or ():
        if container.get("name") == CONTAINER:
            state = container.get("state") or {}
            return _time((state.get("running") or state.get("terminated") or {}).get("startedAt"))
    return None


def _ended(pod: Json, terminated: Json | None, now: float, heard: bool) -> float | None:
    """When the process ended; None while it may still run."""
    status = pod.get("status") or {}
    if terminated is not None:
        return _time(terminated.get("finishedAt")) or _last_change(status) or now
    if status.get("phase") in ("Succeeded", "Failed"):
        return _last_change(status) or now
    deadline = deletion_deadline(pod)
    # On a node that is not heard of nobody carries the deletion out. What may still run there ends when the node is
    # heard of again; meanwhile the coordinator tells it from its replacement.
    if deadline is not None and (now >= deadline + _OVERDUE_SECONDS or not heard):
        return min(deadline, now)
    if status.get("phase") == "Unknown":
        return _last_change(status) or now
    silent = _condition(status, "Ready")
    since = _time(silent.get("lastTransitionTime"))
    if silent.get("status") == "Unknown" and since is not None and now >= since + _UNKNOWN_SECONDS:
        return since
    return None


def _exit(status: Json, terminated: Json | None) -> int | None:
    """The exit code; None if nobody knows."""
    if terminated is not None:
        number = terminated.get("signal")
        return -int(number) if number else exit_code(int(terminated.get("exitCode", 1)))
    failed = next(_failed_init(status), None)
    if failed is not None:
        return exit_code(int(failed["state"]["terminated"]["exitCode"]))
    return 0 if status.get("phase") == "Succeeded" else None


def _reason(pod: Json, terminated: Json | None, asked: bool, over: bool) -> str:
    """Why it ended or ends, where the cluster knows more than the exit code; the most telling first."""
    status = pod.get("status") or {}
    why = str((terminated or {}).get("reason") or "")
    if why == "OOMKilled":
        return why
    reason = str(status.get("reason") or "")
    if reason in _POD_REASONS or reason.startswith("OutOf"):
        return _POD_REASONS.get(reason, "Evicted")
    disruption = _condition(status, "DisruptionTarget")
    if disruption.get("status") == "True":
        return _DISRUPTIONS.get(str(disruption.get("reason")), "Evicted")
    if _condition(status, "TerminationTarget").get("status") == "True":  # set by Kueue
        return "Preempted"
    deleted = bool(pod["metadata"].get("deletionTimestamp"))
    # Kubelets write ContainerStatusUnknown also for a container that never ran, when its pod is deleted.
    if why in _CONTAINER_REASONS and not (deleted and why == "ContainerStatusUnknown"):
        return _CONTAINER_REASONS[why]
    if deleted:
        overdue = over and terminated is None and status.get("phase") not in ("Succeeded", "Failed")
        return "NodeLost" if overdue else "" if asked else "Deleted"
    if terminated is None and status.get("phase") not in ("Succeeded", "Failed"):
        return "NodeLost"
    return "StartError" if terminated is None and next(_failed_init(status), None) is not None else ""


def _last_lines(status: Json, terminated: Json | None, tail: tuple[str, ...]) -> tuple[str, ...]:
    """What the process said last, and what the cluster says about its end."""
    lines = list(tail)
    if terminated is not None and terminated.get("message"):
        words = str(terminated["message"])
        if terminated.get("reason") in ("StartError", "ContainerCannotRun"):
            lines.append(start_error(words))
        elif not lines:
            lines += [line.rstrip() for line in words.splitlines() if line.strip()]
    for container in _failed_init(status):
        end = container["state"]["terminated"]
        said = f": {end['message'].strip()}" if end.get("message") else ""
        lines.append(f"init container {container['name']} ended with exit code {end['exitCode']}{said}")
    if status.get("message"):
        lines.append(str(status["message"]).strip())
    return tuple(lines)[-_TAIL_LINES:]


def _failed_init(status: Json) -> Iterator[Json]:
    for container in status.get("initContainerStatuses") or ():
        if ((container.get("state") or {}).get("terminated") or {}).get("exitCode"):
            yield container


def _condition(status: Json, kind: str) -> Json:
    return next((c for c in status.get("conditions") or () if c.get("type") == kind), {})


def _last_change(status: Json) -> float | None:
    """When anything about the pod was last noted: the same at every look, unlike now."""
    times = [_time(c.get("lastTransitionTime")) for c in status.get("conditions") or ()]
    for key in ("containerStatuses", "initContainerStatuses"):
        ends = [(c.get("state") or {}).get("terminated") or {} for c in status.get(key) or ()]
        times += [_time(end.get("finishedAt")) for end in ends]
    times.append(_time(status.get("startTime")))
    return max((time for time in times if time is not None), default=None)


def _time(text: Any) -> float | None:
    """A time of the API in Unix seconds; None for none, and for the year 1, which stands for none."""
    if not text:
        return None
    seconds = datetime.fromisoformat(str(text)).timestamp()
    return seconds if seconds > 0 else None
