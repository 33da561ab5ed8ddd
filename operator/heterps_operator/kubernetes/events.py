"""Events on objects, mostly on a HeterPSJob, for `kubectl describe`.

A repeated event increases the count of the existing one, so a job cannot flood its namespace. Events are best-effort:
one that cannot be written is dropped.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from heterps_operator.addresses import redacted
from heterps_operator.kubernetes.api import ApiError, KubernetesApi
from heterps_operator.kubernetes.names import events_path
from heterps_operator.kubernetes.reading.readable import API_VERSIONS
from heterps_operator.kubernetes.status import timestamp
from heterps_operator.state.status import Event

__all__ = ["EventRecorder", "reference_to"]

_LONGEST_MESSAGE = 1024  # limit of the API
_REMEMBERED = 200  # events of one object
_LONGEST_HEAD = 200  # characters of an object's name in the names of its events
_OF_THE_CLUSTER = "default"  # namespace of events about cluster-scoped objects


def reference_to(kind: str, item: Any) -> dict[str, Any]:
    """Return the reference of an object in events; unreadable fields of a malformed object are left out.

    Args:
        kind: kind of the object.
        item: the object.
    """
    metadata = item.get("metadata") if isinstance(item, Mapping) else None
    known = metadata if isinstance(metadata, Mapping) else {}
    found = {key: known.get(key) for key in ("name", "namespace", "uid")}
    texts = {key: value for key, value in found.items() if isinstance(value, str) and value and value.isprintable()}
    return {"apiVersion": API_VERSIONS[kind], "kind": kind, **texts}


class EventRecorder:
    """Writes the events of one object.

    Args:
        api: API server of the cluster.
        about: the object (`reference_to`), with its name.
        component: reporting component.
    """

    def __init__(self, api: KubernetesApi, about: dict[str, Any], component: str = "heterps-operator") -> None:
        self._api = api
        self._about = about
        self._component = component
        self._counts: OrderedDict[str, int] = OrderedDict()

    def record(self, event: Event) -> None:
        """Write an event, or increase its count."""
        namespace = str(self._about.get("namespace", _OF_THE_CLUSTER))
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
                    if error.code != HTTPStatus.NOT_FOUND:  # it expired: create it again
                        raise
                else:
                    return
            self._create(namespace, name, event, when, count)

    def _create(self, namespace: str, name: str, event: Event, when: str | None, count: int) -> None:
        body: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": self._about,
            "type": event.type,
            "reason": event.reason,
            "message": redacted(event.message)[:_LONGEST_MESSAGE],
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
            if error.code != HTTPStatus.CONFLICT:  # an earlier operator created it
                raise
            self._api.patch(f"{events_path(namespace)}/{name}", {"lastTimestamp": when})

    def _name(self, event: Event) -> str:
        """Return a name that is the same for the same event of the same object."""
        text = "\n".join((str(self._about.get("uid")), event.type, event.reason, event.message))
        head = str(self._about["name"])[:_LONGEST_HEAD].rstrip("-.")
        return f"{head}.{hashlib.sha256(text.encode()).hexdigest()[:16]}"
