"""Requests to a coordinator's HTTP interface with the job's token, and messages of its members."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aiohttp import web

from heterps_runtime.coordinator.files import JobFiles
from heterps_runtime.coordinator.server import CoordinatorServer
from heterps_runtime.wire.security import LinkSecurity
from tests.fuzz.target import Form, Target
from tests.fuzz.targets.conversation import WORLDS, play, regular
from tests.fuzz.targets.documents import NotJsonError, parse
from tests.heterps_runtime.helpers.coordinator_world import World

_PLAN = Path(__file__).parents[2] / "fixtures" / "v1" / "operator" / "plan.json"
_TOKEN = "token"


class _Request:
    """A request with the right token."""

    path = "/v1"

    def __init__(self, data: bytes) -> None:
        self.headers = {"Authorization": f"Bearer {_TOKEN}"}
        self.match_info = {"pool": "cpu"}
        self._data = data

    async def json(self) -> Any:
        return json.loads(self._data.decode())


def _handler(name: str) -> Callable[[bytes], None]:
    """Give the body of a request to a handler of a coordinator without sockets, through its guard."""

    def handle(data: bytes) -> None:
        world = World([("cpu", 1, 2), ("cpu", 2, 1)])
        server = CoordinatorServer.__new__(CoordinatorServer)
        server.core, server._config = world.core, world.config
        server._files = JobFiles.__new__(JobFiles)
        server._files._config = world.config
        server._security, server._plan_revision = LinkSecurity(_TOKEN, encrypted=False), 0
        request: Any = _Request(data)
        answer = server._guard()(request, getattr(server, name))
        try:
            answer.send(None)  # no handler waits for anything
        except StopIteration as end:
            response: web.Response = end.value
            assert response.status in (200, 400, 409)
            json.loads(response.text or "")

    return handle


def _hear(data: bytes) -> None:
    play(parse(data))


def _conversations() -> list[bytes]:
    return [json.dumps(regular(number)).encode() for number in range(len(WORLDS))]


def _plan() -> list[bytes]:
    document = json.loads(json.loads(_PLAN.read_text())["plan.json"])
    for stage in document["stages"]:
        stage["pool"] = "cpu"
    document["stages"][0] |= {"firstLayer": 0, "lastLayer": 1}
    document["stages"][1] |= {"firstLayer": 2, "lastLayer": 2}
    return [json.dumps({**document, "revision": 1}).encode()]


TARGETS = [
    Target("coordinator.plan", _handler("_put_plan"), (), _plan, Form.JSON),
    Target(
        "coordinator.allocation", _handler("_put_allocation"), (), lambda: [b'{"stages": [[16, 16], [32]]}'], Form.JSON
    ),
    Target("coordinator.profile", _handler("_put_profile"), (), lambda: [b'{"version": 1}'], Form.JSON),
    Target(
        "coordinator.lost",
        _handler("_post_lost"),
        (),
        lambda: [b'{"member": "worker-0-0", "reason": "NodeLost"}'],
        Form.JSON,
    ),
    Target(
        "coordinator.fail", _handler("_post_fail"), (), lambda: [b'{"reason": "Hang", "message": "no step"}'], Form.JSON
    ),
    Target("coordinator.message", _hear, (NotJsonError,), _conversations, Form.JSON, lines_per_byte=200.0),
]
