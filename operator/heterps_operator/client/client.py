"""A client of HeterPSJobs: what the commands do on a cluster, for programs.

client = connect(namespace="team")
client.submit("job.yaml")
job = client.wait("flights", timeout=3600)
print(job.status.auc, job.status.cost)
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from heterps_operator.api.admission import pod_configuration
from heterps_operator.api.job import JobSpec
from heterps_operator.client.api_errors import no_such_job, refusal
from heterps_operator.client.code import BroughtCode, bring_code, config_map, missing_module, owned_by, upload
from heterps_operator.client.logs import LogLine, read_logs
from heterps_operator.client.manifests import Submission, read_submission
from heterps_operator.client.views import EventView, JobView, PlanView, read_time
from heterps_operator.client.watching import watch_object
from heterps_operator.control.choices import as_chosen
from heterps_operator.control.problem import build_problem
from heterps_operator.documents import Json
from heterps_operator.errors import ClusterError
from heterps_operator.kubernetes.api import ApiError, KubernetesApi
from heterps_operator.kubernetes.building.objects import PLAN_FILE
from heterps_operator.kubernetes.names import (
    LABEL_JOB,
    config_maps_path,
    events_path,
    is_of_name,
    job_path,
    job_state_path,
    jobs_path,
    object_path,
    pods_path,
)
from heterps_operator.kubernetes.profiles import ConfigMapProfileCache
from heterps_operator.kubernetes.reading import observe
from heterps_operator.kubernetes.state import StoredState
from heterps_operator.state.values import ProcessView

__all__ = ["HeterPSClient", "JobUpdate", "Submitted"]

Until = Callable[[JobView], bool]

_FIELD_MANAGER = "heterps-client"  # owner of the fields that users set with the command line
_FORBIDDEN = 403


@dataclass(frozen=True)
class JobUpdate:
    """The effect of a submission on one object."""

    kind: str
    name: str
    # created | changed | unchanged | kept (not writable, exists) | unseen (not readable either) | not uploaded
    verb: str


@dataclass(frozen=True)
class Submitted:
    """Result of a submission."""

    job: JobView
    changes: tuple[JobUpdate, ...]
    objects: tuple[Json, ...]  # as stored by the cluster, or as it would store them
    note: str | None = None  # what is probably wrong, though the cluster accepts it


class HeterPSClient:
    """Jobs of one namespace.

    Args:
        server: the API server.
        namespace: namespace of the jobs.
        pause: waits between attempts; tests replace it.
    """

    def __init__(self, server: KubernetesApi, namespace: str, pause: Callable[[float], None] = time.sleep) -> None:
        self.namespace = namespace
        self._server = server
        self._pause = pause

    def submit(
        self,
        source: str | Path | Json | Sequence[Json] | Submission,
        *,
        code: str | Path | None = None,
        code_store: str | None = None,
        dry_run: bool = False,
    ) -> Submitted:
        """Create or change a job and the pools of its file by server-side apply.

        A cancelled job resumes, unless the file itself suspends it.

        Args:
            source: a job file, objects as dictionaries, or a submission that was already read.
            code: folder that the job imports from, or `git+ADDRESS@REVISION`; replaces `spec.code`.
            code_store: address that keeps packed code; None: a ConfigMap or, if it is too large, `checkpoint.path`.
            dry_run: validate on the cluster and store nothing.

        Raises:
            ManifestError: the source is invalid.
            UsageError: the code cannot be packed, or nothing can keep it.
            ClusterError: the cluster or the store refused it.
        """
        objects = source if isinstance(source, Submission) else read_submission(source)
        namespace = objects.namespace or self.namespace
        if namespace != self.namespace:
            text = f"HeterPSJob {objects.name}: its metadata says namespace {namespace}, you say {self.namespace}"
            raise ClusterError("WrongNamespace", f"{text}; leave one out, or make them agree")
        job = {**objects.job, "metadata": {**objects.job["metadata"], "namespace": namespace}}
        brought = None if code is None else bring_code(code, job["spec"]["checkpoint"]["path"], code_store)
        kept, delivered = self._deliver(brought, dry_run)
        if brought is not None:
            job["spec"] = {**job["spec"], "code": brought.in_place_of(job["spec"].get("code") or {})}
        results = [self._apply(pool, dry_run) for pool in objects.pools]
        results.append(self._apply(job, dry_run))
        changes, values = zip(*results, strict=True)
        if kept is not None and not dry_run:
            with self._doing(f"submitting ConfigMap {kept['metadata']['name']}"):
                # A field manager for each job, so that jobs with the same code own it together.
                manager = f"{_FIELD_MANAGER}-{values[-1]['metadata']['uid']}"
                self._server.apply(object_path(kept), owned_by(kept, values[-1]), manager)
        note = None if brought is None else missing_module(brought, job["spec"]["model"]["entrypoint"])
        return Submitted(JobView.from_json(values[-1]), (*delivered, *changes), values, note)

    def get(self, name: str) -> JobView:
        """Return the job of that name.

        Raises:
            ClusterError: the job does not exist, or the cluster refused the request.
        """
        with self._doing(f"reading job {name} in namespace {self.namespace}"):
            found = self._server.get(job_path(self.namespace, name))
        if found is None:
            raise self._missing(name)
        return JobView.from_json(found)

    def jobs(self, *, all_namespaces: bool = False) -> tuple[JobView, ...]:
        """Return the jobs of the namespace, or of all namespaces, sorted by name."""
        where = "all namespaces" if all_namespaces else f"namespace {self.namespace}"
        with self._doing(f"listing jobs in {where}"):
            found, _ = self._server.list(jobs_path(None if all_namespaces else self.namespace))
        return tuple(sorted((JobView.from_json(item) for item in found), key=lambda job: (job.namespace, job.name)))

    def watch(self, name: str) -> Iterator[JobView]:
        """Yield the job now and after every change, until it is deleted. Reconnects after lost connections.

        Raises:
            ClusterError: there is no such job, or the cluster refused the request.
        """
        with self._doing(f"watching job {name} in namespace {self.namespace}"):
            there = False
            for value in watch_object(self._server, jobs_path(self.namespace), name, self._pause):
                there = True
                yield JobView.from_json(value)
        if not there:
            raise self._missing(name)

    def wait(self, name: str, timeout: float | None = None, until: Until | None = None) -> JobView:
        """Wait until the job has ended, or until a condition holds.

        Args:
            name: name of the job.
            timeout: seconds; None: no limit.
            until: condition to wait for instead.

        Raises:
            ClusterError: the time is up (reason Timeout), or the job was deleted (Deleted).
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        reached = until or (lambda job: job.ended)
        last: JobView | None = None
        with self._doing(f"watching job {name} in namespace {self.namespace}"):
            for value in watch_object(self._server, jobs_path(self.namespace), name, self._pause, deadline):
                last = JobView.from_json(value)
                if reached(last):
                    return last
        if last is None:
            raise self._missing(name)
        if deadline is not None and time.monotonic() >= deadline:
            state = f"it is {last.status.phase or 'not taken up by an operator'}"
            raise ClusterError("Timeout", f"job {name}: waited for {timeout:g} s, {state}")
        raise ClusterError("Deleted", f"job {name} was deleted")

    def logs(
        self, name: str, *, role: str | None = None, follow: bool = False, tail: int | None = None
    ) -> Iterator[LogLine]:
        """Yield the log lines of a job's pods, sorted by time.

        Args:
            name: name of the job.
            role: coordinator, ps, worker or profile; None: all.
            follow: continue with new lines, including those of new pods, until the job has ended.
            tail: number of last lines of each pod; None: all.

        Raises:
            ClusterError: there is no such job, or the cluster refused the request.
        """
        self.get(name)  # a wrong name must not look like an empty log
        with self._doing(f"reading the logs of job {name} in namespace {self.namespace}"):
            yield from read_logs(
                self._server,
                self.namespace,
                name,
                role=role,
                follow=follow,
                tail=tail,
                ended=lambda: self.get(name).ended,
                pause=self._pause,
            )

    def state(self, name: str) -> StoredState | None:
        """Return the operator's state of a job: its full status, bill and processes. None: no state yet.

        Raises:
            ClusterError: the cluster refused, or this version cannot read the state.
        """
        with self._doing(f"reading HeterPSJobState {name} in namespace {self.namespace}"):
            found = self._server.get(job_state_path(self.namespace, name))
        if found is None:
            return None
        try:
            return StoredState.from_data(found.get("data") or {})
        except ValueError as error:
            text = f"job {name}: what the operator keeps of it cannot be read ({error}); is it of another version?"
            raise ClusterError("Unreadable", text) from error

    def plan(self, name: str) -> PlanView | None:
        """Return the current plan, or None."""
        known = self.plans(name)
        return known[-1] if known else None

    def plans(self, name: str) -> tuple[PlanView, ...]:
        """Return the plans of a job that are still stored, the oldest first."""
        with self._doing(f"reading the plans of job {name} in namespace {self.namespace}"):
            found, _ = self._server.list(config_maps_path(self.namespace), label_selector=f"{LABEL_JOB}={name}")
        plans = [plan for item in found if is_of_name(item, name) and (plan := _plan(item)) is not None]
        return tuple(sorted(plans, key=lambda plan: plan.revision))

    def problem(self, name: str) -> dict[str, Any]:
        """Return the current planning problem of a job, from its spec, its pools and its measured profiles.

        Spec and pools are those that the operator carries out, so users need no rights on DevicePools.

        Raises:
            ClusterError: there is no such job, the cluster refused, no operator has begun with it (NotBegun), or a
                profile is missing (NotProfiled).
        """
        job, memory = self.get(name), self.state(name)
        manifest = None if memory is None else memory.manifest(job.document)
        if memory is None or manifest is None:
            raise ClusterError("NotBegun", f"job {name}: no operator has begun with it")
        cache = ConfigMapProfileCache(self._server, self.namespace, pod_configuration(manifest))
        pools = [str(pool["metadata"]["name"]) for pool in manifest.pools]
        with self._doing(f"reading the profiles of job {name} in namespace {self.namespace}"):
            profiles = cache.load(pools)
        if missing := [pool for pool in pools if pool not in profiles]:
            raise ClusterError("NotProfiled", f"job {name}: there is no profile of pool {', '.join(missing)}")
        spec = JobSpec.from_manifests(manifest.job, manifest.pools)
        prices = {pool: Decimal(price) for pool, price in memory.status.prices.items()}  # that the operator has found
        return build_problem(as_chosen(spec.priced(prices), memory.status), profiles)

    def events(self, name: str) -> tuple[EventView, ...]:
        """Return the events of a job and its pods, the oldest first; clusters keep events for about an hour."""
        with self._doing(f"reading events in namespace {self.namespace}"):
            path = events_path(self.namespace)
            found, _ = self._server.list(
                path, field_selector=f"involvedObject.kind=HeterPSJob,involvedObject.name={name}"
            )
            pods = {pod["metadata"]["name"] for pod in self.pods(name)}
            if pods:
                others, _ = self._server.list(path, field_selector="involvedObject.kind=Pod,type=Warning")
                found = [*found, *(event for event in others if event["involvedObject"].get("name") in pods)]
        events = [EventView.from_json(event) for event in found]
        return tuple(sorted(events, key=lambda event: 0.0 if event.time is None else event.time.timestamp()))

    def processes(self, name: str) -> tuple[ProcessView, ...]:
        """Return the latest pod of each process of a job, as the operator reads pods."""
        latest: dict[str, ProcessView] = {}
        for pod in self.pods(name):
            try:
                view = observe.view(pod, time.time())
            except ValueError:
                continue  # another client has changed its annotation
            other = latest.get(view.name)
            if other is None or _age(view) > _age(other):
                latest[view.name] = view
        return tuple(latest.values())

    def pods(self, name: str) -> Sequence[Json]:
        """Return the pods of a job."""
        with self._doing(f"listing pods in namespace {self.namespace}"):
            found, _ = self._server.list(pods_path(self.namespace), label_selector=f"{LABEL_JOB}={name}")
        return [pod for pod in found if is_of_name(pod, name)]

    def patch(self, name: str, change: Json) -> JobView:
        """Change a job by a merge patch.

        Raises:
            ClusterError: there is no such job, or the cluster refused the request.
        """
        try:
            with self._doing(f"changing job {name} in namespace {self.namespace}"):
                return JobView.from_json(self._server.patch(job_path(self.namespace, name), change))
        except ClusterError as error:
            raise self._missing(name) if error.reason == "NotInstalled" else error from error

    def suspend(self, name: str) -> JobView:
        """Stop a job: it writes a checkpoint, then its pods end. `resume` continues it."""
        return self.patch(name, {"spec": {"runPolicy": {"suspend": True}}})

    def resume(self, name: str) -> JobView:
        """Resume a suspended job from its last checkpoint."""
        return self.patch(name, {"spec": {"runPolicy": {"suspend": False}}})

    def delete(self, name: str) -> None:
        """Delete a job with all its objects; its checkpoints remain.

        Raises:
            ClusterError: there is no such job, or the cluster refused the request.
        """
        self.get(name)
        with self._doing(f"deleting job {name} in namespace {self.namespace}"):
            self._server.delete(job_path(self.namespace, name))

    def _deliver(self, code: BroughtCode | None, dry_run: bool) -> tuple[Json | None, tuple[JobUpdate, ...]]:
        """Send code to where it is kept; return its ConfigMap, if it has one."""
        if code is None or code.packed is None:
            return None, ()
        if code.folder is None:
            item = config_map(code, self.namespace)
            update, _ = self._apply(item, dry_run)
            return item, (update,)
        verb = "not uploaded" if dry_run else "created" if upload(code) else "unchanged"
        return None, (JobUpdate("archive", code.spec["archive"]["uri"].partition("?")[0], verb),)

    def _apply(self, body: Json, dry_run: bool) -> tuple[JobUpdate, Json]:
        kind, name, path = body["kind"], body["metadata"]["name"], object_path(body)
        # Pools are cluster-scoped and belong to cluster administrators: a user's file only repeats them.
        spared = kind == "DevicePool"
        hidden, before = False, None
        with self._doing(f"submitting {kind} {name}"):
            try:
                before = self._server.get(path)
            except ApiError as error:
                if not spared or error.code != _FORBIDDEN:
                    raise
                hidden = True
            try:
                after = self._server.apply(path, body, _FIELD_MANAGER, True, dry_run=dry_run)
            except ApiError as error:
                if not spared or error.code != _FORBIDDEN or not (hidden or before):
                    raise
                return JobUpdate(kind, name, "unseen" if before is None else "kept"), before or body
        verb = "created" if before is None else "unchanged" if before.get("spec") == after.get("spec") else "changed"
        return JobUpdate(kind, name, verb), after

    def _missing(self, name: str) -> ClusterError:
        others = [job.name for job in self.jobs()]
        try:
            everywhere = self.jobs(all_namespaces=True)
            elsewhere = [job.namespace for job in everywhere if job.name == name and job.namespace != self.namespace]
        except ClusterError:
            elsewhere = []
        return no_such_job(name, self.namespace, others, elsewhere)

    @contextmanager
    def _doing(self, what: str) -> Iterator[None]:
        try:
            yield
        except ApiError as error:
            raise refusal(error, what) from error


def _age(view: ProcessView) -> tuple[int, int]:
    return view.spec.incarnation, view.spec.attempt


def _plan(config_map: Json) -> PlanView | None:
    """Return the plan in a ConfigMap, or None if it holds something else."""
    metadata, data = config_map["metadata"], config_map.get("data") or {}
    name, _, revision = str(metadata["name"]).rpartition("-plan-")
    if not name or not revision.isdecimal() or PLAN_FILE not in data:
        return None
    try:
        document = json.loads(data[PLAN_FILE])
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict):
        return None
    return PlanView(int(revision), read_time(metadata.get("creationTimestamp")), document)
