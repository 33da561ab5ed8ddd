"""Pools with a DeviceClass: the scheduler allocates devices of ResourceSlices that the tests write.

No kubelet has a driver for them, so the pods that claim devices are placed, and do not start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from heterps_operator.kubernetes.api import KubernetesApi
from heterps_operator.kubernetes.names import claim_template_name, object_path
from heterps_operator.kubernetes.reading.devices import class_devices
from tests.cluster.cluster import POOL_LABEL, Cluster
from tests.cluster.helm import Helm, grant, kubeconfig_of
from tests.cluster.jobs import PATIENCE_SECONDS, ClusterJob
from tests.cluster.kubectl import Kubectl, wait_until
from tests.cluster.operators import NAMESPACE, Operator
from tests.cluster.pods import shell_pod

Json = dict[str, Any]

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]

VERSION = "resource.k8s.io/v1"
DRIVER = "gpu.heterps.test"
NODE = "accelerator-0"
OWN = f'device.attributes["{DRIVER}"]'


def card(name: str, model: str = "x", **fields: Any) -> Json:
    return {
        "name": name,
        "attributes": {
            "model": {"string": model}, "index": {"int": int(name[-1])}, "driverVersion": {"version": "550.54.15"},
            "ecc": {"bool": name == "gpu-0"},
        },
        "capacity": {"memory": {"value": "80Gi" if model == "x" else "16Gi"}},
        **fields,
    }  # fmt: skip


class Devices:
    """Devices of the node, as a driver would publish them."""

    def __init__(self, admin: Kubectl) -> None:
        self._admin = admin
        self._generation = 0
        self.slice: Json = {}

    def publish(self, *cards: Json) -> None:
        """Replace the node's devices."""
        self._generation += 1
        pool = {"name": NODE, "generation": self._generation, "resourceSliceCount": 1}
        self.slice = {
            "apiVersion": VERSION, "kind": "ResourceSlice", "metadata": {"name": "heterps-test"},
            "spec": {"driver": DRIVER, "nodeName": NODE, "pool": pool, "devices": list(cards)},
        }  # fmt: skip
        self._admin.apply(self.slice)

    def define(self, name: str, *expressions: str) -> Json:
        """Create or replace a DeviceClass."""
        selectors = [{"cel": {"expression": text}} for text in expressions]
        found = {"apiVersion": VERSION, "kind": "DeviceClass", "metadata": {"name": name},
                 "spec": {"selectors": selectors}}  # fmt: skip
        self._admin.apply(found)
        return found


@pytest.fixture
def devices(admin: Kubectl, own_cluster: Cluster) -> Iterator[Devices]:
    yield Devices(admin)
    admin("delete", "resourceslices", "heterps-test", "--ignore-not-found")
    admin("delete", "deviceclasses", "--all")


@pytest.fixture
def start(
    admin: Kubectl, helm: Helm, custom_resources: None, make_operator: Callable[..., Operator], tmp_path: Path
) -> Callable[[], Operator]:
    """Start an operator that reads devices, with exactly the rights that the chart grants for it."""

    def started() -> Operator:
        if admin.try_to("get", "namespace", NAMESPACE).code:
            admin("create", "namespace", NAMESPACE)
        account = grant(helm, admin, "devices", NAMESPACE, (), "dynamicResourceAllocation.enabled=true")
        kubeconfig = kubeconfig_of(admin, tmp_path, account, NAMESPACE)
        operator = make_operator("devices", "--dynamic-resource-allocation", kubeconfig=kubeconfig)
        operator.start()
        return operator

    return started


def claiming(name: str, claim: str) -> Json:
    """A pod on the node that uses a ResourceClaim made by hand."""
    pod = shell_pod(name, "true")
    pod["spec"] |= {"nodeSelector": {"kubernetes.io/hostname": NODE},
                    "resourceClaims": [{"name": "devices", "resourceClaimName": claim}]}  # fmt: skip
    pod["spec"]["containers"][0].setdefault("resources", {})["claims"] = [{"name": "devices"}]
    return pod


def claim(name: str, device_class: str, **exactly: Any) -> Json:
    request = {"name": "devices", "exactly": {"deviceClassName": device_class, **exactly}}
    return {"apiVersion": VERSION, "kind": "ResourceClaim", "metadata": {"name": name},
            "spec": {"devices": {"requests": [request]}}}  # fmt: skip


def results(item: Json) -> list[str]:
    """Return the devices that a claim has."""
    allocation = (item.get("status") or {}).get("allocation") or {}
    return sorted(result["device"] for result in (allocation.get("devices") or {}).get("results") or ())


