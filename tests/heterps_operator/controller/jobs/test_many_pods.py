"""A job of 5,000 pods: what is stored of it fits, and turns stay affordable. Calls and bytes are counted, not time."""

from __future__ import annotations

import copy
import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heterps_operator.kubernetes.state import StoredState
from heterps_operator.loop.coordinator_answers import read_status
from heterps_operator.loop.coordinator_client import CoordinatorClient
from heterps_operator.measure.http_requests import HttpConnection, HttpResponse
from heterps_planner.balancing import WorkerEstimate
from tests.heterps_operator.helpers import life as lives
from tests.heterps_operator.helpers.job_world import CONFIGS, JOB, PODS, STATE
from tests.heterps_operator.helpers.life import Coordinator, Life

pytestmark = pytest.mark.slow

PROCESSES = 5_000
WORKERS = (PROCESSES - 2) // 2  # of each of two stages, beside a server and the coordinator
OBJECT_BYTES = 1_572_864  # etcd's --max-request-bytes
CONFIG_BYTES = 1_048_576  # of a ConfigMap's data, and of a text in a HeterPSJobState (crds/)
MOST_ACTIONS = 1_000  # of a turn; five times as many as usual, so that the test takes fewer turns

Json = dict[str, Any]


class _Crash(BaseException):
    """The operator is killed."""


class Large(Life):
    """A job of 5,000 pods."""

    def run(self) -> Iterator[int]:
        """Run turns until all pods train; yield the number of requests of each turn."""
        while True:
            before = len(self.server.requests)
            self.operator.turn()
            yield len(self.server.requests) - before
            self.nodes_act()
            self.now += 0.5
            coordinator = next(iter(self.coordinators.values()), None)
            if coordinator is not None and len(self.server.objects) < PROCESSES:
                if coordinator.phase == "Profiling":
                    self.proceed()
            elif coordinator is not None:
                self.proceed()  # all members are ready now
                if coordinator.phase == "Training":
                    return

    def work(self, coordinator: Coordinator) -> None:
        """Let all members report figures with every digit that a float has."""
        rng = np.random.default_rng(1)
        batches = (512 // WORKERS + 1,) * WORKERS
        for member, times in zip(coordinator.members, rng.random((PROCESSES, 4)).tolist(), strict=False):
            keys = ("stepSeconds", "computeSeconds", "waitSeconds", "silentSeconds")
            member |= dict(zip(keys, times, strict=True)) | {"batchSize": batches[0], "message": "running"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Large, list[int]]:
    plan = lives._plan()
    for stage in plan["stages"]:
        stage |= {"units": WORKERS, "pods": WORKERS}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lives, "_plan", lambda: copy.deepcopy(plan))
        patch.setattr("heterps_operator.loop.control_loop._MOST_ACTIONS", MOST_ACTIONS)
        life = Large(tmp_path_factory.mktemp("large"))
        for pool in life.pools:
            pool["spec"]["maxUnits"] = 10_000
        life.replace_operator()
        requests = list(life.run())
    assert life.coordinator is not None
    life.work(life.coordinator)
    life.now += 60.0
    life.operator.turn()
    return life, requests


def size(document: Any) -> int:
    return len(json.dumps(document))


def test_the_pods_are_created_by_turns_that_stay_short(trained: tuple[Large, list[int]]) -> None:
    life, requests = trained
    assert len(life.pods()) == PROCESSES
    assert max(requests) <= MOST_ACTIONS + 10, "the actions, and what is written about them"
    assert sum(requests) < 1.1 * PROCESSES, "no pod is created twice, and few turns do nothing"


