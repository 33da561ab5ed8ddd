"""The coordinator's HTTP interface, on 127.0.0.1, and its clock."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import zmq
from aiohttp.test_utils import TestClient, TestServer

from heterps_runtime.config import RunConfig
from heterps_runtime.contract import PATH_PLAN, PlanDocument, Role
from heterps_runtime.coordinator.membership.liveness import Liveness
from heterps_runtime.coordinator.server import CoordinatorServer
from heterps_runtime.errors import UserError
from heterps_runtime.wire.link import member_identity
from heterps_runtime.wire.messages import Join
from heterps_runtime.wire.security import LinkSecurity
from heterps_runtime.wire.transport import Connection
from tests.heterps_runtime.helpers.jobs import PATIENCE_SECONDS, TOKEN, ThreadedJob, configuration, plan_document


class Plans:
    """Records the plans that a coordinator takes, of a job that leaves no choice of the precision."""

    def __init__(self) -> None:
        self.taken: list[int] = []

    def choose_precision(self, precision: str | None) -> None:
        assert precision is None

    def set_plan(self, plan: PlanDocument) -> None:
        self.taken.append(plan.stages[0].pods)


def test_a_plan_of_an_older_revision_is_refused() -> None:
    server = object.__new__(CoordinatorServer)
    server._security, server._plan_revision = LinkSecurity("token", encrypted=False), 0
    server.core = server._files = plans = Plans()  # type: ignore[assignment]

    async def ask() -> list[int]:
        codes = []
        async with TestClient(TestServer(server._application())) as client:
            for revision, workers in ((None, 1), (3, 2), (2, 3), (3, 4), (4, 5)):
                body: dict[str, Any] = plan_document([("cpu", 4, workers)], 1)
                if revision is not None:
                    body["revision"] = revision
                headers = {"Authorization": "Bearer token"}
                async with client.put(PATH_PLAN, json=body, headers=headers) as response:
                    codes.append(response.status)
        return codes

    assert asyncio.run(ask()) == [200, 200, 409, 200, 200]
    assert plans.taken == [1, 2, 4, 5]


@pytest.mark.parametrize(
    ("field", "text"),
    [("revision", "Infinity"), ("pods", "1" + "0" * 30), ("pods", "[" * 10_000)],
)
def test_a_plan_with_impossible_values_is_refused(field: str, text: str) -> None:
    """A plan with a huge number of workers must not take the coordinator's memory."""
    server = object.__new__(CoordinatorServer)
    server._security, server._plan_revision = LinkSecurity("token", encrypted=False), 0
    server.core = plans = Plans()  # type: ignore[assignment]
    body = json.dumps({**plan_document([("cpu", 4, 7)], 1), "revision": 8})
    body = body.replace({"revision": '"revision": 8', "pods": '"pods": 7'}[field], f'"{field}": {text}')

    async def ask() -> int:
        async with TestClient(TestServer(server._application())) as client:
            response = await client.put(PATH_PLAN, data=body, headers={"Authorization": "Bearer token"})
            return response.status

    assert asyncio.run(ask()) == 400
    assert plans.taken == []


@pytest.mark.parametrize("taken", ["--port", "--metrics-port"])
def test_a_taken_port_is_named_and_the_other_one_is_free_again(taken: str, tmp_path: Path) -> None:
    config = RunConfig.from_json(configuration(tmp_path, "flights"))
    with socket.create_server(("127.0.0.1", 0)) as other, socket.create_server(("127.0.0.1", 0)) as free:
        port, free_port = other.getsockname()[1], free.getsockname()[1]
        free.close()
        ports = (port, free_port) if taken == "--port" else (free_port, port)
        server = CoordinatorServer(config, TOKEN, "127.0.0.1", ports[0], None, metrics_port=ports[1])
        with pytest.raises(UserError, match=f"{taken}: cannot listen on 127.0.0.1:{port}: Address already in use; "):
            asyncio.run(server.run())
        socket.create_server(("127.0.0.1", free_port)).close()


def test_what_the_coordinator_reads_and_writes_is_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the plan it takes the checkpoints over, which writes a file."""
    noted, note = threading.Event(), Liveness.note_work

    def noting(liveness: Liveness, name: str, amount: float) -> None:
        note(liveness, name, amount)
        if name == "coordinator" and amount > 0:
            noted.set()

    monkeypatch.setattr(Liveness, "note_work", noting)
    job = ThreadedJob(configuration(tmp_path / "job"))
    job.credentials.request("PUT", PATH_PLAN, plan_document([("cpu", 10, 1)], 1))
    assert noted.wait(PATIENCE_SECONDS)
    job.close()


def test_silence_is_not_measured_with_the_time_of_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of day may be set back, and would then make nobody silent."""
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    job = ThreadedJob(configuration(tmp_path / "job"), heartbeat_seconds=0.5)
    job.credentials.request("PUT", PATH_PLAN, plan_document([("cpu", 10, 1)], 1))
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    address, identity = job.credentials.control_address(), member_identity("ps-0", "1")
    connection = Connection(context, address, identity, job.credentials.security)
    connection.send(Join(Role.PS, 0, "cpu", "tcp://127.0.0.1:1", 0, lineage=0, version=-1))  # and no pulse
    status = job.wait(lambda status: any(e["reason"] == "MemberLost" for e in status["events"]))
    connection.close()
    context.term()
    job.close()
    assert [e["message"] for e in status["events"] if e["reason"] == "MemberLost"] == ["ps-0: no heartbeat for 0.5 s"]
