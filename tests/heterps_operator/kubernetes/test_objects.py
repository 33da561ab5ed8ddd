"""The objects of a job other than pods."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from heterps_operator.kubernetes.building import objects
from heterps_operator.kubernetes.names import object_path
from heterps_operator.state.plan import JobPlan
from heterps_runtime.contract import ServersDocument, StageDocument
from tests.heterps_operator.helpers.documents import (
    CPU_WORKER,
    POOLS,
    SERVER,
    SPECS,
    Json,
    container_of,
    make_job,
    of_pool,
    pod_of,
)
from tests.heterps_operator.helpers.structure import check
from tests.heterps_operator.helpers.world import defaulted_job

FIXTURES = Path(__file__).parents[2] / "fixtures" / "v1" / "operator"
PLAN = JobPlan(
    document={},
    method="optimal",
    stages=(
        StageDocument("stage-0", "cpu", 0, 2, ("a", "b", "c"), 12, 3),
        StageDocument("stage-1", "v100", 3, 4, ("d", "e"), 1, 1),
    ),
    servers=ServersDocument("cpu", 2, 3),
)

MOVES = defaulted_job().run_policy
STAYS = replace(MOVES, cordon_policy="Stay")


def all_objects() -> list[Json]:
    job = make_job()
    return [
        objects.service(job),
        objects.run_config(job, {"version": 1, "job": job, "pools": []}),
        objects.token_secret(job, "secret"),
        objects.plan_config(job, 3, {"version": 1}),
        objects.network_policy(job, "heterps-system", ()),
        *objects.disruption_budgets(job, PLAN, MOVES),
    ]


@pytest.mark.parametrize("item", all_objects(), ids=lambda item: f"{item['kind']}-{item['metadata']['name']}")
def test_every_object_is_of_its_kind_and_belongs_to_the_job(item: Json) -> None:
    check(item)
    assert item["metadata"]["namespace"] == "ml"
    assert item["metadata"]["labels"]["heterps.io/job"] == "flights"
    assert item["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "heterps"
    assert [owner["uid"] for owner in item["metadata"]["ownerReferences"]] == [make_job()["metadata"]["uid"]]
    assert object_path(item).endswith(f"/namespaces/ml/{object_path(item).split('/')[-2]}/{item['metadata']['name']}")


@pytest.mark.parametrize(("encryption", "scheme"), [("Disabled", "http"), ("Required", "https")])
def test_ports_of_the_service_say_their_protocol(encryption: str, scheme: str) -> None:
    """As meshes read it: the start of the name, or appProtocol."""
    job = make_job()
    job["spec"]["encryption"] = encryption
    ports = objects.service(job)["spec"]["ports"]
    assert [(port["name"], port["port"], port.get("appProtocol")) for port in ports] == [
        (scheme, 7400, scheme),
        ("http-metrics", 7401, "http"),
        ("tcp-messages", 7402, None),
        ("tcp-rendezvous", 7403, None),
    ]
    declared = {port["name"] for spec in SPECS for port in container_of(pod_of(spec, job)).get("ports", ())}
    assert declared == {port["name"] for port in ports}


def test_the_service_is_headless_and_names_pods_before_they_are_ready() -> None:
    spec = objects.service(make_job())["spec"]
    assert spec["clusterIP"] == "None"
    assert spec["publishNotReadyAddresses"] is True
    assert spec["selector"].items() <= pod_of(CPU_WORKER)["metadata"]["labels"].items()


def test_configurations_are_read_back_as_they_were() -> None:
    job = make_job()
    document = {"version": 1, "nested": {"b": [1, 2.5, None]}}
    assert json.loads(objects.run_config(job, document)["data"]["run.json"]) == document
    plan = objects.plan_config(job, 12, document)
    assert plan["metadata"]["name"] == "flights-plan-12"
    assert plan["immutable"] is True
    assert json.loads(plan["data"]["plan.json"]) == document
    assert base64.b64decode(objects.token_secret(job, "s3cret")["data"]["token"]) == b"s3cret"


@pytest.mark.parametrize(
    ("revisions", "outdated"),
    [((), ()), (tuple(range(1, 11)), ()), (tuple(range(1, 14)), (1, 2, 3)), ((20, 3, 3, *range(4, 13)), (3,))],
)
def test_the_ten_newest_plans_are_kept(revisions: tuple[int, ...], outdated: tuple[int, ...]) -> None:
    assert objects.outdated_plans(revisions) == outdated


def test_no_pod_of_a_job_that_moves_by_itself_may_be_evicted() -> None:
    built = objects.disruption_budgets(make_job(), PLAN, MOVES)
    assert [item["spec"]["minAvailable"] for item in built] == [1, 2, 3, 1]


def test_budgets_of_a_job_that_stays_protect_servers_and_let_one_worker_of_a_stage_go() -> None:
    built = objects.disruption_budgets(make_job(), PLAN, STAYS)
    budgets = {item["metadata"]["name"]: item["spec"] for item in built}
    assert {name: spec["minAvailable"] for name, spec in budgets.items()} == {
        "flights-coordinator": 1,
        "flights-ps": 2,
        "flights-stage-0": 2,  # of three workers
        "flights-stage-1": 0,  # of one: in place of a budget for more that an earlier plan had
    }
    server, worker = (pod_of(spec)["metadata"]["labels"].items() for spec in (SERVER, CPU_WORKER))
    assert budgets["flights-ps"]["selector"]["matchLabels"].items() <= server
    assert budgets["flights-stage-0"]["selector"]["matchLabels"].items() <= worker
    assert not budgets["flights-ps"]["selector"]["matchLabels"].items() <= worker


def test_budgets_that_are_disabled_take_the_place_of_those_that_protected() -> None:
    policies = (MOVES, replace(MOVES, disruption_budgets="Disabled"))
    enabled, disabled = (objects.disruption_budgets(make_job(), PLAN, policy) for policy in policies)
    assert [item["metadata"] for item in disabled] == [item["metadata"] for item in enabled]
    assert {item["spec"]["minAvailable"] for item in disabled} == {0}


def test_only_the_job_the_operator_and_prometheus_reach_a_job() -> None:
    prometheus = {"namespaceSelector": {"matchLabels": {"team": "monitoring"}}}
    spec = objects.network_policy(make_job(), "heterps-system", [prometheus])["spec"]
    assert spec["policyTypes"] == ["Ingress"]
    operator = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "heterps-system"}}}
    assert spec["ingress"] == [
        {"from": [{"podSelector": {"matchLabels": {"heterps.io/job": "flights"}}}]},
        {"from": [operator], "ports": [{"protocol": "TCP", "port": 7400}]},
        {"from": [prometheus], "ports": [{"protocol": "TCP", "port": 7401}]},
    ]
    everyone = objects.network_policy(make_job(), "heterps-system", ())["spec"]["ingress"][-1]
    assert everyone == {"ports": [{"protocol": "TCP", "port": 7401}]}


def gang_job(gang: str, **more: Any) -> Json:
    return make_job(runPolicy={"schedulingPolicy": {"gang": gang, **more}})


@pytest.mark.parametrize("gang", ["None", "Kueue"])
def test_no_group_where_none_is_asked_for(gang: str) -> None:
    assert objects.pod_groups(gang_job(gang), PLAN, 1, POOLS) == ()
    assert objects.pod_groups(make_job(), PLAN, 1, POOLS) == ()


def test_a_group_counts_the_members_of_the_plan_and_what_they_request() -> None:
    [group] = objects.pod_groups(gang_job("Volcano", queue="ads", priorityClassName="high"), PLAN, 2, POOLS)
    assert object_path(group) == "/apis/scheduling.volcano.sh/v1beta1/namespaces/ml/podgroups/flights-2"
    assert group["spec"] == {
        "minMember": 6,  # two servers, three and one worker
        "minResources": {"cpu": "16", "memory": "17179869184", "nvidia.com/gpu": "1"},  # 3 + 12 + 1 cores, 2 x 8 Gi
        "queue": "ads",
        "priorityClassName": "high",
    }
    [group] = objects.pod_groups(gang_job("Coscheduling", queue="ads"), PLAN, 1, POOLS)
    assert group["apiVersion"] == "scheduling.x-k8s.io/v1alpha1"
    assert group["spec"].keys() == {"minMember", "minResources"}
    pod = pod_of(SERVER, gang_job("Coscheduling"))
    assert pod["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] == group["metadata"]["name"]


def test_a_group_counts_what_templates_add() -> None:
    container = {"name": "heterps", "resources": {"requests": {"memory": "500M", "cpu": "bad"}}}
    sidecar = {"name": "proxy", "resources": {"limits": {"cpu": "100m"}}}
    job = gang_job("Volcano")
    of_pool(job, "cpu", {"spec": {"containers": [container, sidecar, "stray"]}})
    [group] = objects.pod_groups(job, PLAN, 1, POOLS)
    assert group["spec"]["minResources"]["cpu"] == "16500m"  # two servers and three workers have a sidecar
    assert group["spec"]["minResources"]["memory"] == str(2 * 8 * 2**30 + 3 * 500 * 10**6)


@pytest.mark.parametrize("text", ["[" * 10_000, "[]", "x", '{"stages": 1}', '{"costPerHour": 1' + "0" * 400 + "}"])
def test_a_damaged_plan_is_not_the_same_plan(text: str) -> None:
    job, document = make_job(), json.loads((FIXTURES / "plan.json").read_text())["plan.json"]
    item = objects.plan_config(job, 1, json.loads(document))
    assert objects.is_same_plan(item, item)
    assert not objects.is_same_plan({"data": {"plan.json": text}}, item)
