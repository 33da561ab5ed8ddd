"""Claims of devices: the template of a job, and what its pods claim and occupy."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from heterps_operator.controller.stores.pods import PodStore
from heterps_operator.kubernetes.building.objects import claim_templates
from heterps_operator.kubernetes.building.pods import build_pod
from heterps_operator.kubernetes.names import claim_template_name, object_path
from heterps_operator.kubernetes.reading.claims import ORPHANED, Charge, device_resource
from heterps_operator.kubernetes.reading.complaints import pod_complaint
from heterps_operator.kubernetes.reading.pools import unit_resource
from heterps_operator.state.values import ProcessSpec
from heterps_runtime.contract import Role
from tests.heterps_operator.helpers.devices import CLASS, PROCESS, card_pool, claiming_pod
from tests.heterps_operator.helpers.documents import COORDINATOR, POOLS, container_of, make_job
from tests.heterps_operator.helpers.structure import check

Json = dict[str, Any]

TEMPLATE = claim_template_name("flights", "card", CLASS)


def pod_of(spec: ProcessSpec, pool: Json | None = None, **job: Any) -> Json:
    pool = card_pool() if pool is None else pool
    jobs_pools = [{"name": "card", **job.pop("entry", {})}]
    coordinator = None if spec.role == "coordinator" else "http://10.0.0.1:7400"
    return build_pod(make_job(pools=jobs_pools, **job), pool, spec, coordinator=coordinator)


def test_a_job_has_a_template_for_each_pool_with_a_device_class() -> None:
    pools = [POOLS["cpu"], card_pool(), card_pool("spare")]
    first, second = claim_templates(make_job(), pools)
    check(first)
    assert object_path(first) == f"/apis/resource.k8s.io/v1/namespaces/ml/resourceclaimtemplates/{TEMPLATE}"
    assert second["metadata"]["name"] == claim_template_name("flights", "spare", CLASS)
    assert first["metadata"]["ownerReferences"][0]["uid"] == make_job()["metadata"]["uid"]
    assert first["spec"] == {"spec": {"devices": {"requests": [
        {"name": "unit", "exactly": {"deviceClassName": CLASS, "allocationMode": "ExactCount", "count": 1}}
    ]}}}  # fmt: skip


def test_another_class_of_a_pool_has_another_template_as_templates_cannot_be_changed() -> None:
    assert len({claim_template_name("a" * 40, "p" * 63, CLASS), claim_template_name("a" * 40, "p" * 63, "x")}) == 2
    assert len(claim_template_name("a" * 40, "p" * 63, CLASS)) <= 63


@pytest.mark.parametrize("role", [Role.WORKER, Role.PROFILE])
def test_a_pod_claims_its_unit_instead_of_requesting_a_resource(role: Role) -> None:
    pod = pod_of(ProcessSpec("p-0", role, "card", 1))
    check(pod)
    assert pod["spec"]["resourceClaims"] == [{"name": "heterps-unit-0", "resourceClaimTemplateName": TEMPLATE}]
    resources = container_of(pod)["resources"]
    assert resources["claims"] == [{"name": "heterps-unit-0"}]
    assert resources["requests"] == {"cpu": "1"}
    assert "limits" not in resources


def test_each_unit_is_a_claim_and_a_process_without_units_claims_nothing() -> None:
    server = pod_of(ProcessSpec("ps-0", Role.PS, "card", 2))
    assert [claim["name"] for claim in container_of(server)["resources"]["claims"]] == [
        "heterps-unit-0", "heterps-unit-1"
    ]  # fmt: skip
    coordinator = build_pod(make_job(), None, COORDINATOR, coordinator=None)
    for pod in (pod_of(ProcessSpec("ps-0", Role.PS, "card", 0)), coordinator):
        assert "resourceClaims" not in pod["spec"]
        assert "claims" not in container_of(pod)["resources"]


def test_a_template_of_the_user_may_add_claims_and_not_replace_those_of_units() -> None:
    mine = [{"name": "nic", "resourceClaimName": "nic"}, {"name": "heterps-unit-0", "resourceClaimName": "stolen"}]
    container = {"name": "heterps", "resources": {"claims": [{"name": "nic"}, {"name": "heterps-unit-0"}]}}
    template = {"spec": {"resourceClaims": mine, "containers": [container]}}
    pod = pod_of(PROCESS, entry={"podTemplate": template})
    assert pod["spec"]["resourceClaims"] == [
        mine[0], {"name": "heterps-unit-0", "resourceClaimTemplateName": TEMPLATE}
    ]  # fmt: skip
    assert container_of(pod)["resources"]["claims"] == [{"name": "nic"}, {"name": "heterps-unit-0"}]


def store_of(*pods: Json, known: bool = True) -> PodStore:
    store = PodStore()
    store.set_resources({"card": unit_resource(card_pool()["spec"])})
    store.know_job("ml", "a", known=known)
    for pod in pods:
        store.put(copy.deepcopy(pod))
    return store


def test_a_pod_occupies_as_many_units_as_it_claims_of_the_pool_s_template() -> None:
    pod = claiming_pod("w", claims=2)
    store = store_of(pod)
    stored = store.get("ml", "w")
    assert stored is not None
    charge = store.charge(stored)
    assert charge == Charge("card", device_resource(CLASS), 2, 1)
    assert store.occupied("ml", "a") == {"card": 2}
    assert store.device_users() == {"w": ("card", 2)}
    complaint = pod_complaint(stored, True, charge)
    assert complaint is not None
    assert f"request 2 of deviceclass.resource.kubernetes.io/{CLASS}" in complaint.message


def test_claims_of_other_templates_occupy_nothing_whatever_the_annotation_says() -> None:
    other_pool, none = claiming_pod("w"), claiming_pod("v", claims=0)
    other_pool["spec"]["resourceClaims"][0]["resourceClaimTemplateName"] = claim_template_name("a", "other", CLASS)
    store = store_of(other_pool, none)
    assert (store.occupied("ml", "a"), store.device_users()) == ({}, {})


def test_pods_of_unknown_jobs_are_orphans_and_ended_ones_use_nothing() -> None:
    ended = {**claiming_pod("ended"), "status": {"phase": "Failed"}}
    assert store_of(claiming_pod("w"), ended, known=False).device_users() == {"w": (ORPHANED, 0)}
    assert store_of(ended).device_users() == {}
