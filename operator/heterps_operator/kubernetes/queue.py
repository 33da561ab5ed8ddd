"""A job's place in a LocalQueue of Kueue: one Workload for each of its requests.

Kueue does not know HeterPSJobs. The operator makes the Workloads itself, as Kueue's own integrations do for their jobs,
and creates pods when they are admitted: docs/decisions/0032-quota.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from http import HTTPStatus

from heterps_operator.documents import Json
from heterps_operator.kubernetes.api import ApiError, KubernetesApi
from heterps_operator.kubernetes.building.pods import scheduling_policy
from heterps_operator.kubernetes.building.workloads import LABEL_PRIORITY, Priority, build_workload
from heterps_operator.kubernetes.names import (
    PRIORITY_CLASSES,
    is_owned,
    job_selector,
    label_selector,
    workload_path,
    workloads_path,
)
from heterps_operator.kubernetes.reading.problems import REFUSALS, name_taken, object_refused
from heterps_operator.kubernetes.reading.workloads import read_request, reclaimable_pods
from heterps_operator.state.values import QuotaRequest, ReclaimQuota, RequestQuota, ReturnQuota

__all__ = ["KueueQueue"]

_RETRY_SECONDS = 5.0  # after a Workload was refused
_PRIORITIES = (
    # Kueue's own class, by a label of the job, goes before the pods' class.
    ("kueue.x-k8s.io/workloadpriorityclass", "/apis/kueue.x-k8s.io/v1beta1/workloadpriorityclasses"),
    ("scheduling.k8s.io/priorityclass", PRIORITY_CLASSES),
)


class KueueQueue:
    """The requests of one job.

    Args:
        api: API server of the cluster.
        job: the HeterPSJob.
        pools: its DevicePools with defaults, by name.
        monotonic: seconds that setting the machine's time does not change.
    """

    def __init__(
        self,
        api: KubernetesApi,
        job: Json,
        pools: Mapping[str, Json],
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._job = job
        self._pools = pools
        self._monotonic = monotonic
        self._namespace, self._name = str(job["metadata"]["namespace"]), str(job["metadata"]["name"])
        self._found: dict[str, Json] = {}  # Workloads by request, as they were read last
        self._last: tuple[QuotaRequest, ...] = ()  # what they said
        self._refused: dict[str, tuple[float, QuotaRequest]] = {}  # with the time of the next attempt

    def requests(self) -> tuple[QuotaRequest, ...]:
        """Return the job's requests.

        Raises:
            ApiError: the API server does not answer.
        """
        try:
            items, _ = self._api.list(workloads_path(self._namespace), label_selector(job_selector(self._name)))
        except ApiError as error:
            if error.code not in (HTTPStatus.NOT_FOUND, HTTPStatus.FORBIDDEN):
                raise
            # Kueue was removed, or never installed. A job that runs is not stopped for it.
            return self._last or self._refusals()
        self._found = {}
        requests = []
        for item in items:
            if is_owned(item, self._job) and not item["metadata"].get("deletionTimestamp"):
                request = read_request(self._name, item)
                request = request if request.name else QuotaRequest(str(item["metadata"]["name"]))
                self._found[request.name] = item
                requests.append(request)
        for name in self._found:
            self._refused.pop(name, None)
        self._last = (*requests, *self._refusals())
        return self._last

    def carry_out(self, action: RequestQuota | ReclaimQuota | ReturnQuota) -> None:
        """Make, change or withdraw a request.

        Raises:
            ApiError: the API server does not answer.
        """
        match action:
            case RequestQuota():
                self._withdraw(action.name)
                self._make(action)
            case ReclaimQuota(name, processes):
                self._reclaim(name, processes)
            case ReturnQuota(name):
                self._withdraw(name)

    # --- inside -------------------------------------------------------------------------------------------------------

    def _refusals(self) -> tuple[QuotaRequest, ...]:
        """Return refused requests, until they may be made again."""
        now = self._monotonic()
        self._refused = {name: kept for name, kept in self._refused.items() if now < kept[0]}
        return tuple(request for _, request in self._refused.values())

    def _make(self, request: RequestQuota) -> None:
        names = frozenset(process.name for process in request.processes)
        try:
            workload = build_workload(self._job, self._pools, request, self._priority())
            self._api.create(workloads_path(self._namespace), workload, strict=True)
        except ApiError as error:
            what = f"Workload {self._name}-{request.name}"
            if error.code == HTTPStatus.CONFLICT:
                found = self._api.get(workload_path(self._namespace, self._name, request.name))
                if found is None or is_owned(found, self._job):
                    return  # its answer was lost, or it is deleted now
                message = name_taken(what, found).message
            elif error.code == HTTPStatus.NOT_FOUND:
                message = (
                    "the cluster has no Workloads of kueue.x-k8s.io/v1beta1: install Kueue, or set "
                    "spec.runPolicy.schedulingPolicy.gang to None"
                )
            elif error.code in REFUSALS:
                message = object_refused(what, error).message
            else:
                raise
            self._refused[request.name] = (
                self._monotonic() + _RETRY_SECONDS,
                QuotaRequest(request.name, names, message=message),
            )
        else:
            self._refused.pop(request.name, None)

    def _withdraw(self, name: str) -> None:
        self._refused.pop(name, None)
        found = self._found.pop(name, None)
        if found is not None:
            path = f"{workloads_path(self._namespace)}/{found['metadata']['name']}"
            self._api.delete(path, uid=str(found["metadata"]["uid"]))

    def _reclaim(self, name: str, processes: frozenset[str]) -> None:
        found = self._found.get(name)
        if found is None:
            return
        pods = reclaimable_pods(found, processes)
        if pods == ((found.get("status") or {}).get("reclaimablePods") or []):
            return
        path = f"{workload_path(self._namespace, self._name, name)}/status"
        version = str(found["metadata"]["resourceVersion"])
        try:
            self._api.patch(path, {"metadata": {"resourceVersion": version}, "status": {"reclaimablePods": pods}})
        except ApiError as error:
            if error.code not in (HTTPStatus.CONFLICT, HTTPStatus.NOT_FOUND):
                raise  # the next turn reads it again

    def _priority(self) -> Priority | None:
        """Return the job's priority; None without a class, or with one that does not exist.

        Raises:
            ApiError: the class cannot be read.
        """
        labels = self._job["metadata"].get("labels") or {}
        names = (labels.get(LABEL_PRIORITY), scheduling_policy(self._job).get("priorityClassName"))
        for name, (source, path) in zip(names, _PRIORITIES, strict=True):
            if name:
                found = self._api.get(f"{path}/{name}") or {}
                return Priority(str(name), source, int(found.get("value") or 0))
        return None
