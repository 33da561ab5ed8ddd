"""The chart grants what the operator does, and nothing else.

An in-memory API server notes each request. The life of a job uses every verb of the chart's rules: the test fails if
the rules lack a verb that is used, and if they have one that is not.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from heterps_operator.controller.capacity.pool_file import PoolFile
from heterps_operator.controller.jobs.owned_objects import OwnedObjects
from heterps_operator.controller.lease import Lease
from heterps_operator.controller.pools import PoolKeeper
from heterps_operator.controller.recorder import ProblemRecorder
from heterps_operator.controller.stores.devices import DeviceStores
from heterps_operator.controller.supervisor import Supervisor
from heterps_operator.kubernetes.api import ApiError
from heterps_operator.kubernetes.building.workloads import LABEL_PRIORITY
from heterps_operator.kubernetes.names import object_path, workload_path
from heterps_operator.kubernetes.queue import KueueQueue
from heterps_operator.kubernetes.reading.complaints import Complaint
from heterps_operator.kubernetes.reading.processes import process_of
from heterps_operator.kubernetes.reading.readable import NODE
from heterps_operator.kubernetes.requests import resource_of
from heterps_operator.state.status import Event, Status
from heterps_operator.state.values import ProcessSpec, ReclaimQuota, RequestQuota, ReturnQuota
from heterps_runtime.contract import Role
from tests.heterps_operator.helpers.documents import condition, waiting
from tests.heterps_operator.helpers.fake_server import FakeServer
from tests.heterps_operator.helpers.job_world import PODS
from tests.heterps_operator.helpers.life import Life
from tests.heterps_operator.helpers.world import defaulted_job

ROOT = Path(__file__).parents[3]
HELPERS = ROOT / "helm" / "heterps" / "templates" / "_helpers.tpl"
ROLES = HELPERS.with_name("roles.yaml")
Rights = set[tuple[str, str]]

# kopf's watches list and watch (controller/watches.py), the reflector lists.
WATCHED = {(verb, kind) for verb in ("list", "watch") for kind in ("heterpsjobs", "pods")}
WATCHED_IN_THE_CLUSTER = {(verb, kind) for verb in ("list", "watch") for kind in ("devicepools", "nodes")}
WATCHED_DEVICES = {("watch", kind) for kind in ("deviceclasses", "resourceslices", "resourceclaims")}
# For the API server's admission plug-in, which asks for it where an object's owner reference blocks its deletion.
FOR_ADMISSION = {("update", "heterpsjobs/finalizers")}
VERBS = {"apply": ("create", "patch")}  # server-side apply needs both


def granted(*names: str) -> Rights:
    """Return the rights in helpers of the chart."""
    found: Rights = set()
    text = HELPERS.read_text()
    for name in names:
        [rules] = re.findall(rf'define "heterps\.{name}" -}}}}\n(.*?){{{{- end }}}}', text, re.S)
        for rule in yaml.safe_load(rules):
            found |= {(verb, resource) for verb in rule["verbs"] for resource in rule["resources"]}
    return found


def rules_of(role: str) -> Rights:
    """Return the rights of a role of the chart, by the end of its name."""
    [rules] = re.findall(rf"-{role}\n.*?rules:\n(.*?)---", ROLES.read_text(), re.S)
    return {
        (verb, resource) for rule in yaml.safe_load(rules) for verb in rule["verbs"] for resource in rule["resources"]
    }


def used(server: FakeServer) -> Rights:
    found: Rights = set()
    for verb, path in server.requests:
        parts = path.split("?")[0]
        resource = resource_of(parts if verb not in ("create", "list") else f"{parts}/x")
        # Status is a part of an object that exists.
        verbs = ("patch",) if verb == "apply" and resource.endswith("/status") else VERBS.get(verb, (verb,))
        found |= {(each, resource) for each in verbs}
    return found


@pytest.fixture
def life(tmp_path: Path) -> Life:
    return Life(tmp_path)


@pytest.mark.parametrize("in_namespaces_only", [False, True])
def test_every_verb_is_used_and_every_use_is_granted(
    life: Life, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, in_namespaces_only: bool
) -> None:
    if in_namespaces_only:
        (tmp_path / "pools.yaml").write_text(json.dumps(life.pools[0]))
        life.cluster.pool_file = PoolFile(tmp_path / "pools.yaml")

    def log_tail(namespace: str, pod: str, lines: int, container: str = "") -> tuple[str, ...]:
        life.server.requests.append(("get", f"/api/v1/namespaces/{namespace}/pods/{pod}/log"))
        return ()

    monkeypatch.setattr(life.server, "log_tail", log_tail)
    policy = {"gang": "Volcano", "queue": "default"}
    life.edit(lambda job: job["spec"]["runPolicy"].update(schedulingPolicy=policy, ttlSecondsAfterFinished=0))
    # A name that is taken, and a pod that is being prepared: its events are read.
    create, conflicts = life.server.create, [1]

    def conflicting(path: str, body: Mapping[str, Any], *, strict: bool = False) -> dict[str, Any]:
        made = create(path, body, strict=strict)
        if path == PODS and conflicts:  # the answer to an earlier attempt was lost
            conflicts.clear()
            raise ApiError(409, "AlreadyExists", "it is there")
        return made

    monkeypatch.setattr(life.server, "create", conflicting)
    life.train()
    [path] = [path for path, item in life.server.objects.items() if item is life.pods()["worker-0-0"]]
    life._set(
        path,
        {
            "phase": "Pending",
            "conditions": [condition("PodScheduled", "True")],
            "containerStatuses": waiting("ContainerCreating"),
        },
    )
    life.now += 200
    life.operator.turn()
    assert process_of(life.server.objects[path]).name == "worker-0-0"
    # A process that fails, the same event twice, old plans, and the pools' status.
    life.end("worker-0-0", 1)
    life.settle()
    life.end("coordinator", 1)  # all others are deleted
    life.settle()
    publisher = life.operator._publisher
    assert publisher is not None
    for _ in range(2):
        publisher.record(Event("Normal", "Same", "again", life.now))
    pools = {pool["metadata"]["name"]: pool for pool in life.pools}
    session = life.operator._session
    assert session is not None
    plan = session.status.plan
    assert plan is not None
    owned = OwnedObjects(life.cluster, ("ml", "flights"))
    for revision in (1, 12):
        status = Status(plan_revision=revision, incarnation=1)
        owned.keep_plan(life.job, pools, status, plan, tuple(range(1, 13)), policy=defaulted_job().run_policy)
    keeper = PoolKeeper(life.cluster, ProblemRecorder(life.server, life.cluster.clock), lambda: None)
    keeper.refresh()
    keeper.read_prices()
    assert life.cluster.pools.all()
    for pool in life.cluster.pools.all():
        life.server.put(f"{object_path(pool)}/status", **pool)  # the answer is the whole pool
        keeper._publish(pool)
    _queue_up(life, pools, with_priorities=not in_namespaces_only)
    # Its end, after which it is deleted.
    for _ in range(30):
        life.go_on()
        if life.coordinator is not None and life.coordinator.phase == "Training":
            life.coordinator.phase = "Succeeded"
        life.settle()
        life.now += 60
    found, allowed = used(life.server) | WATCHED | FOR_ADMISSION, granted("jobRules")
    if not in_namespaces_only:
        found, allowed = found | WATCHED_IN_THE_CLUSTER, allowed | granted("clusterRules")
    assert found - allowed == set(), "done without the right to"
    assert allowed - found == set(), "granted, and not used"


def _queue_up(life: Life, pools: Mapping[str, Any], *, with_priorities: bool) -> None:
    """Everything that a job in a queue of Kueue asks the API server for; priority classes belong to the cluster."""
    metadata = {**life.job["metadata"], "labels": {LABEL_PRIORITY: "urgent"} if with_priorities else {}}
    policy = {"gang": "Kueue", "queue": "ads", **({"priorityClassName": "high"} if with_priorities else {})}
    job = {**life.job, "metadata": metadata, "spec": {**life.job["spec"], "runPolicy": {"schedulingPolicy": policy}}}
    workers = tuple(ProcessSpec(f"worker-0-{i}", Role.WORKER, "cpu", 1, stage=0, index=i) for i in range(2))
    for one in (job, {**job, "metadata": {**metadata, "labels": {}}}):
        queue = KueueQueue(life.server, one, pools)
        queue.carry_out(RequestQuota("plan-1", workers))
        queue.carry_out(RequestQuota("plan-1", workers))  # as if the first answer had been lost
        [request] = queue.requests()
        path = workload_path("ml", "flights", request.name)
        life.server.put(f"{path}/status")
        queue.carry_out(ReclaimQuota("plan-1", frozenset({"worker-0-1"})))
        queue.carry_out(ReturnQuota("plan-1"))
        del life.server.objects[f"{path}/status"]


def test_the_lease_needs_what_its_role_grants(life: Life) -> None:
    for _ in range(2):  # it is created, then renewed
        assert Lease(life.server, "heterps-system", "heterps-operator", "first").try_once()
    assert used(life.server) == granted("leaseRules")


def test_events_about_objects_of_the_cluster_need_what_their_role_grants(life: Life) -> None:
    for _ in range(2):  # the second operator finds the event of the first one
        recorder = ProblemRecorder(life.server, life.cluster.clock, 0.0)
        recorder.tell(NODE, {"metadata": {"name": "a"}}, Complaint("Unreadable", "this"))
        recorder.close()
        recorder.run(threading.Event())
    assert all("/namespaces/default/" in path for _, path in life.server.requests)
    assert used(life.server) == rules_of("events")


def test_device_classes_need_what_their_rules_grant(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only with dynamicResourceAllocation.enabled: reading the claims of all namespaces is no small right."""
    spec = life.pools[1]["spec"]
    del spec["resourceName"]
    spec["deviceClassName"] = "gpu.example.com"
    life.cluster = life.make_cluster()
    life.cluster.devices = DeviceStores()
    life.operator = life.controller()
    life.train()
    monkeypatch.setattr(life.server, "each", lambda path, label_selector="": life.server.list(path)[0])
    Supervisor(life.cluster).reflector.synchronize()
    of_devices = {right for right in used(life.server) if right[1].startswith(("deviceclass", "resource"))}
    needed = of_devices | WATCHED_DEVICES
    assert needed == granted("deviceJobRules") | granted("deviceClusterRules")
    assert needed.isdisjoint(granted("jobRules", "clusterRules"))


