"""Logs of a job's pods: merged by time, or followed as they are written."""

from __future__ import annotations

import heapq
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from heterps_operator.kubernetes.api import ApiError, KubernetesApi
from heterps_operator.kubernetes.names import (
    CONTAINER,
    LABEL_JOB,
    LABEL_PROCESS,
    LABEL_ROLE,
    is_of_name,
    pod_path,
    pods_path,
)

__all__ = ["LogLine", "read_logs"]

_CHECK_SECONDS = 2.0  # between two checks for new pods and for the end of the job
_READ_SECONDS = 300.0  # a silent pod's log is requested again after this
_NOT_YET = frozenset({400, 404})  # the container has not started, the pod is gone


@dataclass(frozen=True)
class LogLine:
    """One line of a pod's log."""

    process: str  # such as worker-0-1
    text: str
    time: str = ""  # from the kubelet, RFC 3339 in UTC
    pod: str = ""


def read_logs(
    server: KubernetesApi,
    namespace: str,
    job: str,
    *,
    role: str | None,
    follow: bool,
    tail: int | None,
    ended: Callable[[], bool],
    pause: Callable[[float], None],
) -> Iterator[LogLine]:
    """Yield the logs of a job (`HeterPSClient.logs`).

    Raises:
        ApiError: the server refused.
    """
    selector = f"{LABEL_JOB}={job}" + (f",{LABEL_ROLE}={role}" if role else "")

    def pods() -> list[dict[str, Any]]:
        found, _ = server.list(pods_path(namespace), label_selector=selector)
        found = [pod for pod in found if is_of_name(pod, job)]
        return sorted(found, key=lambda pod: (pod["metadata"].get("creationTimestamp") or "", pod["metadata"]["name"]))

    if not follow:
        yield from heapq.merge(*(_read(server, pod, tail) for pod in pods()), key=lambda line: line.time)
        return
    yield from _follow(server, pods, tail, ended, pause)


def _read(server: KubernetesApi, pod: dict[str, Any], tail: int | None, follow: bool = False) -> Iterator[LogLine]:
    """Yield the log of one pod, once or continuously."""
    metadata = pod["metadata"]
    name = str(metadata["name"])
    process = str((metadata.get("labels") or {}).get(LABEL_PROCESS) or name)
    query = {"container": CONTAINER, "timestamps": "true"}
    if tail is not None:
        query["tailLines"] = str(tail)
    if follow:
        query["follow"] = "true"
    try:
        for line in server.lines(f"{pod_path(metadata['namespace'], name)}/log", query, _READ_SECONDS):
            time, _, text = line.partition(" ")
            yield LogLine(process, text, time, name)
    except ApiError as error:
        if error.code not in _NOT_YET:
            raise


def _follow(
    server: KubernetesApi,
    pods: Callable[[], list[dict[str, Any]]],
    tail: int | None,
    ended: Callable[[], bool],
    pause: Callable[[float], None],
) -> Iterator[LogLine]:
    """Read one thread per started pod; a thread ends with its pod's log, or with this process."""
    lines: queue.Queue[LogLine | ApiError] = queue.Queue(maxsize=10_000)
    threads: dict[str, threading.Thread] = {}
    last: dict[str, str] = {}  # time of the last line, by pod

    def copy(pod: dict[str, Any]) -> None:
        name = pod["metadata"]["name"]
        before = last.get(name, "")
        try:
            for line in _read(server, pod, tail, follow=True):
                if line.time > before:  # skip lines of an earlier request
                    last[name] = line.time
                    lines.put(line)
        except ApiError as error:
            if error.code != 0:  # lost connection: the next attempt continues from the same line
                lines.put(error)

    while True:
        over = ended()
        for pod in pods():
            name, phase = pod["metadata"]["name"], (pod.get("status") or {}).get("phase")
            running = name in threads and threads[name].is_alive()
            again = name in threads and not running and phase == "Running"
            if phase != "Pending" and (name not in threads or again):
                threads[name] = threading.Thread(target=copy, args=(pod,), daemon=True)
                threads[name].start()
        for _ in range(int(_CHECK_SECONDS / 0.2)):
            yield from _drain(lines)
            pause(0.2)
        if over and not any(thread.is_alive() for thread in threads.values()):
            yield from _drain(lines)
            return


def _drain(lines: queue.Queue[LogLine | ApiError]) -> Iterator[LogLine]:
    """Yield the lines received so far, sorted by time."""
    fresh: list[LogLine] = []
    while True:
        try:
            line = lines.get_nowait()
        except queue.Empty:
            break
        if isinstance(line, ApiError):
            raise line
        fresh.append(line)
    yield from sorted(fresh, key=lambda line: line.time)