def test_a_job_claims_devices_and_the_pool_has_those_that_no_other_claim_has(
    make_alone: Callable[..., ClusterJob], start: Callable[[], Operator], devices: Devices, api: KubernetesApi
) -> None:
    devices.publish(card("gpu-0"), card("gpu-1"), card("gpu-2", "old"))
    devices.define("cards", f'device.driver == "{DRIVER}" && {OWN}.model == "x"')
    job = make_alone("claims", spec={"training.steps": 1_000_000})
    pool = job.add_pool("card", deviceType="GPU", torchDevice="auto", deviceClassName="cards", maxUnits=8,
                        nodeSelector={POOL_LABEL: "accelerator"})  # fmt: skip
    job.more_pools[0]["spec"].pop("resourceName", None)
    job.job["spec"]["scheduling"]["stages"][0]["pool"] = pool
    start()

    def status() -> Json:
        found: Json = (api.get(object_path(job.more_pools[0])) or {}).get("status") or {}
        return found

    def units(capacity: int, held: int) -> None:
        want = (capacity, held)
        wait_until(
            f"capacity and held units are {want}",
            lambda: (status().get("capacityUnits"), status().get("allocatedUnits")) == want,
            PATIENCE_SECONDS,
            more=lambda: f"{status()}\n{job.story()}",
        )

    job.submit()
    kubectl = job.kubectl
    [worker] = wait_until("the worker has a node", lambda: [
        pod for pod in job.pods("worker") if pod["spec"].get("nodeName")
    ], PATIENCE_SECONDS, more=job.story)  # fmt: skip
    assert worker["spec"]["nodeName"] == NODE
    [of_worker] = kubectl.items("resourceclaims")
    assert of_worker["metadata"]["ownerReferences"][0]["uid"] == worker["metadata"]["uid"]
    assert results(of_worker) in (["gpu-0"], ["gpu-1"])
    [template] = kubectl.items("resourceclaimtemplates")
    assert template["metadata"]["name"] == claim_template_name(job.name, pool, "cards")
    assert template["metadata"]["ownerReferences"][0]["name"] == job.name
    units(2, 1)  # the device of the job's own worker counts as held, not as gone

    # Another pod gets the other device, and gives it back.
    kubectl.apply(claim("stranger", "cards"), claiming("stranger", "stranger"))
    wait_until("the stranger has a device", lambda: results(kubectl.get("resourceclaim", "stranger")))
    units(1, 1)
    [ready] = [c for c in status()["conditions"] if c["type"] == "Ready"]
    assert "1 unit besides 1 in use by claims of other pods" in ready["message"]
    kubectl("delete", "pod", "stranger", "--grace-period=0", "--force")
    kubectl("delete", "resourceclaim", "stranger")
    units(2, 1)

    # The driver withdraws a device; then the class has another selector.
    devices.publish(*(card(name) for name in results(of_worker)))
    units(1, 1)
    devices.define("cards", f"{OWN}.missing")
    wait_until("the pool tells of the selector", lambda: "fails at device" in str(status()["conditions"]))
    units(0, 1)

    # Nothing is left behind.
    job.delete()
    kinds = "resourceclaims,resourceclaimtemplates,pods"
    wait_until("all of the job is gone", lambda: not kubectl.items(kinds), PATIENCE_SECONDS, more=job.story)
    units(0, 0)


EXPRESSIONS = (
    f'{OWN}.model == "x"',
    f'device.driver != "{DRIVER}"',
    f"{OWN}.index > 0 && !{OWN}.ecc",
    f'{OWN}.model.lowerAscii() in ["OLD", "old"]',
    f'device.capacity["{DRIVER}"].memory.compareTo(quantity("40Gi")) > 0',
    f'device.capacity["{DRIVER}"].memory.isLessThan(quantity("40Gi"))',
    f'{OWN}.driverVersion.isGreaterThan(semver("550.9.0"))',
    f'has({OWN}.model) && {OWN}.model.matches("^o")',
    '"model" in device.attributes["other.heterps.test"]',
    'has(device.attributes["other.heterps.test"].model) || true',
    f'"ecc" in {OWN} && {OWN}.ecc',
    f"{OWN}.missing",
    f'{OWN}.model == "x" || {OWN}.missing',
)


def test_selectors_choose_what_the_scheduler_chooses(devices: Devices, kubectl: Kubectl) -> None:
    devices.publish(card("gpu-0"), card("gpu-1"), card("gpu-2", "old"))
    for number, expression in enumerate(EXPRESSIONS):
        name = f"class-{number}"
        found = class_devices(devices.define(name, expression), [devices.slice], (NODE,))
        kubectl.apply(claim(name, name, allocationMode="All"), claiming(name, name))

        def decided(name: str = name) -> list[str] | None:
            """The devices, or nothing once the scheduler has refused the pod."""
            chosen = results(kubectl.get("resourceclaim", name))
            conditions = kubectl.get("pod", name).get("status", {}).get("conditions", ())
            refused = any(c["type"] == "PodScheduled" and c["status"] == "False" for c in conditions)
            return chosen or ([""] if refused else None)

        chosen = [device for device in wait_until(f"{expression} is decided", decided) if device]
        assert sorted(device for _, _, device in found.by_node.get(NODE, ())) == chosen, expression
        [scheduled] = [c for c in kubectl.get("pod", name)["status"]["conditions"] if c["type"] == "PodScheduled"]
        assert bool(found.notes) == ("CEL runtime error" in scheduled.get("message", "")), (expression, scheduled)
        kubectl("delete", "pod", name, "--grace-period=0", "--force")
        kubectl("delete", "resourceclaim", name)