@pytest.mark.parametrize("name", ["clusterrole.yaml", "roles.yaml"])
def test_rights_on_devices_are_granted_only_where_they_are_asked_for(name: str) -> None:
    lines = [line.strip() for line in HELPERS.with_name(name).read_text().splitlines()]
    places = [number for number, line in enumerate(lines) if "heterps.device" in line]
    assert len(places) == {"clusterrole.yaml": 3, "roles.yaml": 1}[name]
    for number in places:
        assert "Values.dynamicResourceAllocation.enabled" in lines[number - 1]
        assert lines[number + 1] == "{{- end }}"


def test_no_other_group_of_events_is_needed() -> None:
    text = HELPERS.read_text()
    assert "events.k8s.io" not in text
    assert "*" not in re.sub(r"{{.*?}}", "", text).replace("/*", "").replace("*/", "")


def test_prices_are_read_by_the_names_that_the_chart_lists() -> None:
    """The operator's namespace may hold ConfigMaps of others."""
    role = re.findall(r"-prices\n.*?rules:\n(.*?)---", ROLES.read_text(), re.S)[0]
    rule = yaml.safe_load(role.replace("{{ toJson . }}", '["heterps-prices"]'))
    assert rule == [
        {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["heterps-prices"], "verbs": ["get"]}
    ]


def test_a_secret_is_only_read_by_its_name_and_created() -> None:
    rights = granted("jobRules", "clusterRules")
    assert {verb for verb, resource in rights if resource == "secrets"} == {"get", "create"}
