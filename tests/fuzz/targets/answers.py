"""Answers of coordinators, which run images of users, and of Prometheus servers."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

from heterps_operator.api.shapes import UnreadableError
from heterps_operator.loop.coordinator_answers import read_profiles, read_status
from heterps_operator.loop.coordinator_client import CoordinatorClient, CoordinatorError
from heterps_operator.measure import http_requests, measurement
from heterps_operator.measure.http_requests import HttpConnection, HttpResponse, NoResponseError, send_request
from heterps_operator.measure.measurement import MeasurementError, PrometheusServer
from tests.fuzz.target import Form, Target
from tests.fuzz.targets.doubles import replaced

_FIXTURES = Path(__file__).parents[2] / "fixtures" / "v1"
_STATUS: dict[str, Any] = {
    "phase": "Training", "message": "m", "generation": 2, "committedSteps": 7, "totalSteps": 9, "loss": 0.5,
    "members": [{"name": "worker-0-0", "role": "worker", "state": "ready", "stage": 0, "index": 0, "pool": "cpu",
                 "batchSize": 8, "stepSeconds": 0.1, "computeSeconds": 0.1, "silentSeconds": 0.0,
                 "totals": {"memory": 5e8, "operations": 3e4, "round-trip": 0.004}}],
    "stages": [{"name": "s", "pool": "cpu", "workers": 1, "samplesPerSecond": 10.0, "busyFraction": 0.5}],
    "events": [{"time": 1.0, "type": "Normal", "reason": "Started", "message": "x"}],
    "checkpoint": {"lastStep": 1, "lastTime": 2.0, "path": "/c", "failures": 0},
    "evaluation": {"auc": 0.7}, "error": {"reason": "NaNLoss", "message": "x"},
}  # fmt: skip
_METRICS = """\
heterps_training_measured_timestamp_seconds 1.7e+09
heterps_training_generation 2.0
heterps_training_samples_per_second 1234.5
heterps_stage_samples_per_second{stage="0",pool="cpu"} 12.0
heterps_worker_batch_size{stage="0",pool="cpu",worker="0"} 16.0
heterps_worker_step_seconds{stage="0",pool="cpu",worker="0",activity="compute"} 0.1
"""
_CLIENT = CoordinatorClient("http://127.0.0.1:1", "token")
_AT_SERVER = PrometheusServer("http://127.0.0.1:1").of("ml", "job")


def _ask(data: bytes) -> dict[str, Any]:
    """Ask a coordinator whose answer has this body."""
    response = HttpResponse(200, "OK", data.decode("utf-8", "replace"))
    with replaced(HttpConnection, "send", lambda *_, **__: response):
        return _CLIENT.status()


def _read_status(data: bytes) -> None:
    read_status(_ask(data))


def _read_profiles(data: bytes) -> None:
    read_profiles(_ask(data))


class _Connection:
    """A connected socket on which the server has sent a response and closed."""

    def __init__(self, data: bytes) -> None:
        self._stream = io.BytesIO(data)

    def close(self) -> None:
        return None

    def settimeout(self, seconds: float) -> None:
        return None

    def sendall(self, data: bytes) -> None:
        return None

    def recv_into(self, buffer: Any) -> int:
        return self._stream.readinto(buffer)


def _read_response(data: bytes) -> None:
    with replaced(http_requests, "_connect", lambda *_: _Connection(data)):
        send_request("GET", "http://127.0.0.1/", headers={}, timeout=60.0, most_bytes=1 << 20)


def _query(data: bytes) -> None:
    """Query a Prometheus server whose answer has this body."""
    response = HttpResponse(200, "OK", data.decode("utf-8", "replace"))
    with replaced(measurement, "send_request", lambda *_, **__: response):
        _AT_SERVER.read()


def _read_address(data: bytes) -> None:
    """Read the address that a coordinator has, according to its pod."""
    CoordinatorClient(data.decode("utf-8", "replace"), "token")


def _series() -> list[bytes]:
    """Return the series of `_METRICS` as a query answers with them."""
    found = []
    for line in _METRICS.splitlines():
        name, _, value = line.rpartition(" ")
        name, _, labels = name.rstrip("}").partition("{")
        pairs = (label.split("=") for label in labels.split(",") if label)
        metric = {"__name__": name, "instance": "a", "pod": "p", **{key: text.strip('"') for key, text in pairs}}
        found.append({"metric": metric, "value": [1.7e9, value]})
    return [json.dumps({"status": "success", "data": {"resultType": "vector", "result": found}}).encode()]


def _profiles() -> list[bytes]:
    stored = json.loads((_FIXTURES / "operator" / "profile.json").read_text())
    return [json.dumps({"cpu": json.loads(stored["profile.json"])}).encode()]


TARGETS = [
    Target(
        "answers.status",
        _read_status,
        (UnreadableError, CoordinatorError),
        lambda: [json.dumps(_STATUS).encode()],
        Form.JSON,
    ),
    Target("answers.profiles", _read_profiles, (UnreadableError, CoordinatorError), _profiles, Form.JSON),
    Target("answers.query", _query, (MeasurementError,), _series, Form.JSON),
    Target(
        "answers.address",
        _read_address,
        (ValueError,),
        lambda: [b"http://10.0.0.1:8080", b"https://[fd00::1]:8080"],
        Form.TEXT,
        longest=512,
    ),
    Target(
        "answers.response",
        _read_response,
        (NoResponseError,),
        lambda: [
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 503 Unavailable\r\nConnection: close\r\n\r\nbusy",
        ],
        Form.TEXT,
    ),
]
