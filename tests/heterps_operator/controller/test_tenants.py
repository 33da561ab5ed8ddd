"""What users may edit in their namespace changes neither the bill nor the plan of a job.

The built-in role `edit` may write ConfigMaps and the metadata of pods. A new operator reads everything back, so each
test replaces the operator after the edit.
"""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml

from heterps_operator.kubernetes.names import ANNOTATION_PROCESS
from tests.heterps_operator.helpers.job_world import CONFIGS, STATE
from tests.heterps_operator.helpers.life import Life

Json = dict[str, Any]

ROOT = Path(__file__).parents[3]
ROLES = ROOT / "helm" / "heterps" / "templates" / "userroles.yaml"
READING = {"get", "list", "watch"}


@pytest.fixture
def life(tmp_path: Path) -> Life:
    life = Life(tmp_path)
    life.train()
    life.settle()
    return life


def cost_of_an_hour(life: Life) -> Decimal:
    """Replace the operator, and return what the job pays for the next hour."""
    life.replace_operator()
    life.operator.turn()
    before = Decimal(life.status["cost"]["total"])
    life.now += 3600
    life.operator.turn()
    return Decimal(life.status["cost"]["total"]) - before


def test_state_is_in_no_object_that_the_built_in_roles_may_write(life: Life) -> None:
    assert set(life.server.objects[STATE]["data"]) == {
        "status.json", "bill.json", "processes.json", "controller.json",
    }  # fmt: skip
    texts = [json.dumps(item["data"]) for path, item in life.server.objects.items() if path.startswith(CONFIGS)]
    assert texts
    assert not [text for text in texts if "billedUntil" in text]


def test_an_edited_run_configuration_changes_no_price(life: Life) -> None:
    honest = cost_of_an_hour(life)
    run = life.server.objects[f"{CONFIGS}/flights-run"]
    configuration = json.loads(run["data"]["run.json"])
    for pool in configuration["pools"]:
        pool["spec"]["pricePerUnitHour"] = "0.0000001"
    run["data"]["run.json"] = json.dumps(configuration)
    # The pools are gone, so the job goes on with those that it was started with.
    life.pools = []
    assert honest > 2
    assert cost_of_an_hour(life) == honest
    assert life.condition("Planned")["reason"] == "PoolNotFound"


def test_an_edited_annotation_changes_no_price(life: Life) -> None:
    honest = cost_of_an_hour(life)
    for pod in life.pods().values():
        annotations = pod["metadata"]["annotations"]
        process = json.loads(annotations[ANNOTATION_PROCESS])
        if process["pool"] is not None:
            annotations[ANNOTATION_PROCESS] = json.dumps({**process, "pool": None, "units": 0})
    assert cost_of_an_hour(life) == honest
    assert life.status["restarts"] == 0


def test_an_edited_annotation_frees_no_units_of_the_plan(life: Life) -> None:
    held = life.cluster.ledger.held_by("ml/flights")
    pod = life.pods()["worker-1-0"]
    annotations = pod["metadata"]["annotations"]
    process = json.loads(annotations[ANNOTATION_PROCESS])
    annotations[ANNOTATION_PROCESS] = json.dumps({**process, "pool": None, "units": 0})
    life.replace_operator()
    life.operator.turn()
    assert life.cluster.ledger.held_by("ml/flights") == held


def test_users_may_read_states_and_not_write_them() -> None:
    found = []
    for document in ROLES.read_text().split("\n---\n"):
        rules = yaml.safe_load(document[document.index("\nrules:") :].replace("{{- end }}", ""))["rules"]
        found += [set(rule["verbs"]) for rule in rules if "heterpsjobstates" in rule["resources"]]
    assert found == [READING]
