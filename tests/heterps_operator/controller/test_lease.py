"""Leader election: one operator at a time."""

from __future__ import annotations

import copy
import threading
import time
from typing import Any

import pytest

from heterps_operator.controller.lease import Lease
from heterps_operator.kubernetes.api import ApiError

Json = dict[str, Any]


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Leases:
    """The one Lease of an API server, with its versions."""

    def __init__(self) -> None:
        self.item: Json | None = None
        self.version = 0
        self.away = False
        self.stalled: threading.Event | None = None  # requests wait for it

    def get(self, path: str) -> Json | None:
        self._answer()
        assert path.endswith("/leases/operator")
        return copy.deepcopy(self.item)

    def create(self, path: str, body: Json) -> Json:
        self._answer()
        if self.item is not None:
            raise ApiError(409, "AlreadyExists", "it is there")
        return self._store(body)

    def replace(self, path: str, body: Json) -> Json:
        self._answer()
        assert self.item is not None
        if body["metadata"].get("resourceVersion") != self.item["metadata"]["resourceVersion"]:
            raise ApiError(409, "Conflict", "changed meanwhile")
        return self._store(body)

    def _store(self, body: Json) -> Json:
        self.version += 1
        item = copy.deepcopy(body)
        item["metadata"]["resourceVersion"] = str(self.version)
        self.item = item
        return copy.deepcopy(item)

    def _answer(self) -> None:
        if self.away:
            raise ApiError(0, "Unreachable", "no answer")
        if self.stalled is not None:
            self.stalled.wait()


def lease(server: Leases, who: str, clock: Clock) -> Lease:
    return Lease(server, "system", "operator", who, seconds=15.0, clock=clock)  # type: ignore[arg-type]


def test_the_first_one_gets_it_and_keeps_it() -> None:
    server, clock = Leases(), Clock()
    first, second = lease(server, "first", clock), lease(server, "second", clock)
    assert first.try_once()
    for _ in range(20):
        clock.now += 3
        assert first.try_once()
        assert not second.try_once()


def test_the_second_one_takes_over_when_the_first_has_not_renewed_it() -> None:
    server, clock = Leases(), Clock()
    first, second = lease(server, "first", clock), lease(server, "second", clock)
    assert first.try_once()
    assert not second.try_once()
    clock.now += 14
    assert not second.try_once()
    clock.now += 2
    assert second.try_once()
    assert not first.try_once()


def test_a_lease_given_back_is_free_at_once() -> None:
    server, clock = Leases(), Clock()
    first, second = lease(server, "first", clock), lease(server, "second", clock)
    assert first.try_once()
    first.release()
    assert second.try_once()


def test_a_holder_gives_up_before_another_one_may_begin() -> None:
    server, clock = Leases(), Clock()
    first = lease(server, "first", clock)
    assert first.try_once()
    server.away = True
    clock.now += 9
    assert first.try_once()  # a short outage is none
    clock.now += 2
    assert not first.try_once()


def test_two_that_come_at_once_are_not_both_served() -> None:
    server, clock = Leases(), Clock()
    first, second = lease(server, "first", clock), lease(server, "second", clock)
    assert first.try_once()
    first.release()
    stale = copy.deepcopy(server.item)
    assert second.try_once()
    server_get = server.get
    server.get = lambda path: copy.deepcopy(stale)  # type: ignore[method-assign]  # read before second wrote
    assert not first.try_once()
    server.get = server_get  # type: ignore[method-assign]
    assert second.try_once()


def test_keeping_ends_when_somebody_else_has_it() -> None:
    server, clock = Leases(), Clock()
    first = Lease(server, "system", "operator", "first", seconds=0.05, clock=clock)  # type: ignore[arg-type]
    assert first.try_once()
    assert server.item is not None
    server.item["spec"]["holderIdentity"] = "second"
    lost = threading.Event()
    first.keep(threading.Event(), lost.set)
    assert lost.is_set()


def test_a_holder_gives_up_in_time_while_its_request_hangs() -> None:
    server = Leases()
    first = Lease(server, "system", "operator", "first", seconds=0.3)  # type: ignore[arg-type]
    assert first.try_once()
    server.stalled = threading.Event()
    lost = threading.Event()
    first.keep(threading.Event(), lost.set)
    assert lost.is_set()
    assert not server.stalled.is_set(), "the request still hangs"
    server.stalled.set()


