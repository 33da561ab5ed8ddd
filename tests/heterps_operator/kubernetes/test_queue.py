"""A job's Workloads: what Kueue is told, what is read from it, and what happens if it refuses or is not there."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from heterps_operator.kubernetes.api import ApiError
from heterps_operator.kubernetes.building.workloads import Priority, build_workload
from heterps_operator.kubernetes.names import workload_path, workloads_path
from heterps_operator.kubernetes.queue import KueueQueue
from heterps_operator.kubernetes.reading.workloads import read_request, reclaimable_pods
from heterps_operator.state.values import ProcessSpec, QuotaRequest, ReclaimQuota, RequestQuota, ReturnQuota
from heterps_runtime.contract import Role
from tests.heterps_operator.helpers.documents import COORDINATOR, POOLS, make_job
from tests.heterps_operator.helpers.job_world import Server

Json = dict[str, Any]

QUEUE = {"gang": "Kueue", "queue": "ads", "priorityClassName": "high"}
JOB = make_job(runPolicy={"schedulingPolicy": QUEUE})
WORKERS = tuple(ProcessSpec(f"worker-0-{index}", Role.WORKER, "cpu", 4, stage=0, index=index) for index in range(3))
SERVERS = tuple(ProcessSpec(f"ps-{index}", Role.PS, "cpu", units, index=index) for index, units in enumerate((1, 1, 0)))
REQUEST = RequestQuota("plan-1", (COORDINATOR, *SERVERS, *WORKERS))
NAMES = frozenset(process.name for process in REQUEST.processes)
PLACE = workloads_path("ml")
PATH = workload_path("ml", "flights", "plan-1")


def workload(**status: Any) -> Json:
    item = build_workload(JOB, POOLS, REQUEST, None)
    return {**item, "status": status}


def condition(kind: str, status: str, message: str = "") -> Json:
    return {"type": kind, "status": status, "reason": "x", "message": message}


class World:
    """One job's queue on an in-memory API server."""

    def __init__(self, job: Json = JOB) -> None:
        self.server, self.now = Server(), 0.0
        self.queue = KueueQueue(self.server, job, POOLS, monotonic=lambda: self.now)

    def found(self) -> list[QuotaRequest]:
        return list(self.queue.requests())


@pytest.fixture
def world() -> World:
    return World()


# --- what Kueue is told -----------------------------------------------------------------------------------------------


def test_a_pod_set_holds_pods_that_are_alike() -> None:
    item = build_workload(JOB, POOLS, REQUEST, Priority("high", "scheduling.k8s.io/priorityclass", 1000))
    assert (item["spec"]["queueName"], item["spec"]["active"]) == ("ads", True)
    assert {key: value for key, value in item["spec"].items() if key.startswith("priority")} == {
        "priorityClassName": "high", "priorityClassSource": "scheduling.k8s.io/priorityclass", "priority": 1000,
    }  # fmt: skip
    assert [(each["name"], each["count"]) for each in item["spec"]["podSets"]] == [
        ("coordinator", 1), ("ps-1", 2), ("ps-0", 1), ("stage-0", 3),
    ]  # fmt: skip
    [container] = item["spec"]["podSets"][3]["template"]["spec"]["containers"]
    assert container["resources"]["requests"]["cpu"] == "4"
    [owner] = item["metadata"]["ownerReferences"]
    assert (owner["uid"], item["metadata"]["labels"]["kueue.x-k8s.io/job-uid"]) == (JOB["metadata"]["uid"],) * 2


def test_a_request_that_is_not_to_be_considered_says_so() -> None:
    assert build_workload(JOB, POOLS, RequestQuota("plan-2", WORKERS, active=False), None)["spec"]["active"] is False


# --- what is read -----------------------------------------------------------------------------------------------------


def test_a_workload_waits_is_admitted_and_is_evicted() -> None:
    waiting = workload(conditions=[condition("QuotaReserved", "False", "2 more cpu needed")])
    assert read_request("flights", waiting) == QuotaRequest("plan-1", NAMES, message="2 more cpu needed")
    conditions = [condition("QuotaReserved", "True"), condition("Admitted", "True")]
    admitted = read_request("flights", workload(conditions=conditions))
    assert (admitted.reserved, admitted.admitted, admitted.grants) == (True, True, True)
    conditions.append(condition("Evicted", "True", "Preempted to accommodate another"))
    evicted = read_request("flights", workload(conditions=conditions))
    assert (evicted.evicted, evicted.grants, evicted.message) == (True, False, "Preempted to accommodate another")
    again = [condition("QuotaReserved", "False", "it waits"), condition("Evicted", "True", "Preempted")]
    assert read_request("flights", workload(conditions=again)) == QuotaRequest("plan-1", NAMES, message="it waits")


def test_an_inactive_workload_says_who_has_to_act() -> None:
    item = workload()
    item["spec"]["active"] = False
    found = read_request("flights", item)
    assert found.inactive
    assert "spec.active" in found.message


def test_reclaimed_pods_are_the_last_of_their_set() -> None:
    item = workload()
    assert reclaimable_pods(item, frozenset({"worker-0-0"})) == []
    assert reclaimable_pods(item, frozenset({"worker-0-2", "ps-1"})) == [
        {"name": "ps-1", "count": 1}, {"name": "stage-0", "count": 1},
    ]  # fmt: skip
    item["status"] = {"reclaimablePods": [{"name": "stage-0", "count": 1}]}
    assert read_request("flights", item).processes == NAMES - {"worker-0-2"}
    assert reclaimable_pods(item, frozenset({"worker-0-1"})) == [{"name": "stage-0", "count": 2}]