def test_everything_that_is_stored_of_it_fits(trained: tuple[Large, list[int]]) -> None:
    life, _ = trained
    state = life.server.objects[STATE]
    stored = StoredState.from_data(state["data"])
    assert len(stored.processes) == PROCESSES + 2  # and two profilers that have ended
    assert stored.status.result is not None
    assert len(stored.status.result["members"]) == PROCESSES - 1
    # In the worst case, the speed of each worker has been learnt, too.
    learnt = WorkerEstimate().observe(3, 0.1234567890123).observe(4, 0.2345678901234).observe(3, 9.87654321)
    rng = np.random.default_rng(2)
    speeds = {
        f"worker-{stage}-{index}": replace(learnt, sum_t=a, sum_bt=b, variance=c, slower=d, faster=e)
        for stage in range(2)
        for index, (a, b, c, d, e) in enumerate(rng.random((WORKERS, 5)).tolist())
    }
    worst = replace(stored, status=replace(stored.status, speeds=speeds))
    data = worst.to_data()
    assert StoredState.from_data(data) == worst
    assert max(map(len, data.values())) <= CONFIG_BYTES
    assert size({**state, "data": data}) <= OBJECT_BYTES
    configs = {path: item for path, item in life.server.objects.items() if path.startswith(CONFIGS)}
    assert {f"{CONFIGS}/flights-plan-1", f"{CONFIGS}/flights-run"} <= set(configs)
    assert all(size(item) < 10_000 for item in configs.values()), "they do not grow with the number of pods"
    assert size(life.server.objects[f"{JOB}/status"]) < 10_000


def test_its_coordinator_may_answer(trained: tuple[Large, list[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    life, _ = trained
    assert life.coordinator is not None
    text = json.dumps(life.coordinator.document())

    def answer(connection: HttpConnection, method: str, target: str, *, most_bytes: int, **_: Any) -> HttpResponse:
        assert len(text) < 0.75 * most_bytes
        return HttpResponse(200, "OK", text)

    monkeypatch.setattr(HttpConnection, "send", answer)
    document = CoordinatorClient("http://10.0.0.1:7400", "token").status()
    assert len(read_status(document).members) == PROCESSES - 1


def test_a_turn_that_finds_nothing_new_takes_no_request_and_time_in_proportion_to_the_pods(
    trained: tuple[Large, list[int]],
) -> None:
    life, _ = trained
    life.operator.turn()
    before, calls = len(life.server.requests), Counter[str]()

    def count(frame: Any, event: str, argument: Any) -> None:
        if event == "call" and "heterps_operator" in frame.f_code.co_filename:
            calls[frame.f_code.co_qualname] += 1

    sys.setprofile(count)
    try:
        life.operator.turn()
    finally:
        sys.setprofile(None)
    assert len(life.server.requests) == before
    # A search through all processes for each of them would be 25 million.
    assert max(calls.values()) <= 20 * PROCESSES, calls.most_common(3)
    assert sum(calls.values()) <= 100 * PROCESSES


def test_a_crash_at_any_request_of_the_start_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state is one object: a write of it happens or not. Plain states become packed ones on the way."""
    monkeypatch.setattr("heterps_operator.kubernetes.state._MOST_PLAIN_BYTES", 6_000)
    monkeypatch.setattr("heterps_operator.loop.control_loop._MOST_ACTIONS", 2)
    life = Life(tmp_path)
    forms, write = set(), life.server._store
    left = 0

    def crash(path: str, body: Any) -> Json:
        nonlocal left
        left -= 1
        stored = write(path, body)
        if left == 0:
            raise _Crash  # executed, and the answer is never read
        return stored

    monkeypatch.setattr(life.server, "_store", crash)
    crashes = 0
    for _ in range(40):
        for left in range(1, 50):  # noqa: B007  # the server counts it down
            try:
                life.operator.turn()
                break
            except _Crash:
                crashes += 1
                life.replace_operator()
        left = 0
        life.operator.turn()  # the fake planner's answer is in the operator's memory
        if STATE in life.server.objects:
            forms.add("packed" in life.server.objects[STATE]["data"])
        life.go_on()
        if life.coordinator is not None and life.coordinator.phase == "Training":
            break
    assert crashes > 20
    assert forms == {False, True}
    assert life.status["restarts"] == 0
    created = [path for verb, path in life.server.requests if verb == "create" and path == PODS]
    assert len(created) >= len(life.pods()) == 5
    life.operator.turn()
    stored = StoredState.from_data(life.server.objects[STATE]["data"])
    assert {view.name for view in stored.processes if view.running} == set(life.pods())
