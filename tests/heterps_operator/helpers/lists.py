"""The lists of an API server, and the events that an operator writes."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

Json = dict[str, Any]

JOBS, PODS = "/apis/heterps.io/v1alpha1/heterpsjobs", "/api/v1/pods"
POOLS, NODES = "/apis/heterps.io/v1alpha1/devicepools", "/api/v1/nodes"
SECONDS = 30  # limit of waiting for another thread, which normally takes no time


class Lists:
    """The API server's lists; `meanwhile` runs between the creation of a list and its processing."""

    def __init__(self) -> None:
        self.items: dict[str, list[Json]] = {}
        self.meanwhile: dict[str, Any] = {}

    def each(self, path: str, label_selector: str = "") -> Iterator[Json]:
        found = list(self.items.get(path, ()))
        if path in self.meanwhile:
            self.meanwhile[path]()
        yield from found


class Server(Lists):
    """Lists, and recorded writes."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Json] = []
        self.written = threading.Condition()

    def create(self, path: str, body: Json) -> Json:
        assert path.endswith(f"/namespaces/{body['metadata']['namespace']}/events")
        json.dumps(body)  # as it is sent
        with self.written:
            self.events.append(body)
            self.written.notify_all()
        return body

    def apply(self, path: str, body: Json, field_manager: str = "") -> Json:
        return body

    def told(self, name: str) -> list[Json]:
        """Events about an object of that name."""
        with self.written:
            return [event for event in self.events if event["involvedObject"]["name"] == name]

    def wait_for(self, name: str) -> Json:
        """Wait for the first event about an object of that name."""
        with self.written:
            assert self.written.wait_for(lambda: self.told(name), SECONDS), f"nothing is told of {name}"
        return self.told(name)[0]
