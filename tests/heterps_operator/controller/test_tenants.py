"""Tenants: what they may edit changes neither the bill nor the plan of a job, and pools have limits per namespace.

The built-in role `edit` may write ConfigMaps and the metadata of pods. A new operator reads everything back, so each
test of an edit replaces the operator after it.
"""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml

from heterps_operator.controller.pools import PoolKeeper
from heterps_operator.controller.recorder import ProblemRecorder
from heterps_operator.kubernetes.names import ANNOTATION_PROCESS
from tests.heterps_operator.helpers.job_world import CONFIGS, PODS, STATE, World, events
from tests.heterps_operator.helpers.life import Life
from tests.heterps_operator.helpers.nodes import make_node

Json = dict[str, Any]

ROOT = Path(__file__).parents[3]
ROLES = ROOT / "helm" / "heterps" / "templates" / "userroles.yaml"
READING = {"get", "list", "watch"}


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


def claim_no_units(life: Life) -> None:
    """Edit the annotations of all pods, as if they occupied nothing."""
    for pod in life.pods().values():
        annotations = pod["metadata"]["annotations"]
        process = json.loads(annotations[ANNOTATION_PROCESS])
        annotations[ANNOTATION_PROCESS] = json.dumps({**process, "pool": None, "units": 0})


def test_an_edited_annotation_changes_no_price(life: Life) -> None:
    honest = cost_of_an_hour(life)
    claim_no_units(life)
    assert cost_of_an_hour(life) == honest
    assert life.status["restarts"] == 0


def test_an_edited_annotation_frees_no_units_of_the_plan(life: Life) -> None:
    held = life.cluster.ledger.held_by("ml/flights")
    assert held == {"accelerator": 1, "cpu": 3}
    claim_no_units(life)
    life.replace_operator()
    ledger = life.cluster.ledger
    assert ledger.reserve("ml/other", {"cpu": ledger.free("cpu")}).granted, "its turn comes first"
    life.operator.turn()
    assert ledger.held_by("ml/flights") == held, "its pods are there"


def test_users_may_read_states_and_not_write_them() -> None:
    found = []
    for document in ROLES.read_text().split("\n---\n"):
        rules = yaml.safe_load(document[document.index("\nrules:") :].replace("{{- end }}", ""))["rules"]
        found += [set(rule["verbs"]) for rule in rules if "heterpsjobstates" in rule["resources"]]
    assert found == [READING]


# --- limits of namespaces ---------------------------------------------------------------------------------------------


def restrict(world: World, name: str, *namespaces: Json, units: int | None = None) -> None:
    """Set the namespaces of a pool, and its units, as an administrator."""
    [pool] = [pool for pool in world.pools if pool["metadata"]["name"] == name]
    pool["spec"] |= {"namespaces": list(namespaces), "maxUnits": units or pool["spec"]["maxUnits"]}
    pool["metadata"]["generation"] += 1
    world.cluster.pools.put(pool)
    world.set_limits(world.cluster)


def test_a_job_of_a_namespace_that_may_not_use_a_pool_is_told_and_waits(tmp_path: Path) -> None:
    world = World(tmp_path)
    restrict(world, "accelerator", {"name": "team-a"})
    controller = world.controller()
    controller.turn()
    told = world.condition("Planned")
    assert (told["status"], told["reason"]) == ("False", "PoolNotAllowed")
    assert told["message"] == (
        "spec.pools[1].name: namespace ml may not use the DevicePool accelerator; use another pool, or let its "
        "administrator add the namespace to spec.namespaces of the DevicePool accelerator"
    )
    assert [reason for reason, _ in events(world)] == ["PoolNotAllowed"]
    assert world.names(PODS) == set()
    restrict(world, "accelerator", {"name": "team-a"}, {"name": "ml"})
    controller.turn()
    assert world.names(PODS) == {"flights-coordinator-1-1"}


def test_a_job_waits_for_units_of_its_namespace_and_names_the_limit(tmp_path: Path) -> None:
    world = World(tmp_path)
    restrict(world, "cpu", {"name": "ml", "maxUnits": 2}, units=8)
    assert world.cluster.ledger.reserve("ml/other", {"cpu": 2}).granted
    controller = world.controller()
    controller.turn()
    told = world.condition("Profiled")
    assert told["reason"] == "WaitingForCapacity"
    assert "jobs of this namespace may hold 2 of cpu together" in told["message"]
    assert "raise maxUnits of the namespace in spec.namespaces of the DevicePool" in told["message"]
    world.cluster.ledger.release("ml/other")
    controller.turn()
    assert world.names(PODS) == {"flights-coordinator-1-1"}


def test_another_namespace_does_not_wait_for_units_that_it_may_use(tmp_path: Path) -> None:
    world = World(tmp_path)
    restrict(world, "cpu", {"name": "ml"}, {"name": "team-a", "maxUnits": 2}, units=8)
    assert world.cluster.ledger.reserve("team-a/other", {"cpu": 2}).granted
    world.controller().turn()
    assert world.names(PODS) == {"flights-coordinator-1-1"}


@pytest.mark.parametrize("namespaces", [({"name": "ml", "maxUnits": 1},), ({"name": "team-a"},)])
def test_a_limit_that_is_lowered_ends_no_pod(life: Life, namespaces: tuple[Json, ...]) -> None:
    pods, held = set(life.pods()), life.cluster.ledger.held_by("ml/flights")
    restrict(life, "cpu", *namespaces)
    for _ in range(5):
        life.now += 60
        life.operator.turn()
    assert set(life.pods()) == pods
    assert (life.status["phase"], life.status["restarts"]) == ("Running", 0)
    assert life.cluster.ledger.held_by("ml/flights") == held
    life.replace_operator()
    life.operator.turn()
    assert set(life.pods()) == pods
    assert life.cluster.ledger.held_by("ml/flights") == held


def test_the_keeper_of_pools_passes_limits_on_and_wakes_jobs_when_they_change(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.cluster.nodes.put(make_node("a", "64"))
    for pool in world.pools:
        pool["spec"]["autoscaled"] = True
        world.cluster.pools.put(pool)
    told: list[str] = []
    problems = ProblemRecorder(world.server, world.cluster.clock)
    keeper = PoolKeeper(world.cluster, problems, lambda: told.append("changed"))
    keeper.refresh()
    assert told == ["changed"]
    keeper.refresh()
    assert told == ["changed"]
    restrict(world, "cpu", {"name": "ml", "maxUnits": 1})
    keeper.refresh()
    assert told == ["changed", "changed"]
    assert world.cluster.ledger.free("cpu", "ml/flights") == 1
    assert world.cluster.ledger.free("cpu", "team-a/other") == 0


def test_pods_do_not_learn_the_limits_of_other_namespaces(tmp_path: Path) -> None:
    world = World(tmp_path)
    restrict(world, "cpu", {"name": "ml"}, {"name": "team-a", "maxUnits": 2})
    world.controller().turn()
    assert "team-a" not in world.server.objects[f"{CONFIGS}/flights-run"]["data"]["run.json"]
