"""`make demo-cluster`: the flights job on a real Kubernetes of three nodes, from an empty machine to a trained model.

Everything is as for users: `kubectl apply`, the operator, the job of the README. Only the image differs: pods mount the
checkout and its virtual environment instead.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from tests.cluster.building import ROOT
from tests.cluster.cluster import ACCELERATOR, POOL_LABEL, Cluster
from tests.cluster.demo_output import print_result, print_text, say, watch
from tests.cluster.faults import LASTING
from tests.cluster.mixed_demo import MIXED, mixed, show_mixed
from tests.cluster.operators import NAMESPACE, Operator
from tests.cluster.pods import project_template

__all__ = ["flights", "show"]

FLIGHTS = ROOT / "examples" / "flights"


def flights(shared: Path, name: str = "flights") -> list[dict[str, Any]]:
    """Return the pools and the job of examples/flights, adapted to this cluster.

    Args:
        shared: folder of this machine for checkpoints and the model; all pods mount it.
        name: name of the job.
    """
    documents = list(yaml.safe_load_all((FLIGHTS / "job.yaml").read_text()))
    template = project_template()
    [container] = template["spec"]["containers"]
    container["env"].append({"name": "PYTHONPATH", "value": str(FLIGHTS)})
    container["volumeMounts"].append({"name": "shared", "mountPath": "/shared"})
    template["spec"]["volumes"].append({"name": "shared", "hostPath": {"path": str(shared)}})
    for document in documents:
        spec = document["spec"]
        if document["kind"] == "DevicePool":
            spec["nodeSelector"] = {POOL_LABEL: document["metadata"]["name"]}
            if spec["deviceType"] != "CPU":
                spec["resourceName"] = ACCELERATOR
                # By another label than the cores. Pools that select by one label are known to have different nodes, and
                # are measured at the same time; these nodes share the cores of one machine.
                spec["nodeSelector"] = {"kubernetes.io/hostname": "accelerator-0"}
            continue
        document["metadata"]["name"] = name
        spec["image"] = container.pop("image")
        spec["podTemplates"] = {"all": template}
        spec["data"] |= {"train": str(FLIGHTS / "data" / "train"), "evaluation": str(FLIGHTS / "data" / "test")}
        spec["checkpoint"]["path"] = f"/shared/{name}"
        # Pods share this machine's two cores with a whole Kubernetes.
        spec["objective"] = {"minSamplesPerSecond": 5000}
    return documents


def show(folder: Path) -> int:
    """Run the demonstration; return the exit code."""
    shared = folder / "shared"
    shared.mkdir(parents=True, exist_ok=True)
    with Cluster(name="demo", say=say) as cluster, cluster.entered():
        kubectl = cluster.kubectl
        say("kubectl get nodes")
        print_text(kubectl("get", "nodes", f"--label-columns={POOL_LABEL}"))
        say("kubectl apply -f crds/")
        print_text(kubectl("apply", "--server-side", f"--filename={ROOT / 'crds'}"))
        kubectl("wait", "--for=condition=Established", f"--filename={ROOT / 'crds'}", "--timeout=300s")
        kubectl("create", "namespace", NAMESPACE)
        say("heterps operator &")
        with Operator(cluster.place.kubeconfig, folder, *LASTING) as operator:
            say("kubectl apply -f flights.yaml")
            manifest = folder / "flights.yaml"
            manifest.write_text(yaml.safe_dump_all(flights(shared), sort_keys=False))
            print_text(kubectl("apply", "--server-side", f"--filename={manifest}"))
            say("kubectl get hpsj flights --watch")
            phase = watch(kubectl, "flights")
            say("kubectl get pods,devicepools")
            print_text(kubectl("get", "pods", "--output=wide"))
            print_text(kubectl("get", "devicepools"))
            print_result(kubectl, "flights", shared)
            if phase == "Succeeded":
                phase = show_mixed(kubectl, mixed(flights(shared, MIXED)), folder)
            if phase != "Succeeded":
                print_text(operator.story())
                return 1
    return 0
