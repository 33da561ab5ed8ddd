"""The cluster has the properties that tests assume."""

from __future__ import annotations

import json

from tests.cluster.cluster import ACCELERATOR, POOL_LABEL, Cluster
from tests.cluster.kubectl import Kubectl, wait_until
from tests.cluster.pods import Json, python_pod, shell_pod

# Burns a quarter of a second of processor time, and reports the elapsed time and the share that the kernel grants.
BURN = """
import json, pathlib, time
end, started = time.process_time() + 0.25, time.monotonic()
while time.process_time() < end:
    pass
ratio = (time.monotonic() - started) / 0.25
groups = pathlib.Path("/sys/fs/cgroup")
if (groups / "cpu.max").exists():
    quota, period = (groups / "cpu.max").read_text().split()
else:
    quota, period = ((groups / "cpu" / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
print(json.dumps({"ratio": ratio, "share": int(quota) / int(period)}))
"""


def test_nodes_are_of_two_kinds(own_cluster: Cluster) -> None:
    nodes = {node["metadata"]["name"]: node for node in own_cluster.kubectl.items("nodes")}
    pools = {name: node["metadata"]["labels"][POOL_LABEL] for name, node in nodes.items()}
    assert pools == {"cpu-0": "cpu", "cpu-1": "cpu", "accelerator-0": "accelerator"}
    accelerators = {name: node["status"]["allocatable"].get(ACCELERATOR) for name, node in nodes.items()}
    assert accelerators == {"cpu-0": None, "cpu-1": None, "accelerator-0": "2"}


def test_a_pod_runs_on_the_node_that_it_selects(kubectl: Kubectl, own_cluster: Cluster) -> None:
    kubectl.apply(shell_pod("here", "echo done", nodeSelector={POOL_LABEL: "accelerator"}))
    pod = kubectl.wait_for_phase("here", "Succeeded", "Failed")
    assert (pod["status"]["phase"], pod["spec"]["nodeName"]) == ("Succeeded", "accelerator-0")
    assert kubectl.logs("here") == "done\n"


def test_pods_on_different_nodes_find_each_other_by_name(kubectl: Kubectl, own_cluster: Cluster) -> None:
    kubectl.apply(
        service("group", {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"name": "server"}}),
        service("front", {"ports": [{"port": 80, "targetPort": 9000}], "selector": {"name": "server"}}),
        shell_pod("server", "while true; do echo hello | nc -l -p 9000; done",
                  hostname="first", subdomain="group", nodeName="cpu-0"),
        shell_pod("client", """
            until echo | nc first.group 9000 2>/dev/null | grep hello; do sleep 0.1; done
            until echo | nc front 80 2>/dev/null | grep hello; do sleep 0.1; done
        """, nodeName="cpu-1"),
    )  # fmt: skip
    kubectl.wait_for_phase("client", "Succeeded")
    assert kubectl.logs("client").split() == ["hello", "hello"]


def test_a_limit_makes_a_pod_slower(kubectl: Kubectl, own_cluster: Cluster) -> None:
    kubectl.apply(python_pod("slow", BURN, {"limits": {"cpu": "250m"}}))
    kubectl.wait_for_phase("slow", "Succeeded")
    seen = json.loads(kubectl.logs("slow"))
    # Four times as long if nothing else runs on the machine; longer otherwise.
    assert seen["ratio"] > 2
    assert seen["share"] == 0.25


def test_accelerators_are_counted(kubectl: Kubectl, own_cluster: Cluster) -> None:
    def user(name: str) -> Json:
        pod = shell_pod(name, "sleep 600")
        pod["spec"]["containers"][0]["resources"] = {"limits": {ACCELERATOR: "1"}}
        return pod

    kubectl.apply(user("first"), user("second"))
    for name in ("first", "second"):
        assert kubectl.wait_for_phase(name, "Running")["spec"]["nodeName"] == "accelerator-0"
    kubectl.apply(user("third"))

    def refusal() -> str | None:
        conditions = kubectl.get("pod", "third")["status"].get("conditions", [])
        return next((c["message"] for c in conditions if c["type"] == "PodScheduled" and c["status"] == "False"), None)

    assert f"Insufficient {ACCELERATOR}" in wait_until("the third pod is refused", refusal)
    kubectl("delete", "pod", "first")
    kubectl.wait_for_phase("third", "Running")


def test_a_pod_has_the_project_and_its_packages(kubectl: Kubectl, own_cluster: Cluster) -> None:
    program = "import torch, heterps_runtime.contract; print(torch.ones(2, 3).sum().item())"
    kubectl.apply(python_pod("torch", program))
    kubectl.wait_for_phase("torch", "Succeeded")
    assert kubectl.logs("torch") == "6.0\n"


def test_memory_beyond_the_limit_kills(kubectl: Kubectl, own_cluster: Cluster) -> None:
    kubectl.apply(python_pod("greedy", "bytearray(200_000_000)", {"limits": {"memory": "64Mi"}}))
    [container] = kubectl.wait_for_phase("greedy", "Failed")["status"]["containerStatuses"]
    assert container["state"]["terminated"]["reason"] == "OOMKilled"


def service(name: str, spec: Json) -> Json:
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}
