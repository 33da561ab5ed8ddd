"""The substrate on a cluster: one pod per process of a job.

It reads pods from the controller's watch cache, so an observation costs no request. It remembers every pod that it
created or found (in the job's state), so that a pod deleted by another client, even while no controller runs, counts as
an ended process and not as one that never existed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Protocol

from heterps_operator.control.members import COORDINATOR
from heterps_operator.documents import Json
from heterps_operator.kubernetes.api import ApiError, KubernetesApi
from heterps_operator.kubernetes.building.pods import build_pod
from heterps_operator.kubernetes.names import coordinator_address, events_path, is_owned, pod_name, pod_path, pods_path
from heterps_operator.kubernetes.reading import observe
from heterps_operator.kubernetes.reading.images import RunningImage, image_id
from heterps_operator.kubernetes.reading.problems import REFUSALS, name_taken, refused
from heterps_operator.kubernetes.reading.processes import process_of
from heterps_operator.state.status import Status
from heterps_operator.state.values import Departure, PodProblem, ProcessSpec, ProcessView
from heterps_runtime.clock import steady_time
from heterps_runtime.contract import EXIT_BAD_INPUT

__all__ = ["KubernetesSubstrate", "Pods"]

_RETRY_SECONDS = 5.0  # after a pod was refused: quota may have been freed
_LEFTOVER_SECONDS = 1.0  # while a pod of an earlier job still has the name
_MOST_LOGS = 32  # of ended processes: of those that end together, the first know the cause, and each takes a request
_EVENTS_SECONDS = 30.0  # between two reads of the events of a pod that is being prepared


class Pods(Protocol):
    """Cached pods from the watch. Thread-safe."""

    def of_job(self, job: Json) -> tuple[Json, ...]:
        """Return all pods that this very job owns, not those of an earlier job of the same name."""
        ...

    def get(self, namespace: str, name: str) -> Json | None:
        """Return a pod, or None."""
        ...

    def put_answer(self, item: Json, before: Json | None) -> bool:
        """Store a pod from an API response unless it has changed since `before` was read; return whether it is news."""
        ...


@dataclass(frozen=True)
class _Refused:
    """A pod that the API server refused."""

    spec: ProcessSpec
    problem: PodProblem
    retry_at: float


class KubernetesSubstrate:
    """Runs the processes of one job as pods.

    Args:
        api: API server of the cluster.
        pods: cached pods from the watch.
        job: the HeterPSJob.
        pools: its DevicePools with defaults, by name.
        known: processes that an earlier controller started.
        clock: Unix seconds.
        tail_lines: log lines shown for a failed pod.
        on_wake: called by `wake`.
        hears_of: returns whether a node's kubelet reports.
        leaves: returns why a pod has to leave its node, or None.
        on_pod: called with "created" or "deleted", role and pool, for metrics.
    """

    def __init__(
        self,
        api: KubernetesApi,
        pods: Pods,
        job: Json,
        pools: Mapping[str, Json],
        *,
        known: Iterable[ProcessView] = (),
        clock: Callable[[], float] = steady_time,
        tail_lines: int = 20,
        on_wake: Callable[[], None] = lambda: None,
        hears_of: Callable[[str], bool] = lambda node: True,
        leaves: Callable[[Json], Departure | None] = lambda pod: None,
        on_pod: Callable[[str, str, str], None] = lambda what, role, pool: None,
    ) -> None:
        metadata = job["metadata"]
        self._api = api
        self._pods = pods
        self._namespace, self._job_name = str(metadata["namespace"]), str(metadata["name"])
        self.job = job
        self.pools = dict(pools)
        self._known: dict[str, ProcessView] = {view.name: view for view in known}
        # Names of pods that this controller deleted: their end needs no reason.
        self._stopped = {pod_name(self._job_name, view.spec) for view in self._known.values() if view.stopping}
        self._refused: dict[str, _Refused] = {}
        self._events: dict[str, tuple[float, tuple[Json, ...]]] = {}  # by pod: time of the last read, and its events
        self._views: dict[str, tuple[Json, ProcessView]] = {}  # by pod: cached views of running pods
        self._clock = clock
        self._tail_lines = tail_lines
        self._on_wake = on_wake
        self._hears_of = hears_of
        self._leaves = leaves
        self._on_pod = on_pod
        self._woken = threading.Event()
        self._plan_revision = 0
        self._logs_left = _MOST_LOGS

    def follow(self, status: Status) -> None:
        """Start pods for the plan of this status from now on."""
        self._plan_revision = status.plan_revision

    # --- reading ------------------------------------------------------------------------------------------------------

    def processes(self) -> tuple[ProcessView, ...]:
        """The latest process of each name, running or ended."""
        now = self._clock()
        seen: dict[str, ProcessView] = {}
        leaves: dict[str, Departure] = {}
        # Users may edit a pod's annotation, but not the state: its pool and units, and so its price, are those started.
        started = {pod_name(self._job_name, view.spec): view.spec for view in self._known.values()}
        for pod in self._pods.of_job(self.job):
            try:
                view = self._view(pod, now)
            except ValueError:
                continue  # another client has changed its annotation
            spec = started.get(str(pod["metadata"]["name"]), view.spec)
            if spec != view.spec:
                view = replace(view, spec=spec)
            other = seen.get(view.name)
            if other is None or _age(view) > _age(other):
                seen[view.name] = view
                leaves.pop(view.name, None)
                if (departure := self._leaves(pod)) is not None:
                    leaves[view.name] = departure
        if len(self._views) > 2 * len(seen):  # entries of deleted pods
            names = {pod_name(self._job_name, view.spec) for view in seen.values()}
            self._views = {name: kept for name, kept in self._views.items() if name in names}
        self._logs_left = _MOST_LOGS - sum(bool(view.last_lines) for view in self._known.values())
        for view in sorted(seen.values(), key=_first_to_tell):
            known = self._known.get(view.name)
            if known is None or _age(view) >= _age(known):
                self._known[view.name] = self._noted(view)
        for name, view in self._known.items():
            # An earlier attempt's pod may still exist.
            if view.running and (name not in seen or _age(seen[name]) < _age(view)):
                asked = pod_name(self._job_name, view.spec) in self._stopped
                reason = view.reason or ("" if asked else "Deleted")
                self._known[name] = replace(view, ended=now, reason=reason, problem=None)
        self._try_again(now)
        waiting = [
            ProcessView(refusal.spec, started=now, problem=refusal.problem, begun=None)
            for refusal in self._refused.values()
        ]
        names = {view.name for view in waiting}
        known_views = (view for name, view in self._known.items() if name not in names)
        return (*(replace(v, leaves=leaves[v.name]) if v.name in leaves else v for v in known_views), *waiting)

    def known(self) -> tuple[ProcessView, ...]:
        """Processes that a later controller must know."""
        return tuple(self._known.values())

    def coordinator_address(self) -> str | None:
        """`http://IP:PORT` or `https://IP:PORT` of the running coordinator."""
        known = self._known.get(COORDINATOR)
        if known is None or not known.running:
            return None
        pod = self._pod(pod_name(self._job_name, known.spec))
        status = (pod or {}).get("status") or {}
        if status.get("phase") != "Running" or not status.get("podIP"):
            return None
        return coordinator_address(self.job, str(status["podIP"]))

    def images(self, role: str, *, ended: bool = False) -> Iterator[RunningImage]:
        """Yield the images that processes of a role run, or have run, as far as kubelets have reported them."""
        for view in self._known.values():
            if view.spec.role == role and view.spec.pool is not None and (ended or view.running):
                pod = self._pod(pod_name(self._job_name, view.spec))
                if pod is not None and (image := image_id(pod)):
                    yield RunningImage(view.name, view.spec.pool, image)

    def wait(self, seconds: float) -> None:
        """Wait until woken, or until the time has passed."""
        self._woken.wait(seconds)
        self._woken.clear()

    def wake(self) -> None:
        """Unblock `wait`, and notify the driver of the loop."""
        self._woken.set()
        self._on_wake()

    # --- acting -------------------------------------------------------------------------------------------------------

    def start(self, spec: ProcessSpec) -> None:
        """Create the pod of a process, unless it exists.

        Raises:
            ApiError: the API server does not answer.
        """
        pool = self.pools[spec.pool] if spec.pool is not None else None
        address = None if spec.role == "coordinator" else self.coordinator_address()
        assert spec.role == "coordinator" or address is not None, f"{spec.name} is started before the coordinator runs"
        body = build_pod(
            self.job,
            pool,
            spec,
            coordinator=address,
            plan_revision=self._plan_revision,
            pools=self.pools.values(),
        )
        now = self._clock()
        name = str(body["metadata"]["name"])
        before = self._pods.get(self._namespace, name)
        try:
            # Otherwise the API server would silently drop a misspelt field of a template.
            pod = self._api.create(pods_path(self._namespace), body, strict=True)
        except ApiError as error:
            if error.code in REFUSALS:
                self._refused[spec.name] = _Refused(spec, refused(spec, error), now + _RETRY_SECONDS)
                return
            if error.code != HTTPStatus.CONFLICT:
                raise
            found = self._api.get(pod_path(self._namespace, name))
            if found is None:
                raise
            if not is_owned(found, self.job):
                problem = name_taken(f"pod {name}", found)
                self._refused[spec.name] = _Refused(spec, problem, now + _LEFTOVER_SECONDS)
                return
            pod = found
        else:
            self._on_pod("created", spec.role, spec.pool or "")
        self._refused.pop(spec.name, None)
        self._pods.put_answer(pod, before)
        self._known[spec.name] = self._noted(replace(self._view(pod, now), spec=spec))

    def stop(self, name: str, grace_seconds: float) -> None:
        """Delete a process's pod; its container has the grace period to end by itself."""
        if self._refused.pop(name, None) is not None:
            return
        view = self._known.get(name)
        if view is None or not view.running:
            return
        self._delete(pod_name(self._job_name, view.spec), view.spec, int(grace_seconds))
        self._known[name] = replace(view, stopping=True)

    def close(self) -> None:
        """Do nothing: pods outlive their controller."""

    def delete_pods(self, *, running_only: bool) -> bool:
        """Delete the job's pods, for `cleanPodPolicy`; return whether any were left."""
        found = False
        for pod in self._pods.of_job(self.job):
            ended = (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
            if (running_only and ended) or pod["metadata"].get("deletionTimestamp"):
                continue
            found = True
            self._delete(str(pod["metadata"]["name"]), _process(pod), None)
        return found

    # --- inside -------------------------------------------------------------------------------------------------------

    def _view(self, pod: Json, now: float) -> ProcessView:
        name = str(pod["metadata"]["name"])
        known, view = self._views.get(name, (None, None))
        if known is pod and view is not None:
            return view
        heard = self._hears_of(str((pod.get("spec") or {}).get("nodeName") or ""))
        view = observe.view(pod, now, asked=name in self._stopped, heard=heard)
        if observe.runs_well(pod):
            self._views[name] = (pod, view)
        if view.problem is None or view.problem.reason != "ContainerCreating":
            return view
        read_at, events = self._events.get(name, (-_EVENTS_SECONDS, ()))
        if now >= read_at + _EVENTS_SECONDS:
            events = self._events_of(name)
            self._events[name] = (now, events)
        return observe.view(pod, now, heard=heard, events=events)

    def _events_of(self, pod: str) -> tuple[Json, ...]:
        """Events of a pod, the newest last: volume and network problems appear nowhere else."""
        try:
            found, _ = self._api.list(events_path(self._namespace), field_selector=f"involvedObject.name={pod}")
        except ApiError:
            return ()
        return tuple(sorted(found, key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or "")))

    def _noted(self, view: ProcessView) -> ProcessView:
        """Add stored facts to a view: how the process ended, its last log lines, whether it was stopped."""
        known = self._known.get(view.name)
        if known is not None and _age(known) == _age(view) and not known.running:
            return known
        if view.running and not self._stopped:
            return view
        name = pod_name(self._job_name, view.spec)
        if not view.running and view.exit_code != 0 and not view.last_lines and self._logs_left > 0:
            self._logs_left -= 1
            view = replace(view, last_lines=self._api.log_tail(self._namespace, name, self._tail_lines))
        return replace(view, stopping=True) if name in self._stopped else view

    def _delete(self, name: str, spec: ProcessSpec | None, grace_seconds: int | None) -> None:
        uid = ((self._pod(name) or {}).get("metadata") or {}).get("uid")
        try:
            self._api.delete(pod_path(self._namespace, name), grace_seconds=grace_seconds, uid=uid)
        except ApiError as error:
            if error.code != HTTPStatus.NOT_FOUND:
                raise
        if name not in self._stopped:
            self._stopped.add(name)
            self._on_pod("deleted", spec.role if spec else "", (spec.pool if spec else None) or "")

    def _pod(self, name: str) -> Json | None:
        """Return a pod of this very job."""
        pod = self._pods.get(self._namespace, name)
        return pod if pod is not None and is_owned(pod, self.job) else None

    def _try_again(self, now: float) -> None:
        for refusal in [r for r in self._refused.values() if now >= r.retry_at]:
            if refusal.spec.role == "coordinator" or self.coordinator_address() is not None:
                self.start(refusal.spec)


def _process(pod: Json) -> ProcessSpec | None:
    """Return a pod's process; None if another client has changed its annotation."""
    try:
        return process_of(pod)
    except ValueError:
        return None


def _first_to_tell(view: ProcessView) -> tuple[bool, float]:
    """Sort key for processes that ended together: those that may know why come first (`control.failures`)."""
    return view.exit_code != EXIT_BAD_INPUT, view.ended or 0.0


def _age(view: ProcessView) -> tuple[int, int]:
    """Sort key for processes of one name, in order of creation."""
    return view.spec.incarnation, view.spec.attempt