def test_a_holder_that_is_told_to_stop_has_lost_nothing() -> None:
    server = Leases()
    first = Lease(server, "system", "operator", "first", seconds=0.3)  # type: ignore[arg-type]
    assert first.try_once()
    stop, lost = threading.Event(), threading.Event()
    stop.set()
    first.keep(stop, lost.set)
    assert not lost.is_set()


def test_somebody_else_s_note_on_the_lease_does_not_end_its_holder() -> None:
    server, clock = Leases(), Clock()
    first = lease(server, "first", clock)
    assert first.try_once()
    stale = copy.deepcopy(server.item)
    assert server.item is not None
    server.item["metadata"] |= {"annotations": {"note": "kept"}, "resourceVersion": "99"}
    server_get = server.get
    server.get = lambda path: copy.deepcopy(stale)  # type: ignore[method-assign]  # read before the note was made
    assert first.try_once()
    clock.now += 11
    assert not first.try_once(), "it was not renewed for too long"
    server.get = server_get  # type: ignore[method-assign]
    assert first.try_once()
    assert server.item["metadata"]["annotations"] == {"note": "kept"}


def test_a_renewal_counts_from_when_it_was_sent() -> None:
    server, clock = Leases(), Clock()
    first = lease(server, "first", clock)
    replace = server.replace

    def slow(path: str, body: Json) -> Json:
        clock.now += 9
        return replace(path, body)

    assert first.try_once()
    server.replace = slow  # type: ignore[method-assign]
    assert first.try_once()
    server.away = True
    clock.now += 2
    assert not first.try_once()


def test_however_long_a_lease_lasts_it_is_looked_at_every_few_seconds() -> None:
    lasting = Lease(Leases(), "system", "operator", "first", seconds=600.0)  # type: ignore[arg-type]
    assert lasting.pause_seconds <= 3


@pytest.mark.parametrize(
    "spec", ["x", [1], 7, *({"holderIdentity": "other", "leaseDurationSeconds": seconds} for seconds in ("x", 10**400))]
)
def test_a_lease_that_cannot_be_read_is_held_for_a_while_by_who_had_it_and_then_by_nobody(
    spec: Any, caplog: pytest.LogCaptureFixture
) -> None:
    server, clock = Leases(), Clock()
    first = Lease(server, "system", "operator", "first", seconds=0.1, clock=clock)  # type: ignore[arg-type]
    second = lease(server, "second", clock)
    assert first.try_once()
    assert server.item is not None
    server.item["spec"] = spec
    assert not second.try_once()
    lost = threading.Event()
    if isinstance(spec, dict):
        assert not first.try_once(), "it is another one's"
    else:
        assert first.try_once(), "as if the API server were away"
    clock.now += 1
    first.keep(threading.Event(), lost.set)  # the renewing thread ends cleanly, and so does the operator
    assert lost.is_set()
    first.release()
    assert "cannot be read" in caplog.text
    assert "delete it" in caplog.text
    server.item = None
    assert second.try_once()


def test_a_holder_that_was_stopped_for_a_while_may_not_act_though_nothing_has_told_it() -> None:
    server, clock = Leases(), Clock()
    first, second = lease(server, "first", clock), lease(server, "second", clock)
    assert not first.is_held(), "before it has acquired the Lease"
    assert first.try_once()
    assert first.is_held()
    clock.now += 9
    assert first.is_held()
    clock.now += 2
    assert not first.is_held(), "before another one may take over"
    assert not second.try_once()
    assert first.try_once()
    assert first.is_held(), "renewed"
    assert server.item is not None
    server.item["spec"]["holderIdentity"] = "second"
    assert not first.try_once()
    assert not first.is_held()


def test_time_passes_while_the_machine_is_suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[int]()

    def read(clock: int) -> float:
        asked.append(clock)
        return 1.0

    monkeypatch.setattr(time, "clock_gettime", read)
    assert Lease(Leases(), "system", "operator", "first", seconds=15.0).try_once()  # type: ignore[arg-type]
    assert set(asked) == {time.CLOCK_BOOTTIME}
