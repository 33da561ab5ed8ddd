"""A coordinator's answer is read completely or not at all, and never stops a thread."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from heterps_operator.api.shapes import UnreadableError
from heterps_operator.loop.coordinator_answers import read_profiles, read_status
from heterps_operator.loop.coordinator_client import CoordinatorClient, CoordinatorError
from heterps_operator.state.values import CoordinatorView, RequestStop
from tests.heterps_operator.helpers.documents import running
from tests.heterps_operator.helpers.hostile_server import Script, drips, floods, hostile, says
from tests.heterps_operator.helpers.life import Coordinator, Life
from tests.heterps_operator.helpers.mutants import MISSING, WRONG, changed, paths
from tests.heterps_operator.helpers.world import PROFILE

Json = dict[str, Any]

STATUS: Json = {
    "phase": "Training", "message": "", "generation": 1, "committedSteps": 7, "totalSteps": 100, "epoch": 0,
    "epochs": 1, "globalBatchSize": 512, "numRows": 1000, "samples": 3584, "resumedFromStep": 3, "loss": 0.5,
    "samplesPerSecond": 1000.0, "meanSamplesPerSecond": 900.0, "secondsTraining": 3.5,
    "members": [
        {"name": "worker-0-0", "role": "worker", "state": "ready", "message": "", "stage": 0, "index": 0, "pool": "cpu",
         "batchSize": 512, "stepSeconds": 0.1, "computeSeconds": 0.1, "waitSeconds": 0.0, "silentSeconds": 0.1},
    ],
    "stages": [{"name": "stage-0", "pool": "cpu", "workers": 1, "samplesPerSecond": 1000.0, "busyFraction": 0.5}],
    "checkpoint": {"lastStep": 5, "lastTime": 1.7e9, "path": "/c", "failures": 0, "lastError": ""},
    "rows": {"stored": 900, "candidates": 70, "admitted": 500, "evicted": 30},
    "evaluation": {"auc": 0.7, "logLoss": None, "samples": 100},
    "model": "/m",
    "events": [{"time": 1.7e9, "type": "Warning", "reason": "CheckpointFailed", "message": "disk full"}],
    "error": {"reason": "NaNLoss", "message": "it diverged"},
}  # fmt: skip
HUGE = (float("nan"), float("inf"), 1e308, 10**400, -(10**400))


def nested(depth: int) -> bytes:
    return b'{"phase": "Training", "x": ' + b"[" * depth + b"]" * depth + b"}"


def test_a_complete_status_is_read_and_unknown_fields_are_left_out() -> None:
    unknown = {"new": 1, "allocation": [[1]]}
    members = [{**STATUS["members"][0], "figures": {"step": 0.1}, "totals": {"memory": 5e8, "operations": 2e6}}]
    view = read_status({**STATUS, **unknown, "members": members})
    assert view.document == STATUS
    [member] = view.members
    assert (member.batch_size, member.memory_bytes, member.operations_per_second) == (512, 5e8, 512 * 2e6 / 0.1)


def test_a_status_without_time_and_totals_as_the_first_release_has_it_is_of_now() -> None:
    view = read_status(STATUS)
    assert view.measured is None
    assert (view.members[0].operations_per_second, view.members[0].round_trip_seconds) == (0.0, 0.0), "not measured"


def test_totals_that_cannot_be_are_refused_or_harmless() -> None:
    def told(**changes: Any) -> CoordinatorView:
        return read_status({**STATUS, "members": [{**STATUS["members"][0], **changes}]})

    [member] = told(totals={"operations": 1e18}, computeSeconds=1e-300, batchSize=2**63 - 1).members
    assert member.operations_per_second == 0.0, "not infinite"
    for wrong in ("x", [1], {"memory": -1.0}, {"operations": float("inf")}, {"round-trip": "x"}):
        with pytest.raises(UnreadableError, match=r"^status\.members\[0\]\.totals"):
            told(totals=wrong)


@pytest.mark.parametrize("values", [WRONG, HUGE], ids=["wrong", "huge"])
def test_every_wrong_value_of_every_field_is_refused_or_harmless(values: tuple[Any, ...]) -> None:
    refused = 0
    for path in paths(STATUS):
        for value in values:
            if value is MISSING and not path:
                continue
            try:
                view = read_status(changed(STATUS, path, value))
            except UnreadableError:
                refused += 1
                continue
            assert len(json.dumps(view.document, allow_nan=False)) < 50_000, path
    assert refused > (500 if values is WRONG else 100)


@pytest.mark.parametrize("value", [*WRONG[1:], *HUGE])
def test_a_malformed_profile_is_refused(value: Any) -> None:
    assert read_profiles({"cpu": PROFILE}) == {"cpu": PROFILE}
    if not isinstance(value, dict):
        with pytest.raises(UnreadableError, match=r"^profiles\[cpu\]"):
            read_profiles({"cpu": value})
    for key in ("batchSize", "samples"):
        if type(value) is not int or value < 0 or value > 2**63:
            with pytest.raises(UnreadableError, match=key):
                read_profiles({"cpu": {**PROFILE, key: value}})
    with pytest.raises(UnreadableError, match="at most 1000 items"):
        read_profiles({"cpu": {**PROFILE, "layers": [{"name": "x"}] * 1001}})


ANSWERS: dict[str, tuple[Script, str]] = {
    "100,000 levels": (says(nested(100_000)), "not JSON"),
    "900 levels, unbalanced": (says(nested(900)[:-1]), "not JSON"),
    "digits": (says(b'{"phase": "Training", "loss": ' + b"9" * 5000 + b"}"), "not JSON"),
    "list": (says(b"[]"), "not a JSON object"),
    "text": (says("größe".encode("latin-1")), "not JSON"),
    "UTF-16": (says(json.dumps(STATUS).encode("utf-16")), "not JSON"),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_that_is_no_json_object_is_malformed(name: str) -> None:
    script, words = ANSWERS[name]
    with hostile(script) as address, pytest.raises(CoordinatorError, match=words) as caught:
        CoordinatorClient(address, "token", timeout_seconds=30).status()
    assert caught.value.malformed


def test_constants_that_are_no_json_count_as_not_known() -> None:
    body = b'{"phase": "Training", "loss": NaN, "samplesPerSecond": Infinity, "totalSteps": -Infinity}'
    with hostile(says(body)) as address:
        view = read_status(CoordinatorClient(address, "token", timeout_seconds=30).status())
    assert (view.document["loss"], view.samples_per_second, view.total_steps) == (None, 0.0, 0)


def test_levels_that_json_can_read_do_not_reach_what_is_stored() -> None:
    with hostile(says(nested(500))) as address:
        view = read_status(CoordinatorClient(address, "token", timeout_seconds=30).status())
    assert view.document == {"phase": "Training"}


@pytest.mark.parametrize(
    "script", [drips(b"HTTP/1.1 200 OK\r\n", b"X"), floods(b"HTTP/1.1 200 OK\r\n\r\n", b"[" * 999)]
)
def test_a_status_that_does_not_end_is_no_answer(script: Script) -> None:
    with hostile(script) as address, pytest.raises(CoordinatorError) as caught:
        CoordinatorClient(address, "token", timeout_seconds=0.2).status()
    assert caught.value.code is None
    assert not caught.value.malformed


def test_an_operator_without_the_lease_asks_but_does_not_act() -> None:
    held = [True]
    with hostile(says(b"{}")) as address:
        client = CoordinatorClient(address, "token", 30, may_act=lambda: held[0])
        client.send(RequestStop())
        held[0] = False
        assert client.status() == {}
        with pytest.raises(CoordinatorError, match="no longer holds the Lease") as caught:
            client.send(RequestStop())
    assert caught.value.code is None, "no refusal of the coordinator"


# --- in the controller ------------------------------------------------------------------------------------------------


class Lies(Coordinator):
    """A coordinator whose status has additional or changed fields."""

    changes: Json = {}  # noqa: RUF012  # set by tests

    def document(self) -> Json:
        return {**super().document(), **copy.deepcopy(self.changes)}


@pytest.fixture
def life(tmp_path: Path) -> Life:
    life = Life(tmp_path)
    life.train()
    return life


def lie(life: Life, **changes: Any) -> None:
    [coordinator] = life.coordinators.values()
    coordinator.__class__ = Lies
    coordinator.changes = changes  # type: ignore[attr-defined]


def turns(life: Life, number: int) -> None:
    for _ in range(number):
        life.now += 10
        life.operator.turn()


def told(life: Life, reason: str) -> list[str]:
    bodies = [item for path, item in life.server.objects.items() if "/events/" in path]
    return [body["message"] for body in bodies if body["reason"] == reason]


@pytest.mark.parametrize(
    "changes",
    [{"members": "x"}, {"committedSteps": 10**400}, {"phase": ["Training"]}, {"events": [{}]}, {"loss": float("inf")}],
)
def test_a_malformed_status_is_told_on_its_job_once_and_counts_as_no_answer(life: Life, changes: Json) -> None:
    before = life.status
    lie(life, **changes)
    turns(life, 5)
    [message] = told(life, "CoordinatorUnreadable")
    assert f"status.{next(iter(changes))}" in message
    assert "counts as unreachable" in message
    assert life.status["phase"] == before["phase"]
    assert life.status["progress"] == before["progress"]
    lie(life)
    turns(life, 2)
    assert told(life, "CoordinatorUnreadable") == [message]
    assert life.status["phase"] == "Running"


def test_a_coordinator_that_stays_malformed_is_treated_like_an_unreachable_one(life: Life) -> None:
    pods = {path: item for path, item in life.server.objects.items() if item is life.pods()["coordinator"]}
    [(path, pod)] = pods.items()
    life._set(path, {**pod["status"], "containerStatuses": running()})
    lie(life, stages=7)
    turns(life, 30)
    condition = life.condition("PodsReady")
    assert (condition["status"], condition["reason"]) == ("False", "CoordinatorUnreachable")
    assert "status.stages must be a list" in condition["message"]
    lie(life)
    turns(life, 2)
    assert life.condition("PodsReady")["status"] == "True"


def test_warnings_of_a_coordinator_are_limited_and_the_gap_is_told_once(life: Life) -> None:
    def flood(number: int, at: float) -> None:
        events = [{"time": at + n / 1e4, "type": "Warning", "reason": "Noise", "message": f"{at} {n}"} for n in
                  range(number)]  # fmt: skip
        lie(life, events=events)

    flood(1000, life.now)
    turns(life, 1)
    assert len(told(life, "Noise")) == 50
    assert any(message.endswith("999") for message in told(life, "Noise")), "the newest"
    [gap] = told(life, "WarningsDropped")
    assert "950 of them" in gap
    for _ in range(20):
        flood(1000, life.now)
        turns(life, 1)
    assert len(told(life, "Noise")) == 50
    assert told(life, "WarningsDropped") == [gap]
    life.now += 600
    flood(10, life.now)
    turns(life, 1)
    assert len(told(life, "Noise")) == 60
