"""The controller's state of a job, which survives restarts: a HeterPSJobState with one writer at a time.

Users cannot write HeterPSJobStates, so an operator reads back what an operator has written (decision 28). The state is
written before any action, with the resourceVersion that was read: the first write of a second controller, started by
mistake, is refused, and that controller stops. The HeterPSJob's status is only a summary.

A state has two forms with the same documents: plain, and packed if it would be too large (decision 36).
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, fields
from http import HTTPStatus
from typing import Any

from heterps_operator.api.manifest import Manifest, read_objects
from heterps_operator.api.shapes import number
from heterps_operator.documents import Json, known_fields
from heterps_operator.errors import ManifestError
from heterps_operator.kubernetes.api import ApiError, KubernetesApi
from heterps_operator.kubernetes.names import (
    is_owned,
    job_labels,
    job_state_path,
    job_states_path,
    owner_reference,
)
from heterps_operator.kubernetes.packing import pack, unpack
from heterps_operator.kubernetes.reading.processes import process_from
from heterps_operator.kubernetes.reading.typed import check_types
from heterps_operator.state.bill import Bill
from heterps_operator.state.status import Status
from heterps_operator.state.values import ProcessSpec, ProcessView
from heterps_runtime.contract import API_VERSION

__all__ = ["JobState", "NewerStateError", "NotOwnedError", "StateTaken", "StoredState"]

# They go up with a change that earlier operators would misread (docs/compatibility.md).
_VERSION = 2
_PLAIN = 1  # of a state whose documents are separate
_PACKED = "packed"
# About 700 processes. Below, operators of version 1 read what this one writes, so that a release can be rolled back;
# above, they could not have stored it.
_MOST_PLAIN_BYTES = 512 << 10
_PROCESS_FIELDS = tuple(field.name for field in fields(ProcessView))
_SPEC_FIELDS = tuple(field.name for field in fields(ProcessSpec))
_OBSERVED_AGAIN = frozenset({"problem", "leaves"})


_IS_VERSION = number(1, 2**31 - 1)


class StateTaken(Exception):  # noqa: N818  # not an error: another controller has the job
    """Another controller has written the job's state since it was read here."""


class NotOwnedError(Exception):
    """The state's name is taken by another owner's object, or by an earlier job's."""

    def __init__(self, found: Json) -> None:
        super().__init__(str(found["metadata"]["name"]))
        self.found = found


class NewerStateError(ValueError):
    """A later version of the operator has written the state, in a form that this one does not know."""

    def __init__(self, found: int) -> None:
        super().__init__(f"the state has version {found}, this operator knows version {_VERSION}")


