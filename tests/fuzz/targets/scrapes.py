"""Scrapes and probes, which anyone in the cluster may send: they need no token."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from prometheus_client import CollectorRegistry, Gauge

from heterps_operator.measure.metrics import _handler
from heterps_runtime.coordinator.figures import JobMetrics
from heterps_runtime.coordinator.server import CoordinatorServer
from heterps_runtime.wire.security import LinkSecurity
from tests.fuzz.target import Form, Target
from tests.heterps_runtime.helpers.coordinator_world import World

_REGISTRY = CollectorRegistry()
Gauge("heterps_jobs", "jobs", ["namespace"], registry=_REGISTRY).labels("ml").set(1)
_URL: Any = type(make_mocked_request("GET", "/").rel_url)  # making whole requests takes ten times as long
_HANDLER: Any = _handler(_REGISTRY, lambda: None)


class _Connection:
    """A connection on which a client has sent everything, and reads nothing."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.sent = b""

    def makefile(self, mode: str, size: int) -> io.BytesIO:
        return io.BytesIO(self._data)

    def settimeout(self, seconds: float) -> None:
        return None

    def sendall(self, data: bytes) -> None:
        self.sent += data


def _ask_operator(data: bytes) -> None:
    """Send bytes to the operator's metrics port."""
    connection = _Connection(data)
    _HANDLER(connection, ("127.0.0.1", 1), None)
    assert not connection.sent or connection.sent.startswith((b"HTTP/1.", b"<!DOCTYPE", b"# HELP", b"ok", b"there are"))


def _ask_coordinator(data: bytes) -> None:
    """Give the query of a scrape, and a header Authorization, to a coordinator without sockets."""
    query, _, authorization = data.partition(b"\n")
    headers = {"Authorization": authorization.decode("utf-8", "surrogateescape")}  # as aiohttp decodes it
    names = _URL.build(path="/metrics", query_string=query.decode("utf-8", "surrogateescape"), encoded=True).query
    request: Any = SimpleNamespace(path="/metrics", query=names, headers=headers)
    assert _finish(_SERVER._guard()(request, _SERVER._serve_metrics)).status == 200
    request = SimpleNamespace(path="/v1/endpoint", query=names, headers=headers)
    known = authorization == b"Bearer token"
    assert _finish(_SERVER._guard()(request, _SERVER._endpoint)).status == (200 if known else 401)


def _finish(answer: Any) -> web.Response:
    """Run a handler that waits for nothing to its end."""
    try:
        answer.send(None)
    except StopIteration as end:
        response: web.Response = end.value
        return response
    raise AssertionError("it waits")


def _coordinator() -> CoordinatorServer:
    world = World([("cpu", 1, 2), ("cpu", 2, 1)])
    server = CoordinatorServer.__new__(CoordinatorServer)
    server.core, server._connections = world.core, SimpleNamespace(port=1)  # type: ignore[assignment]
    server._security = LinkSecurity("token", encrypted=False)
    server._metrics = JobMetrics(world.core, world.config, lambda: 1000.0)
    return server


_SERVER = _coordinator()

TARGETS = [
    Target("scrapes.operator", _ask_operator, (),
           lambda: [b"GET /metrics?name[]=heterps_jobs HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
                    b"GET /healthz HTTP/1.0\r\n\r\n"], Form.TEXT, longest=4096),
    Target("scrapes.coordinator", _ask_coordinator, (),
           lambda: [b"name[]=heterps_training_loss\nBearer token", b"\nBasic x"], Form.TEXT, longest=2048),
]  # fmt: skip
