"""One job's controller against an in-memory API server: its objects, state and events. The pods run nothing."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from heterps_operator.controller.jobs.owned_objects import OwnedObjects
from heterps_operator.kubernetes.api import ApiError
from heterps_operator.kubernetes.names import COORDINATOR_PORT, METRICS_PORT, code_labels
from heterps_operator.kubernetes.state import StateTaken
from heterps_operator.loop.coordinator_client import CoordinatorClient
from heterps_operator.state.plan import JobPlan
from heterps_operator.state.status import Status
from tests.heterps_operator.helpers.job_world import CONFIGS, PODS, SERVICE, STATE, World, planned
from tests.heterps_operator.helpers.world import PLAN, defaulted_job

Json = dict[str, Any]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_new_job_gets_its_objects_its_state_and_a_coordinator(world: World) -> None:
    world.controller().turn()
    assert world.names(PODS) == {"flights-coordinator-1-1"}
    assert world.names(CONFIGS) == {"flights-run"}
    assert world.names("/api/v1/namespaces/ml/secrets") == {"flights-token"}
    assert SERVICE in world.server.objects
    assert world.status["phase"] == "Profiling"
    assert {c["status"] for c in world.status["conditions"]} == {"Unknown"}


def test_a_job_that_encrypts_gets_no_other_secret_and_is_asked_over_tls(world: World) -> None:
    """All keys are derived from the token."""
    asked: list[str] = []

    def connect(address: str, token: str) -> CoordinatorClient:
        asked.append(address)
        return CoordinatorClient(address, token, timeout_seconds=0.1)

    world.edit(
        lambda job: job["spec"].update(
            encryption="Required", pools=[pool for pool in job["spec"]["pools"] if pool["name"] == "cpu"]
        )
    )
    world.cluster.connect = connect
    world.controller().turn()
    assert world.names("/api/v1/namespaces/ml/secrets") == {"flights-token"}
    path = f"{PODS}/flights-coordinator-1-1"
    pod = world.server.objects[path]
    assert pod["spec"]["containers"][0]["readinessProbe"]["httpGet"]["port"] == METRICS_PORT
    world.server.objects[path] = {**pod, "status": {"phase": "Running", "podIP": "127.0.0.1"}}
    world.cluster.pods.put(world.server.objects[path])
    world.controller().turn()
    assert asked == [f"https://127.0.0.1:{COORDINATOR_PORT}"]


def test_a_job_that_cannot_encrypt_all_links_is_told(world: World) -> None:
    """Only the operator can see it on a cluster: the pool is another object than the job."""
    world.pools[1]["spec"]["maxUnits"] = 8
    world.edit(lambda job: job["spec"].update(encryption="Required"))
    world.controller().turn()
    condition = world.condition("Planned")
    assert (condition["status"], condition["reason"]) == ("False", "InvalidSpec")
    assert "spec.encryption: must be Disabled, as all-reduce among workers of pool" in condition["message"]
    assert world.names(PODS) == set()


def test_what_was_decided_is_kept_before_it_is_done(world: World) -> None:
    world.controller().turn()
    order = [path for verb, path in world.server.requests if verb == "create"]
    assert order.index(STATE.rpartition("/")[0]) < order.index(PODS)


def test_a_look_without_news_writes_nothing(world: World) -> None:
    controller = world.controller()
    controller.turn()
    controller.turn()  # keeps the processes that the first one started
    world.server.requests.clear()
    controller.turn()
    assert world.writes() == []


def test_what_was_decided_is_told_even_if_it_could_not_be_done_at_once(world: World) -> None:
    controller, create = world.controller(), world.server.create

    def failing(path: str, body: Mapping[str, Any], *, strict: bool = False) -> Json:
        if path == PODS:
            raise ApiError(503, "ServiceUnavailable", "try again")
        return create(path, body, strict=strict)

    world.server.create = failing  # type: ignore[method-assign]
    with pytest.raises(ApiError):
        controller.turn()
    world.server.create = create  # type: ignore[method-assign]
    controller.turn()
    reasons = [item["reason"] for path, item in world.server.objects.items() if "/events/" in path]
    assert reasons == ["ProfilingStarted"]
    assert world.names(PODS) == {"flights-coordinator-1-1"}


def test_a_plan_that_was_written_for_a_state_that_is_lost_is_written_anew(world: World) -> None:
    planned(world)
    world.controller().turn()
    assert "stages" in str(world.server.objects[f"{CONFIGS}/flights-plan-1"]["data"])
    assert world.names(PODS) == {"flights-coordinator-1-1"}


def test_an_outdated_plan_is_deleted_and_another_owner_s_object_of_its_name_is_not(world: World) -> None:
    owner = {"apiVersion": "heterps.io/v1alpha1", "kind": "HeterPSJob", "uid": "uid-1", "controller": True}
    for revision, uid in ((1, "uid-1"), (2, "another")):
        references = {"ownerReferences": [{**owner, "uid": uid}]}
        world.server.put(f"{CONFIGS}/flights-plan-{revision}", data={}, metadata=references)
    deleted = list[tuple[str, str | None]]()
    delete = world.server.delete

    def noting(path: str, *arguments: Any, **options: Any) -> None:
        deleted.append((path.rpartition("/")[2], options.get("uid")))
        delete(path, *arguments, **options)

    world.server.delete = noting  # type: ignore[method-assign]
    pools = {pool["metadata"]["name"]: pool for pool in world.pools}
    plan = JobPlan.from_json(json.loads(json.dumps(PLAN).replace('"gpu"', '"accelerator"')))
    kept = OwnedObjects(world.cluster, ("ml", "flights")).keep_plan(
        world.job, pools, Status(plan_revision=12), plan, tuple(range(1, 13)), policy=defaulted_job().run_policy
    )
    assert kept == tuple(range(3, 13))
    assert deleted == [("flights-plan-1", "uid-flights-plan-1")]
    assert world.names(f"{CONFIGS}/flights-plan") == {"flights-plan-2", "flights-plan-12"}


def test_budgets_follow_the_policy_while_a_job_runs_and_nothing_else_is_written_for_it(world: World) -> None:
    def least() -> list[int]:
        found = sorted((path, item) for path, item in world.server.objects.items() if "/poddisruptionbudgets/" in path)
        return [item["spec"]["minAvailable"] for _, item in found]

    def edit(**policy: Any) -> None:
        world.edit(lambda job: job["spec"]["runPolicy"].update(policy))
        world.now += 60
        controller.turn()

    planned(world)
    controller = world.controller()
    controller.turn()
    assert least() == [1, 1, 2, 1]  # coordinator, servers, two workers of stage 0, one of stage 1
    edit(disruptionBudgets="Disabled")
    assert least() == [0, 0, 0, 0]
    edit(disruptionBudgets="Enabled", cordonPolicy="Stay")
    assert least() == [1, 1, 1, 0]
    world.server.requests.clear()
    edit(backoffLimit=7)
    assert [path for _, path in world.writes() if "poddisruptionbudgets" in path] == []


def test_a_plan_is_not_written_by_an_operator_whose_decision_was_not_kept(world: World) -> None:
    planned(world)
    world.server.refusals["update"] = [ApiError(409, "Conflict", "the object has been modified")]
    with pytest.raises(StateTaken):
        world.controller().turn()
    assert world.server.objects[f"{CONFIGS}/flights-plan-1"]["data"] == {"plan.json": "{}"}


def test_an_operator_that_comes_later_finds_everything_and_makes_nothing_twice(world: World) -> None:
    world.controller().turn()
    world.server.requests.clear()
    world.now += 60
    world.controller(world.make_cluster()).turn()
    assert [path for verb, path in world.writes() if verb == "create" and path == PODS] == []
    assert world.names(PODS) == {"flights-coordinator-1-1"}


def test_two_operators_do_not_both_act(world: World) -> None:
    first, second = world.controller(), world.controller(world.make_cluster())
    first.turn()
    second.turn()
    world.server.objects[f"{PODS}/flights-coordinator-1-1"]["status"] = {"phase": "Failed"}
    for cluster in (world.cluster,):
        cluster.pods.put(world.server.objects[f"{PODS}/flights-coordinator-1-1"])
    with pytest.raises(StateTaken):
        first.turn()
    assert world.names(PODS) == {"flights-coordinator-1-1"}


def test_a_pod_that_was_deleted_while_no_operator_ran_counts_as_an_end(world: World) -> None:
    first = world.controller()
    first.turn()
    first.turn()
    del world.server.objects[f"{PODS}/flights-coordinator-1-1"]
    world.now += 60
    later = world.make_cluster()
    controller = world.controller(later)
    controller.turn()
    assert world.status["phase"] == "Restarting"
    world.now += 60
    controller.turn()
    assert world.names(PODS) == {"flights-coordinator-2-1"}


def test_a_missing_pool_is_named_with_what_there_is(world: World) -> None:
    world.pools = [pool for pool in world.pools if pool["metadata"]["name"] != "accelerator"]
    world.cluster = world.make_cluster()
    controller = world.controller()
    controller.turn()
    assert world.condition("Planned")["reason"] == "PoolNotFound"
    assert "there is no DevicePool accelerator" in world.status["message"]
    assert world.names(PODS) == set()
    waiting = {"namespace": "ml", "job_name": "flights", "reason": "PoolNotFound"}
    assert world.cluster.metrics.registry.get_sample_value("heterps_job_waiting", waiting) == 1
    world.server.requests.clear()
    controller.turn()
    assert world.writes() == []  # reported once


def test_a_pool_that_was_deleted_and_made_anew_is_another_one(world: World) -> None:
    controller = world.controller()
    controller.turn()
    again = copy.deepcopy(world.pools[0])
    again["metadata"]["uid"] = "another"  # its generation is 1 again
    again["spec"] |= {"unitsPerPod": 5, "maxUnits": 4}
    world.cluster.pools.put(again)
    controller.turn()
    assert world.condition("Planned")["reason"] == "InvalidSpec"
    assert again["metadata"]["name"] in world.status["message"]


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        (("checkpoint", "path"), None, "spec.checkpoint.path"),
        (("checkpoint", "path"), "checkpoints", "spec.checkpoint.path"),
        (("data", "train"), "data/train", "spec.data.train"),
        (("image",), None, "spec.image"),
    ],
)
def test_what_pods_cannot_use_is_refused_with_the_field(
    world: World, path: tuple[str, ...], value: str | None, field: str
) -> None:
    def change(job: Json) -> None:
        place = job["spec"]
        for key in path[:-1]:
            place = place[key]
        if value is None:
            place.pop(path[-1], None)
        else:
            place[path[-1]] = value

    world.edit(change)
    world.controller().turn()
    assert world.condition("Planned")["reason"] == "InvalidSpec"
    assert field in world.status["message"]
    assert world.names(PODS) == set()


def test_a_service_of_somebody_else_is_not_taken_over(world: World) -> None:
    world.server.put(SERVICE, apiVersion="v1", kind="Service", spec={"selector": {"app": "theirs"}})
    world.controller().turn()
    assert world.condition("Planned")["reason"] == "NameTaken"
    assert world.server.objects[SERVICE]["spec"] == {"selector": {"app": "theirs"}}


def test_a_job_of_another_manager_is_left_alone(world: World) -> None:
    world.edit(lambda job: job["spec"].__setitem__("managedBy", "example.com/other"))
    assert world.controller().turn() is None
    assert world.writes() == []


def test_a_paused_job_is_not_touched(world: World) -> None:
    world.edit(lambda job: job["spec"].__setitem__("paused", True))
    world.controller().turn()
    assert world.status["phase"] == "Paused"
    assert world.names(PODS) == set()


def test_a_job_that_is_born_suspended_begins_when_it_is_let(world: World) -> None:
    world.edit(lambda job: job["spec"]["runPolicy"].__setitem__("suspend", True))
    controller = world.controller()
    controller.turn()
    assert world.status["phase"] == "Suspended"
    assert world.names(PODS) == set()
    world.edit(lambda job: job["spec"]["runPolicy"].__setitem__("suspend", False))
    for _ in range(3):
        controller.turn()
    assert world.names(PODS) == {"flights-coordinator-2-1"}


def test_a_suspended_job_whose_stages_have_changed_is_planned_anew(world: World) -> None:
    planned(world, "Suspended")
    world.edit(lambda job: job["spec"]["runPolicy"].__setitem__("suspend", True))
    controller = world.controller()
    for _ in range(2):
        controller.turn()
    assert world.status["phase"] == "Suspended"
    assert world.status["plan"]["revision"] == 1

    def change(job: Json) -> None:
        job["spec"]["runPolicy"]["suspend"] = False
        job["spec"]["objective"]["maxCostPerHour"] = "7"

    world.edit(change)
    for _ in range(2):
        controller.turn()
    assert world.status["phase"] == "Profiling"
    kept = world.server.objects[STATE]["data"]["status.json"]
    assert json.loads(kept)["plan"] is None


def test_a_job_of_the_same_name_starts_afresh(world: World) -> None:
    controller = world.controller()
    controller.turn()
    for path in list(world.server.objects):
        del world.server.objects[path]
    world.cluster.pods.remove({"metadata": {"name": "flights-coordinator-1-1", "namespace": "ml"}})
    world.edit(lambda job: job["metadata"].__setitem__("uid", "uid-2"))
    controller.turn()
    [owner] = world.server.objects[f"{PODS}/flights-coordinator-1-1"]["metadata"]["ownerReferences"]
    assert owner["uid"] == "uid-2"


def test_a_job_that_comes_to_a_full_pool_says_so_and_holds_nothing(world: World) -> None:
    limits = {pool["metadata"]["name"]: pool["spec"]["maxUnits"] for pool in world.pools}
    world.cluster.ledger.restore("ml/other", {"cpu": limits["cpu"]})
    controller = world.controller()
    controller.turn()
    assert (world.status["phase"], world.condition("Profiled")["reason"]) == ("Pending", "WaitingForCapacity")
    assert world.names(PODS) == set()
    world.cluster.ledger.release("ml/other")
    controller.turn()
    assert world.names(PODS) == {"flights-coordinator-1-1"}
    assert world.cluster.ledger.held("cpu") == 1


def test_a_deleted_job_gives_its_units_back(world: World) -> None:
    controller = world.controller()
    controller.turn()
    assert world.cluster.ledger.held("cpu") == 1  # for the next profiler
    world.cluster.jobs.remove(world.job)
    assert controller.turn() is None
    assert world.cluster.ledger.held("cpu") == 0


def test_a_refused_request_changes_nothing_and_is_made_again(world: World) -> None:
    controller = world.controller()
    world.server.refusals["create"] = [ApiError(503, "Unavailable", "later")]
    with pytest.raises(ApiError):
        controller.turn()
    for _ in range(3):
        controller.turn()
    assert world.names(PODS) == {"flights-coordinator-1-1"}


def code_of(number: int) -> Json:
    return {"configMap": {"name": f"heterps-code-{number}", "sha256": str(number) * 64}}


@pytest.mark.parametrize(
    ("owners", "labels", "stays"),
    [
        (["uid-1"], code_labels(), False),
        (["uid-1", "uid-2"], code_labels(), True),
        (["uid-2"], code_labels(), True),
        ([], code_labels(), True),
        (["uid-1"], {}, True),
    ],
    ids=["its own", "shared", "another's", "made by hand", "something else"],
)
def test_code_that_a_job_gives_up_is_deleted_when_its_processes_have_ended(
    world: World, owners: list[str], labels: Json, stays: bool
) -> None:
    path = f"{CONFIGS}/heterps-code-1"
    references = [{"kind": "HeterPSJob", "name": "flights", "uid": uid} for uid in owners]
    world.server.put(path, metadata={"labels": labels, "ownerReferences": references})
    world.edit(lambda job: job["spec"].update(code=code_of(1), runPolicy={**job["spec"]["runPolicy"], "suspend": True}))
    controller = world.controller()
    controller.turn()
    assert world.status["phase"] == "Suspended"
    assert path in world.server.objects
    world.edit(lambda job: job["spec"].update(code=code_of(2)))
    controller.turn()
    assert (path in world.server.objects) == stays
    run = json.loads(world.server.objects[f"{CONFIGS}/flights-run"]["data"]["run.json"])
    assert run["job"]["spec"]["code"] == code_of(2)


def test_code_stays_while_a_process_may_start_with_it(world: World) -> None:
    path = f"{CONFIGS}/heterps-code-1"
    world.server.put(path, metadata={"labels": code_labels(), "ownerReferences": [{"uid": "uid-1"}]})
    world.edit(lambda job: job["spec"].update(code=code_of(1)))
    controller = world.controller()
    controller.turn()
    world.edit(lambda job: job["spec"].update(code=code_of(2)))
    controller.turn()
    run = json.loads(world.server.objects[f"{CONFIGS}/flights-run"]["data"]["run.json"])
    assert run["job"]["spec"]["code"] == code_of(2)
    assert path in world.server.objects