@dataclass(frozen=True)
class StoredState:
    """The stored state of a job."""

    status: Status
    bill: Bill
    processes: tuple[ProcessView, ...] = ()  # started, and not yet recorded as ended and gone
    plans: tuple[int, ...] = ()  # revisions with a ConfigMap, the oldest first
    spec: Json | None = None  # carried out, for detecting changes
    pools: tuple[Json, ...] = ()  # DevicePools that the spec is carried out with, in its order

    def to_data(self) -> dict[str, str]:
        """Return the `data` of a HeterPSJobState: one JSON document per key, or all of them packed."""
        controller = {"version": _PLAIN, "plans": list(self.plans), "spec": self.spec, "pools": list(self.pools)}
        documents = {
            "status.json": _text(self.status.to_json()),
            "bill.json": _text(self.bill.to_json()),
            "processes.json": _text([_process_document(process) for process in self.processes]),
            "controller.json": _text(controller),
        }
        if sum(map(len, documents.values())) <= _MOST_PLAIN_BYTES:
            return documents
        documents["controller.json"] = _text({**controller, "version": _VERSION})
        return {"controller.json": _text({"version": _VERSION}), _PACKED: pack(documents)}

    def manifest(self, job: Json) -> Manifest | None:
        """Return the manifest that is carried out; None if there is none yet, or this version refuses it.

        Args:
            job: the HeterPSJob, whose spec may have changed since.
        """
        if self.spec is None:
            return None
        try:
            return read_objects({**job, "spec": self.spec}, [dict(pool) for pool in self.pools])
        except (AttributeError, KeyError, TypeError, ManifestError):  # of another version
            return None

    @classmethod
    def from_data(cls, data: dict[str, str]) -> StoredState:
        """Parse the result of `to_data` of this version, or of another one with the same version of the state.

        Raises:
            NewerStateError: a later version wrote it.
            ValueError: a document is missing or malformed.
        """
        try:
            controller = _controller(data)
            if controller.get("version", _PLAIN) > _PLAIN:
                data = unpack(data[_PACKED])
                controller = _controller(data)
            memory = cls(
                Status.from_json(_parsed(data["status.json"])),
                Bill.from_json(_parsed(data["bill.json"])),
                tuple(_process(item) for item in _parsed(data["processes.json"])),
                tuple(int(number) for number in controller["plans"]),
                controller.get("spec"),
                tuple(controller.get("pools") or ()),
            )
        except (KeyError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
            raise ValueError(f"state: missing or malformed {error}") from error
        check_types(memory, cls, "state")
        return memory


class JobState:
    """Reads and writes the stored state of one job.

    Args:
        api: API server of the cluster.
        job: the HeterPSJob; it owns the HeterPSJobState.
    """

    def __init__(self, api: KubernetesApi, job: Json) -> None:
        metadata = job["metadata"]
        self._api = api
        self._namespace = str(metadata["namespace"])
        self._name = str(metadata["name"])
        self._job = job
        self._head: dict[str, Any] = {
            "name": self._name,
            "namespace": self._namespace,
            "labels": job_labels(self._name),
            "ownerReferences": [owner_reference(job)],
        }
        self._version = ""

    def load(self) -> StoredState | None:
        """Return the stored state; None if there is none.

        Raises:
            ApiError: the API server does not answer.
            NewerStateError: a later version of the operator wrote it.
            NotOwnedError: the object is not this job's.
            ValueError: the state is damaged.
        """
        found = self._api.get(job_state_path(self._namespace, self._name))
        if found is None:
            self._version = ""
            return None
        if not is_owned(found, self._job):
            raise NotOwnedError(found)
        self._version = str(found["metadata"]["resourceVersion"])
        return StoredState.from_data(dict(found.get("data") or {}))

    def save(self, memory: StoredState) -> None:
        """Store the state.

        Raises:
            StateTaken: another controller has written in the meantime.
            ApiError: the API server does not answer; then no action may follow.
        """
        head = dict(self._head)
        if self._version:
            head["resourceVersion"] = self._version
        body = {"apiVersion": API_VERSION, "kind": "HeterPSJobState", "metadata": head, "data": memory.to_data()}
        try:
            if self._version:
                written = self._api.replace(job_state_path(self._namespace, self._name), body)
            else:
                written = self._api.create(job_states_path(self._namespace), body)
        except ApiError as error:
            if error.code == HTTPStatus.CONFLICT:
                raise StateTaken(f"{self._namespace}/{self._name} was written by another controller") from error
            raise
        self._version = str(written["metadata"]["resourceVersion"])


def _controller(data: dict[str, str]) -> dict[str, Any]:
    """Return the document that says how to read the others.

    Raises:
        NewerStateError: a later version wrote it.
        UnreadableError: its version is malformed.
    """
    controller: dict[str, Any] = _parsed(data["controller.json"])
    version = controller.get("version", _PLAIN)
    _IS_VERSION(version, "state.version")
    if version > _VERSION:
        raise NewerStateError(version)
    return controller


def _process_document(view: ProcessView) -> dict[str, Any]:
    """Return a process as JSON; `dataclasses.asdict` takes ten times as long, and there are thousands."""
    document = {name: None if name in _OBSERVED_AGAIN else getattr(view, name) for name in _PROCESS_FIELDS}
    return {**document, "spec": {name: getattr(view.spec, name) for name in _SPEC_FIELDS}}


def _process(item: dict[str, Any]) -> ProcessView:
    given = {name: value for name, value in item.items() if name not in _OBSERVED_AGAIN}
    spec = dict(given.pop("spec"))
    given["last_lines"] = tuple(given.get("last_lines") or ())
    return ProcessView(process_from(spec), **known_fields(ProcessView, given))


def _parsed(text: str) -> Any:
    """Parse JSON. Python's parser takes NaN and Infinity, which JSON does not have, and makes 1e999 infinite."""
    return json.loads(text, parse_float=_finite, parse_constant=_finite)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"state: a number must be finite, is {text}")
    return value


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