@pytest.mark.parametrize(
    "annotations",
    [
        {},
        {"heterps.io/processes": "["},
        {"heterps.io/processes": "[1]"},
        {"heterps.io/processes": '{"stage-0":7}'},
        {"heterps.io/processes": '{"stage-0":["ps-0"]}'},
        {"heterps.io/processes": "[" * 100_000},
    ],
)
def test_an_edited_annotation_covers_nothing(annotations: Json) -> None:
    item = workload()
    item["metadata"]["annotations"] = {"heterps.io/request": "plan-1", **annotations}
    assert read_request("flights", item) == QuotaRequest("plan-1")
    item["metadata"]["annotations"]["heterps.io/request"] = "plan-9"
    assert read_request("flights", item).name == ""


# --- making, changing, withdrawing ------------------------------------------------------------------------------------


def test_a_request_is_made_once_changed_and_withdrawn(world: World) -> None:
    assert world.found() == []
    world.queue.carry_out(REQUEST)
    assert world.found() == [QuotaRequest("plan-1", NAMES)]
    world.server.objects[f"{PATH}/status"] = world.server.objects[PATH]
    world.queue.carry_out(ReclaimQuota("plan-1", frozenset({"worker-0-2"})))
    assert world.server.objects[f"{PATH}/status"]["status"]["reclaimablePods"] == [{"name": "stage-0", "count": 1}]
    world.queue.carry_out(ReturnQuota("plan-1"))
    assert PATH not in world.server.objects
    world.queue.carry_out(ReturnQuota("plan-1"))
    world.queue.carry_out(ReclaimQuota("plan-1", frozenset({"worker-0-2"})))


def test_a_request_takes_the_place_of_an_earlier_one(world: World) -> None:
    world.queue.carry_out(REQUEST)
    world.found()
    world.queue.carry_out(RequestQuota("plan-1", WORKERS, active=False))
    [found] = world.found()
    assert (found.processes, found.inactive) == (frozenset(process.name for process in WORKERS), True)


def test_workloads_of_others_are_left_alone(world: World) -> None:
    world.queue.carry_out(REQUEST)
    other = copy.deepcopy(world.server.objects[PATH])
    other["metadata"]["ownerReferences"][0]["uid"] = "an earlier job of this name"
    world.server.objects[PATH] = other
    assert world.found() == []
    world.queue.carry_out(REQUEST)
    [refused] = world.found()
    assert not refused.admitted
    assert "flights-plan-1" in refused.message
    assert world.server.objects[PATH] == other


def test_an_unreadable_workload_is_withdrawn_by_its_name(world: World) -> None:
    world.queue.carry_out(REQUEST)
    world.server.objects[PATH]["metadata"]["annotations"] = {}
    [found] = world.found()
    assert found == QuotaRequest("flights-plan-1")
    world.queue.carry_out(ReturnQuota(found.name))
    assert PATH not in world.server.objects


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ApiError(404, "NotFound", "the server could not find the requested resource"), "install Kueue"),
        (ApiError(422, "Invalid", "spec.podSets: Too many: 9"), "spec.podSets: Too many: 9"),
    ],
)
def test_a_refusal_is_told_and_tried_again(world: World, error: ApiError, told: str) -> None:
    world.server.refusals["create"] = [error]
    world.queue.carry_out(REQUEST)
    [refused] = world.found()
    assert (refused.processes, refused.reserved) == (NAMES, False)
    assert told in refused.message
    world.now = 6
    assert world.found() == []
    world.queue.carry_out(REQUEST)
    assert world.found() == [QuotaRequest("plan-1", NAMES)]


def test_a_kueue_that_is_removed_stops_no_job(world: World) -> None:
    world.queue.carry_out(REQUEST)
    before = world.found()
    world.server.refusals["list"] = [ApiError(404, "NotFound", "no such resource")]
    assert world.found() == before


def test_an_api_server_that_fails_is_no_answer(world: World) -> None:
    for verb in ("list", "create"):
        world.server.refusals[verb] = [ApiError(500, "InternalError", "etcd")]
    with pytest.raises(ApiError):
        world.queue.requests()
    with pytest.raises(ApiError):
        world.queue.carry_out(REQUEST)


# --- priorities -------------------------------------------------------------------------------------------------------


def test_the_label_of_a_workload_priority_class_goes_before_the_pods_class() -> None:
    job = {**JOB, "metadata": {**JOB["metadata"], "labels": {"kueue.x-k8s.io/priority-class": "urgent"}}}
    classes = {
        "/apis/scheduling.k8s.io/v1/priorityclasses/high": 1000,
        "/apis/kueue.x-k8s.io/v1beta1/workloadpriorityclasses/urgent": 7,
    }
    found = []
    for one in (JOB, job, make_job(runPolicy={"schedulingPolicy": {"gang": "Kueue", "queue": "ads"}})):
        world = World(one)
        for path, value in classes.items():
            world.server.put(path, value=value)
        world.queue.carry_out(REQUEST)
        spec = world.server.objects[PATH]["spec"]
        found.append((spec.get("priorityClassName"), spec.get("priorityClassSource"), spec.get("priority")))
    assert found == [
        ("high", "scheduling.k8s.io/priorityclass", 1000),
        ("urgent", "kueue.x-k8s.io/workloadpriorityclass", 7),
        (None, None, None),
    ]
