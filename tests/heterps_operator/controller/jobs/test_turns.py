"""How often a job on a cluster is reconciled, and that nothing is lost by reconciling rarely."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from heterps_operator.controller import context as cluster
from tests.heterps_operator.helpers.documents import condition, running
from tests.heterps_operator.helpers.job_world import JOB, STATE
from tests.heterps_operator.helpers.life import Life


@pytest.fixture
def life(tmp_path: Path) -> Life:
    return Life(tmp_path)


def pauses(life: Life, looks: int) -> list[float]:
    """Pauses after turns of a job that keeps training."""
    found = []
    for _ in range(looks):
        assert life.coordinator is not None
        life.coordinator.step += 5
        life.now += 1.0
        pause = life.operator.turn()
        assert pause is not None
        found.append(pause)
    return found


def test_a_job_that_trains_is_looked_at_less_and_less_often_until_something_happens(life: Life) -> None:
    life.train()
    found = pauses(life, 12)
    assert found == sorted(found)
    assert found[-1] == 2.0
    life.end("worker-0-0", 1)
    assert pauses(life, 1)[0] <= found[0]


def test_with_many_jobs_each_is_looked_at_less_often(life: Life) -> None:
    life.train()
    life.cluster.active_jobs = 60
    assert pauses(life, 20)[-1] == 7.5
    life.cluster.active_jobs = 500
    assert pauses(life, 30)[-1] == 15.0, "and still often enough to follow a change of speed"


def test_with_many_jobs_details_of_the_status_wait_and_milestones_do_not(life: Life) -> None:
    coordinator = life.train()
    life.settle()
    life.cluster.active_jobs = 500
    names = [member["name"] for member in coordinator.members if member["role"] == "worker"]
    told = list[tuple[str, int]]()
    for name in [*names, ""]:
        for member in coordinator.members:
            if member["name"] == name:
                member["state"] = "starting"
        for _ in range(2 if name else 5):
            life.now += 2
            life.operator.turn()
            ready = life.condition("PodsReady")
            told.append((ready["reason"], life.status["workers"]["ready"]))
    most = len(names)
    waiting = [("WaitingForMembers", number) for number in (most - 1, 0)]
    assert told[: 2 * most - 1] == [waiting[0]] * (2 * most - 1), "a new reason is told at once, the second worker not"
    assert told[-1] == waiting[1], "but within ten seconds"
    coordinator.phase = "Succeeded"
    life.now += 0.5
    life.operator.turn()
    assert life.status["phase"] == "Stopping"


def test_a_coordinator_that_hangs_is_asked_less_and_less_often_and_heard_before_it_is_given_up(life: Life) -> None:
    coordinator = life.train()
    coordinator.silent, life.patience, life.asked, began = True, 2.0, 0, life.now
    while life.now < began + 80:
        life.operator.turn()
        life.now += 1
    assert life.asked <= 7  # in eighty turns
    coordinator.silent = False
    for _ in range(35):
        life.now += 1
        life.operator.turn()
    assert life.status["restarts"] == 0
    assert life.coordinator is coordinator


def test_a_step_of_the_clock_is_not_the_silence_of_a_coordinator(life: Life) -> None:
    stepped = 0.0
    life.cluster.monotonic = lambda: life.now - stepped
    coordinator = life.train()
    [path] = [path for path, item in life.server.objects.items() if item is life.pods()["coordinator"]]
    runs = {"conditions": [condition("PodScheduled", "True")], "containerStatuses": running()}
    life._set(path, {**life.server.objects[path]["status"], **runs})
    coordinator.silent, stepped = True, 10_000.0
    life.now += stepped  # the time of day is set
    for seconds, given_up in ((100, False), (30, True)):
        for _ in range(seconds // 10):
            life.now += 10
            life.operator.turn()
        assert ("deletionTimestamp" in life.server.objects[path]["metadata"]) == given_up


def test_what_was_not_saved_of_a_bill_is_charged_by_the_next_operator(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "_SAVE_SECONDS", 300.0)  # as with many jobs
    life.train()
    saved = life.server.objects[STATE]
    for _ in range(20):
        life.now += 10
        life.operator.turn()
    assert life.server.objects[STATE] is saved  # costs a request each time
    cost = Decimal(life.status["cost"]["total"])
    assert cost > Decimal("0.1")  # for three cores and one card
    life.replace_operator()
    life.operator.turn()
    assert Decimal(life.status["cost"]["total"]) == cost


def test_only_a_job_that_may_wait_has_the_other_jobs_listed(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, holders = list[str](), life.cluster.ledger.holders

    def count(pool: str, excluding: str = "") -> tuple[tuple[str, int], ...]:
        asked.append(pool)
        return holders(pool, excluding)

    monkeypatch.setattr(life.cluster.ledger, "holders", count)
    while "plan" not in life.server.objects.get(f"{JOB}/status", {}).get("status", {}):
        life.operator.turn()
        life.go_on()
    assert asked
    asked.clear()
    life.train()
    assert asked == [], "it has its units while it starts and trains"
