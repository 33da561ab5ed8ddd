"""Answers of the API server, as commands and notebooks read them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from heterps_operator.api.schema import load_schemas
from heterps_operator.api.structure import Structure
from heterps_operator.client.api_errors import refusal
from heterps_operator.client.client import _plan
from heterps_operator.client.views import EventView, JobView
from heterps_operator.client.watching import watch_object
from heterps_operator.kubernetes.api import ApiError, KubernetesApi, _items, _refusal
from tests.fuzz.target import Form, Target
from tests.fuzz.targets.documents import NotJsonError, parse
from tests.heterps_operator.helpers import mutants

_FIXTURES = Path(__file__).parents[2] / "fixtures" / "v1" / "operator"


_STRUCTURE = Structure(load_schemas()["HeterPSJob"].openapi)
_TIME = "2026-01-01T00:00:00Z"
_EVENT: dict[str, Any] = {
    "metadata": {"name": "x", "creationTimestamp": _TIME}, "type": "Warning", "reason": "BackOff", "message": "x",
    "involvedObject": {"kind": "Pod", "name": "x"}, "regarding": {"kind": "Pod", "name": "x"}, "note": "x",
    "eventTime": "2026-01-01T00:00:00.000000Z", "lastTimestamp": _TIME, "deprecatedLastTimestamp": _TIME, "count": 2,
    "series": {"count": 2, "lastObservedTime": _TIME},
}  # fmt: skip


class _Server:
    """An API server that has an object, answers one watch with the input, and then has it no more."""

    def __init__(self, data: bytes) -> None:
        self._lines = data.split(b"\n")
        self._asked = False

    def list(self, path: str, **_: object) -> tuple[list[dict[str, Any]], str]:
        return [] if self._asked else [{"metadata": {"resourceVersion": "1"}}], "1"

    def lines(self, path: str, query: Mapping[str, str], read_seconds: float) -> Iterator[str]:
        if self._asked:
            raise ApiError(410, "Expired", "one watch is enough")
        self._asked = True
        for line in self._lines:
            yield line.decode("utf-8", "replace")


def _watch(data: bytes) -> None:
    """Follow an object through a watch of these lines."""
    server: Any = _Server(data)
    for found in watch_object(server, "/jobs", "job", lambda seconds: None):
        assert isinstance(found, dict)


def _read_refusal(data: bytes) -> None:
    """Read an error of an API server or a proxy, and word it for users."""
    for code in (403, 404, 500):
        refusal(_refusal("GET", "/api/v1/pods", code, data[:8].decode("latin-1"), data), "listing pods")


class _Answering(KubernetesApi):
    """The client of an API server that answers every request with the input."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def _request(self, *_: object, **__: object) -> bytes:
        return self._data


def _list(data: bytes) -> None:
    """List objects, one page; a server that answers with a next page for ever would be asked for ever."""
    api = _Answering(data)
    api.get("/api/v1/namespaces/ml/pods/x")
    for page, _ in itertools.islice(api._pages("/api/v1/pods", {}), 2):
        _items(page)


def _read_plan(data: bytes) -> None:
    """Read a ConfigMap with this plan."""
    text = data.decode("utf-8", "replace")
    found = _plan({"metadata": {"name": "job-plan-1"}, "data": {"plan.json": text}})
    assert found is None or isinstance(found.document, dict)


def _read_job(data: bytes) -> None:
    """Read a job whose status the API server has checked against the CRD, as it does with every write."""
    job = {**mutants.job(), "status": parse(data)}
    if any(path[:1] == ("status",) for path, *_ in _STRUCTURE.faults(job, {})):
        return
    view = JobView.from_json(job)
    assert isinstance(view.exit_code, int)


def _read_event(data: bytes) -> None:
    """Read an Event, whose fields have the types of the API."""
    event = _typed(parse(data), _EVENT)
    if event is not None:
        EventView.from_json(event)


def _typed(value: Any, like: Any) -> Any:
    """Return the parts of a value that have the types of an example; None if it is of another type itself."""
    if type(value) is not type(like):
        return None
    if not isinstance(value, dict):
        return value
    found = {key: _typed(inner, like[key]) for key, inner in value.items() if key in like}
    return {key: inner for key, inner in found.items() if inner is not None}


def _events() -> list[bytes]:
    job = {**mutants.job(), "kind": "HeterPSJob"}
    job["metadata"] = {**job["metadata"], "resourceVersion": "2"}
    gone = {"code": 410, "reason": "Expired", "message": "too old"}
    events = [("MODIFIED", job), ("BOOKMARK", {"metadata": {"resourceVersion": "3"}}), ("ERROR", gone)]
    return [b"\n".join(json.dumps({"type": kind, "object": item}).encode() for kind, item in events)]


def _statuses() -> list[bytes]:
    return [json.dumps(json.loads((_FIXTURES / "status.json").read_text())).encode()]


def _lists() -> list[bytes]:
    pods = {"apiVersion": "v1", "kind": "PodList", "metadata": {"resourceVersion": "7"}, "items": [mutants.pod()]}
    return [json.dumps(pods).encode()]


def _plans() -> list[bytes]:
    return [json.loads((_FIXTURES / "plan.json").read_text())["plan.json"].encode()]


TARGETS = [
    Target("client.watch", _watch, (ApiError,), _events, Form.TEXT),
    Target("client.refusal", _read_refusal, (), lambda: [b'{"reason": "Forbidden", "message": "no"}'], Form.JSON),
    Target("client.list", _list, (ApiError,), _lists, Form.JSON),
    Target("client.job", _read_job, (NotJsonError,), _statuses, Form.JSON, lines_per_byte=500.0),
    Target("client.event", _read_event, (NotJsonError,), lambda: [json.dumps(_EVENT).encode()], Form.JSON),
    Target("client.plan", _read_plan, (), _plans, Form.JSON),
]
