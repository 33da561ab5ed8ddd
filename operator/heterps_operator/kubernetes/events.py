"""Events on a HeterPSJob: what happened, for `kubectl describe`.

The same event again raises the count of the one that is there, so a job that repeats itself does not fill the
namespace. Events are a courtesy: one that cannot be written is dropped.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections import OrderedDict
from typing import Any

from heterps_operator.kubernetes.api import ApiError, KubernetesApi
from heterps_operator.kubernetes.names import events_path
from heterps_operator.kubernetes.status import timestamp
from heterps_operator.status import Event
from heterps_operator.values import Json
from heterps_runtime.contract import API_VERSION

__all__ = ["EventRecorder"]

_LONGEST_MESSAGE = 1024  # of the API
_REMEMBERED = 200  # events of one job
_CONFLICT, _NOT_FOUND = 409, 404


class EventRecorder:
    """Writes the events of one job.

    Args:
        api: of the cluster.
        job: the HeterPSJob.
        component: who reports.
    """

    def __init__(self, api: KubernetesApi, job: Json, component: str = "heterps-operator") -> None:
        self._api = api
        self._job = job
        self._component = component
        self._counts: OrderedDict[str, int] = OrderedDict()

    def record(self, event: Event) -> None:
        """Write an event, or count it."""
        metadata = self._job["metadata"]
        namespace = str(metadata["namespace"])
        name = self._name(event)
        count = self._counts.get(name, 0) + 1
        self._counts[name] = count
        self._counts.move_to_end(name)
        while len(self._counts) > _REMEMBERED:
            self._counts.popitem(last=False)
        when = timestamp(event.time)
        with contextlib.suppress(ApiError):
            if count > 1:
                try:
                    self._api.patch(f"{events_path(namespace)}/{name}", {"count": count, "lastTimestamp": when})
                except ApiError as error:
                    if error.code != _NOT_FOUND:  # it expired: write it anew
                        raise
                else:
                    return
            self._create(namespace, name, event, when, count)

    def _create(self, namespace: str, name: str, event: Event, when: str | None, count: int) -> None:
        metadata = self._job["metadata"]
        body: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": {
                "apiVersion": API_VERSION,
                "kind": "HeterPSJob",
                "name": metadata["name"],
                "namespace": namespace,
                "uid": metadata["uid"],
            },
            "type": event.type,
            "reason": event.reason,
            "message": event.message[:_LONGEST_MESSAGE],
            "count": count,
            "firstTimestamp": when,
            "lastTimestamp": when,
            "source": {"component": self._component},
            "reportingComponent": self._component,
            "reportingInstance": self._component,
        }
        try:
            self._api.create(events_path(namespace), body)
        except ApiError as error:
            if error.code != _CONFLICT:  # an earlier operator has written it
                raise
            self._api.patch(f"{events_path(namespace)}/{name}", {"lastTimestamp": when})

    def _name(self, event: Event) -> str:
        """The same name for the same event of the same job."""
        metadata = self._job["metadata"]
        text = "\n".join((str(metadata["uid"]), event.type, event.reason, event.message))
        return f"{metadata['name']}.{hashlib.sha256(text.encode()).hexdigest()[:16]}"
