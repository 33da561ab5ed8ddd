"""Events about unreadable objects: content, frequency, and memory use."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest

from heterps_operator.controller import recorder as recorder_module
from heterps_operator.controller.recorder import ProblemRecorder
from heterps_operator.kubernetes.api import ApiError, KubernetesApi
from heterps_operator.kubernetes.reading.complaints import Complaint
from heterps_operator.kubernetes.reading.readable import POD
from tests.heterps_operator.helpers.documents import NOW, stranger
from tests.heterps_operator.helpers.lists import Server

Json = dict[str, Any]


@pytest.fixture
def server() -> Server:
    return Server()


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


def drain(recorder: ProblemRecorder) -> None:
    """Write everything that waits, in this thread."""
    recorder.close()
    recorder.run(threading.Event())


def test_each_object_is_told_once_an_hour_and_what_is_remembered_is_bounded(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder_module, "_REMEMBERED", 10)
    clock = Clock()
    recorder = ProblemRecorder(cast("KubernetesApi", server), clock, 0.0)
    first, second = Complaint("Unreadable", "this"), Complaint("Unreadable", "that")
    for _ in range(3):
        for name in ("a", "b"):
            recorder.tell(POD, stranger(name, None), first)
    recorder.tell(POD, stranger("a", None, uid="another"), first)
    recorder.tell(POD, stranger("a", None), second)
    drain(recorder)
    assert [(e["involvedObject"]["uid"], e["message"]) for e in server.events] == [
        ("a", "this"), ("b", "this"), ("another", "this"), ("a", "that"),
    ]  # fmt: skip
    clock.now += 3601
    recorder.tell(POD, stranger("b", None), first)
    drain(recorder)
    assert len(server.told("b")) == 2
    for number in range(100):
        recorder.tell(POD, stranger(f"s{number}", None), first)
    assert len(recorder._told) == 10


def test_more_than_can_be_told_is_dropped_and_told_when_it_is_seen_again(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder_module, "_WAITING", 3)
    recorder = ProblemRecorder(cast("KubernetesApi", server), Clock(), 0.0)
    for number in range(10):
        recorder.tell(POD, stranger(f"s{number}", None), Complaint("Ignored", "x"))
    stop = threading.Event()
    stop.set()
    recorder.close()  # the queue is full
    recorder.run(stop)
    assert server.events == []
    recorder = ProblemRecorder(cast("KubernetesApi", server), Clock(), 0.0)
    for _ in range(2):
        for number in range(2):
            recorder.tell(POD, stranger(f"s{number}", None), Complaint("Ignored", "x"))
        drain(recorder)
    assert len(server.events) == 2


@pytest.mark.parametrize("error", [ApiError(403, "Forbidden", "events is forbidden"), KeyError("metadata")])
def test_an_event_that_cannot_be_written_does_not_keep_the_next_one(
    server: Server, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = server.create

    def refuse(path: str, body: Json) -> Json:
        if body["involvedObject"]["name"] == "a":
            raise error
        return write(path, body)

    monkeypatch.setattr(server, "create", refuse)
    recorder = ProblemRecorder(cast("KubernetesApi", server), Clock(), 0.0)
    for name in ("a", "b"):
        recorder.tell(POD, stranger(name, None), Complaint("Ignored", "x"))
    drain(recorder)
    assert [event["involvedObject"]["name"] for event in server.events] == ["b"]


@pytest.mark.parametrize(
    "item",
    [
        None,
        [],
        {},
        {"metadata": 1},
        {"metadata": {"name": 7}},
        {"metadata": {"name": ""}},
        {"metadata": {"name": "\ud800"}},
    ],
)
def test_an_object_without_a_name_is_only_logged(server: Server, item: Any, caplog: pytest.LogCaptureFixture) -> None:
    recorder = ProblemRecorder(cast("KubernetesApi", server), Clock(), 0.0)
    recorder.tell(POD, item, Complaint("Unreadable", "this"))
    drain(recorder)
    assert server.events == []
    assert [record.getMessage() for record in caplog.records] == ["Pod without a name: this"]


def test_a_long_name_leaves_room_for_the_event_s_own(server: Server) -> None:
    recorder = ProblemRecorder(cast("KubernetesApi", server), Clock(), 0.0)
    recorder.tell(POD, stranger("x" * 199 + "." + "y" * 53, None), Complaint("Unreadable", "z" * 5000))
    drain(recorder)
    [event] = server.events
    assert len(event["metadata"]["name"]) <= 253
    assert event["metadata"]["name"].startswith("x" * 199 + ".")
    assert ".." not in event["metadata"]["name"]
    assert len(event["message"]) == 1024
