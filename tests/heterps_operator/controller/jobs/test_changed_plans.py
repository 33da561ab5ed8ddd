"""A changed spec of a training job whose plan can take effect at once: the job changes to it and does not stop."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from heterps_operator.kubernetes.api import ApiError
from heterps_operator.kubernetes.state import StoredState
from heterps_operator.state.values import RequestStop, SubmitPlan
from tests.heterps_operator.helpers.job_world import PODS, STATE, events
from tests.heterps_operator.helpers.life import Life, cores_only

Json = dict[str, Any]

TWO_SERVERS = {**cores_only(), "parameterServer": {"pool": "cpu", "replicas": 2, "units": 2}}


@pytest.fixture
def life(tmp_path: Path) -> Life:
    """A job that trains on cores with one server."""
    made = Life(tmp_path)
    made.plan = cores_only()
    made.train()
    return made


def ask_for_servers(life: Life, number: int, **more: Any) -> None:
    life.plan = TWO_SERVERS if number == 2 else cores_only()
    life.edit(
        lambda job: job["spec"].update(more, parameterServer={**job["spec"]["parameterServer"], "replicas": number})
    )
    life.sent.clear()


def stops(life: Life) -> list[Any]:
    return [action for action in life.sent if isinstance(action, RequestStop)]


def stored(life: Life) -> StoredState:
    found = StoredState.from_data(life.server.objects[STATE]["data"])
    assert found is not None
    return found


def test_other_servers_take_effect_while_the_job_trains(life: Life) -> None:
    ask_for_servers(life, 2)
    life.settle()
    assert (life.status["phase"], stops(life)) == ("Running", [])
    assert [action.revision for action in life.sent if isinstance(action, SubmitPlan)] == [2]
    life.go_on()
    life.settle()
    assert {name for name in life.pods() if name.startswith("ps-")} == {"ps-0", "ps-1"}
    told = [message for reason, message in events(life) if reason == "Redivided"]
    assert told == [
        "the spec has changed, and its plan is cpu x4 [embedding..head] with 1 -> 2 parameter servers: "
        "the job changes to it while it runs"
    ]
    assert [message for reason, message in events(life) if reason == "SpecChanged"] == [
        "spec.parameterServer.replicas: applied after replanning"
    ]
    assert (stored(life).status.plan_revision, stored(life).status.incarnation) == (2, 1)
    assert stored(life).status.history[-1].message == told[0]
    life.replace_operator()
    life.settle()
    assert (stored(life).status.plan_revision, stops(life)) == (2, []), "the next operator sees no change"


def test_a_plan_that_stays_the_same_is_not_carried_out_again(life: Life) -> None:
    life.edit(lambda job: job["spec"]["objective"].__setitem__("maxCostPerHour", "100"))
    life.sent.clear()
    life.settle()
    life.now += 60  # until the state is written again
    life.settle()
    assert (life.status["phase"], life.sent, stored(life).status.plan_revision) == ("Running", [], 1)
    spec = stored(life).spec
    assert spec is not None
    assert spec["objective"]["maxCostPerHour"] == "100"


def test_a_change_that_is_stored_and_not_yet_done_is_not_judged_again(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its new server cannot be created at first."""
    failures = 2
    create = type(life.server).create

    def failing(server: Any, path: str, body: Json, *, strict: bool = False) -> Json:
        nonlocal failures
        if path == PODS and failures:
            failures -= 1
            raise ApiError(500, "InternalError", "etcd has no leader")
        return create(server, path, body, strict=strict)

    monkeypatch.setattr(type(life.server), "create", failing)
    ask_for_servers(life, 2)
    while failures:
        with contextlib.suppress(ApiError):
            life.operator.turn()
    spec = stored(life).spec
    assert spec is not None
    assert (stored(life).status.plan_revision, spec["parameterServer"]["replicas"]) == (2, 2)
    life.settle()
    assert len([reason for reason, _ in events(life) if reason == "SpecChanged"]) == 1
    assert "ps-1" in life.pods()


def test_later_plans_follow_the_changed_spec(life: Life) -> None:
    """Also those of a job that goes on as it is."""
    assert not life.stages
    by_hand = [{"pool": "cpu", "lastLayer": "output", "units": 4}]
    life.edit(lambda job: job["spec"].update(scheduling={**job["spec"]["scheduling"], "stages": by_hand}))
    life.settle()
    assert (life.status["phase"], stops(life)) == ("Running", [])
    assert [stage["lastLayer"] for stage in life.stages] == ["output"]


def test_a_pool_that_the_plan_does_not_use_may_be_removed(life: Life) -> None:
    ask_for_servers(life, 2, pools=[{"name": "cpu"}])
    life.settle()
    assert (life.status["phase"], stored(life).status.plan_revision, stops(life)) == ("Running", 2, [])


def test_a_job_stops_if_what_processes_read_has_changed_too(life: Life) -> None:
    ask_for_servers(life, 2, image="example.com/model:2")
    life.settle()
    assert (life.status["phase"], len(stops(life)) > 0) == ("Stopping", True)


def test_a_job_stops_for_a_plan_that_has_no_room_beside_the_present_one(life: Life) -> None:
    for pool in life.pools:
        pool["spec"]["maxUnits"] = 5
    life.set_limits(life.cluster)
    ask_for_servers(life, 2)
    life.settle()
    assert life.status["phase"] == "Stopping"


def test_a_change_whose_state_cannot_be_written_is_made_later(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until then the job has the spec and the plan of before, also for another operator."""
    failures = 3
    write = type(life.server).replace

    def failing(server: Any, path: str, body: Json) -> Json:
        nonlocal failures
        if path == STATE and failures and "2" in str(StoredState.from_data(body["data"]).status.plan_revision):
            failures -= 1
            raise ApiError(500, "InternalError", "etcd has no leader")
        return write(server, path, body)

    monkeypatch.setattr(type(life.server), "replace", failing)
    ask_for_servers(life, 2)
    seen = set()
    while failures:
        try:
            life.operator.turn()
        except ApiError:
            seen.add((stored(life).status.plan_revision, (stored(life).spec or {})["parameterServer"].get("replicas")))
    assert seen == {(1, None)}
    life.settle()
    assert (stored(life).status.plan_revision, stops(life)) == (2, [])
