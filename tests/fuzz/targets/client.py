"""Answers of the API server, as commands and notebooks read them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from heterps_operator.client.client import _plan
from heterps_operator.client.views import JobView
from heterps_operator.client.watching import watch_object
from heterps_operator.kubernetes.api import ApiError, _refusal
from tests.fuzz.target import Form, Target
from tests.heterps_operator.helpers import mutants

_FIXTURES = Path(__file__).parents[2] / "fixtures" / "v1" / "operator"


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
    _refusal("GET", "/api/v1/pods", 403, data[:8].decode("utf-8", "replace"), data)


def _read_plan(data: bytes) -> None:
    """Read a ConfigMap with this plan."""
    text = data.decode("utf-8", "replace")
    found = _plan({"metadata": {"name": "job-plan-1"}, "data": {"plan.json": text}})
    assert found is None or isinstance(found.document, dict)


def _read_job(data: bytes) -> None:
    """Read a job whose status the API server has checked only for its types."""
    JobView.from_json({**mutants.job(), "status": json.loads(data)})


def _events() -> list[bytes]:
    job = {**mutants.job(), "kind": "HeterPSJob"}
    job["metadata"] = {**job["metadata"], "resourceVersion": "2"}
    gone = {"code": 410, "reason": "Expired", "message": "too old"}
    events = [("MODIFIED", job), ("BOOKMARK", {"metadata": {"resourceVersion": "3"}}), ("ERROR", gone)]
    return [b"\n".join(json.dumps({"type": kind, "object": item}).encode() for kind, item in events)]


def _plans() -> list[bytes]:
    return [json.loads((_FIXTURES / "plan.json").read_text())["plan.json"].encode()]


TARGETS = [
    Target("client.watch", _watch, (ApiError,), _events, Form.TEXT),
    Target("client.refusal", _read_refusal, (), lambda: [b'{"reason": "Forbidden", "message": "no"}'], Form.JSON),
    Target("client.plan", _read_plan, (), _plans, Form.JSON),
]
