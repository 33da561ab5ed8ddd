"""What the operator stores outlives its version: fixtures of version 1, older and newer states, one too new.

`python -m tests.heterps_operator.controller.test_versions` writes the fixtures. Do so for a new version only.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from heterps_operator.control.profiles import check_profile
from heterps_operator.kubernetes.packing import pack, unpack
from heterps_operator.kubernetes.reading.processes import process_of
from heterps_operator.kubernetes.state import NewerStateError, StoredState
from heterps_operator.state.plan import JobPlan
from tests.heterps_operator.helpers.job_world import CONFIGS, JOB, PODS, STATE
from tests.heterps_operator.helpers.life import Life
from tests.heterps_operator.helpers.versions import newer, older

Json = dict[str, Any]

PACKED = Path(__file__).parents[2] / "fixtures" / "v2" / "operator"
FOLDER = Path(__file__).parents[2] / "fixtures" / "v1" / "operator"


def written() -> dict[str, Any]:
    """Return what the operator has stored of a job that trains, by kind."""
    with tempfile.TemporaryDirectory() as folder:
        life = Life(Path(folder))
        life.train()
        life.settle()
        objects = life.server.objects
    profile = next(path for path in objects if "/heterps-profile-" in path)
    return {
        "state": objects[STATE]["data"],
        "plan": objects[f"{CONFIGS}/flights-plan-1"]["data"],
        "profile": objects[profile]["data"],
        "pods": {
            path.rpartition("/")[2]: item["metadata"]["annotations"]
            for path, item in objects.items()
            if path.startswith(PODS)
        },
        "status": objects[f"{JOB}/status"]["status"],
    }


def fixture(name: str) -> Any:
    return json.loads((FOLDER / f"{name}.json").read_text())


def covers(value: Any, kept: Any, path: str = "") -> list[str]:
    """Return the places at which `value` lacks something of `kept`."""
    if isinstance(kept, dict) and isinstance(value, dict):
        return [
            place
            for key, item in kept.items()
            for place in (covers(value[key], item, f"{path}.{key}") if key in value else [f"{path}.{key}"])
        ]
    if isinstance(kept, list) and isinstance(value, list) and len(kept) == len(value):
        return [place for index, item in enumerate(kept) for place in covers(value[index], item, f"{path}[{index}]")]
    return [] if value == kept else [path]


def test_a_state_of_version_1_is_read_and_written_without_loss() -> None:
    data = fixture("state")
    again = StoredState.from_data(data).to_data()
    for name, text in data.items():
        assert covers(json.loads(again[name]), json.loads(text)) == [], name


def test_everything_else_of_version_1_is_read() -> None:
    plan = json.loads(fixture("plan")["plan.json"])
    assert plan["version"] == 1
    assert JobPlan.from_json(plan).workers == ("worker-0-0", "worker-0-1", "worker-1-0")
    profile = json.loads(fixture("profile")["profile.json"])
    assert profile["version"] == 1
    check_profile(profile)
    processes = {process_of({"metadata": {"annotations": given}}).name for given in fixture("pods").values()}
    assert processes >= {"coordinator", "ps-0", "worker-0-0", "worker-0-1", "worker-1-0"}
    assert json.loads(fixture("state")["controller.json"])["version"] == 1


def test_the_fixtures_have_every_kind_of_document_that_is_stored() -> None:
    now = written()
    assert set(now) == {path.stem for path in FOLDER.glob("*.json")}
    assert set(now["state"]) == set(fixture("state"))
    assert covers(now["status"], {key: now["status"][key] for key in fixture("status")}) == []


def test_a_packed_state_of_version_2_is_read_and_no_operator_of_version_1_takes_it_for_its_own() -> None:
    data = json.loads((PACKED / "state.json").read_text())
    assert StoredState.from_data(data) == StoredState.from_data(fixture("state"))
    assert json.loads(data["controller.json"]) == {"version": 2}, "what an operator of version 1 reads first"


def test_a_large_state_is_packed_and_a_damaged_one_told(monkeypatch: pytest.MonkeyPatch) -> None:
    state = StoredState.from_data(fixture("state"))
    size = sum(map(len, state.to_data().values()))
    monkeypatch.setattr("heterps_operator.kubernetes.state._MOST_PLAIN_BYTES", size)
    assert "packed" not in state.to_data(), "an operator of version 1 reads it"
    monkeypatch.setattr("heterps_operator.kubernetes.state._MOST_PLAIN_BYTES", size - 1)
    data = state.to_data()
    assert set(data) == {"controller.json", "packed"}
    assert StoredState.from_data(data) == state
    assert state.to_data() == data, "the same state is the same text"
    text = data["packed"]
    later = pack({"controller.json": '{"version": 9}'})
    for damaged in (text[:-40], text[: len(text) // 2], "", "e30=", text.replace("H4sI", "H4sJ", 1), pack({}), later):
        with pytest.raises(ValueError, match=r"packed|state"):
            StoredState.from_data({**data, "packed": damaged})
    with pytest.raises(ValueError, match="missing or malformed"):
        StoredState.from_data({"controller.json": data["controller.json"]})


def test_a_short_text_cannot_claim_any_amount_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heterps_operator.kubernetes.packing._MOST_BYTES", 10_000)
    assert unpack(pack({"a": "0" * 9_000}))["a"] == "0" * 9_000
    with pytest.raises(ValueError, match="more than"):
        unpack(pack({"a": "0" * 1_000_000}))


# --- through the control loop -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [older, newer])
def test_a_job_goes_on_from_the_state_of_another_version(life: Life, change: Any) -> None:
    before, pods, cost = life.status, set(life.pods()), life.status["cost"]["total"]
    life.server.objects[STATE]["data"] = change(life.server.objects[STATE]["data"])
    life.replace_operator()
    life.server.requests.clear()
    for _ in range(5):
        life.now += 10
        life.operator.turn()
    assert set(life.pods()) == pods
    assert not [path for verb, path in life.writes() if verb == "delete"]
    after = life.status
    assert after["phase"] == "Running"
    assert after["plan"] == before["plan"] | {"reason": after["plan"]["reason"]}
    assert after["restarts"] == 0
    assert float(after["cost"]["total"]) > float(cost)
    assert json.loads(life.server.objects[STATE]["data"]["controller.json"])["version"] == 1


def test_the_plan_that_another_version_wrote_is_kept(life: Life) -> None:
    path = f"{CONFIGS}/flights-plan-1"
    document = json.loads(life.server.objects[path]["data"]["plan.json"]) | {"laterField": 1}
    life.server.objects[path]["data"] = {"plan.json": json.dumps(document)}
    life.replace_operator()
    life.operator.turn()
    assert json.loads(life.server.objects[path]["data"]["plan.json"]) == document


def test_a_job_whose_state_is_too_new_is_left_alone_and_told(life: Life) -> None:
    controller = json.loads(life.server.objects[STATE]["data"]["controller.json"])
    life.server.objects[STATE]["data"] |= {"controller.json": json.dumps({**controller, "version": 3})}
    life.replace_operator()
    status, objects = life.status, dict(life.server.objects)
    life.server.requests.clear()
    for _ in range(5):
        life.now += 60
        life.operator.turn()
    writes = [(verb, path.partition("/flights")[0].rpartition("/")[2]) for verb, path in life.writes()]
    assert writes == [("create", "events"), ("apply", "heterpsjobs")]
    condition = life.condition("Planned")
    assert (condition["status"], condition["reason"]) == ("False", "NewerVersion")
    assert "has version 3, this operator knows version 2; nothing of the job is changed" in condition["message"]
    assert {**life.status, "conditions": []} == {**status, "conditions": []}
    assert {path: life.server.objects[path] for path in objects if not path.endswith("/status")} == {
        path: item for path, item in objects.items() if not path.endswith("/status")
    }


def test_a_state_too_new_is_not_called_damaged() -> None:
    data = fixture("state")
    controller = json.loads(data["controller.json"])
    with pytest.raises(NewerStateError, match="version 7"):
        StoredState.from_data({"controller.json": json.dumps({**controller, "version": 7})})


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for kind, document in written().items():
        (FOLDER / f"{kind}.json").write_text(json.dumps(document, indent=1) + "\n")
    sys.stdout.write(f"written to {FOLDER}\n")
