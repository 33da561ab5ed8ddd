"""`make demo-cluster`: the flights job on a real Kubernetes of three nodes, from an empty machine to a trained model.

Everything is as for users: `kubectl apply`, the operator, the job of the README. Only the image differs: pods mount the
checkout and its virtual environment instead.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.building import ROOT
from tests.cluster.cluster import ACCELERATOR, POOL_LABEL, Cluster
from tests.cluster.kubectl import Kubectl, wait_until
from tests.cluster.operators import NAMESPACE, Operator
from tests.cluster.pods import project_template

__all__ = ["flights", "print_result", "print_text", "say", "show", "watch"]

FLIGHTS = ROOT / "examples" / "flights"
_FINAL = ("Succeeded", "Failed", "Suspended")
_PATIENCE_SECONDS = 900


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
        with Operator(cluster.place.kubeconfig, folder) as operator:
            say("kubectl apply -f flights.yaml")
            manifest = folder / "flights.yaml"
            manifest.write_text(yaml.safe_dump_all(flights(shared), sort_keys=False))
            print_text(kubectl("apply", "--server-side", f"--filename={manifest}"))
            say("kubectl get hpsj flights --watch")
            phase = watch(kubectl)
            say("kubectl get pods,devicepools")
            print_text(kubectl("get", "pods", "--output=wide"))
            print_text(kubectl("get", "devicepools"))
            print_result(kubectl, shared)
            if phase != "Succeeded":
                print_text(operator.story())
                return 1
    return 0


def watch(kubectl: Kubectl) -> str:
    """Print the job's line whenever it changes, until it has ended; return the last phase."""
    began, shown = time.monotonic(), ""

    def ended() -> str | None:
        nonlocal shown
        phase = kubectl("get", "heterpsjob", "flights", "--output=jsonpath={.status.phase}")
        head, _, row = kubectl("get", "heterpsjob", "flights").strip().partition("\n")
        line = row.rsplit(maxsplit=1)[0]  # without the age, which always changes
        if not shown:
            print_text(f"  time  {head}")
        if line != shown:
            shown = line
            print_text(f"{time.monotonic() - began:5.0f}s  {row}")
        return phase if phase in _FINAL else None

    return wait_until("the job has ended", ended, _PATIENCE_SECONDS)


def print_result(kubectl: Kubectl, shared: Path) -> None:
    """Print what came out, and the bill."""
    status = json.loads(kubectl("get", "heterpsjob", "flights", "--output=jsonpath={.status}"))
    evaluation, cost = status.get("evaluation") or {}, status.get("cost") or {}
    say(f"{status['phase']}: {status.get('message') or 'the job is done'}")
    print_text(f"held-out AUC {evaluation.get('auc')}, log loss {evaluation.get('logLoss')}")
    print_text(f"throughput {status['throughput'].get('samplesPerSecond')} samples/s, plan {status['plan']['summary']}")
    print_text(f"bill ${cost.get('total')}")
    print_text(f"model {shared / 'flights' / 'model'} (in pods: {status.get('model')})")


def say(line: str) -> None:
    """Print a command after a prompt, and anything else as it is."""
    print_text(f"\n$ {line}" if line.startswith(("kubectl", "heterps", "helm")) else line)


def print_text(text: str) -> None:
    """Print at once."""
    sys.stdout.write(text.rstrip("\n") + "\n")
    sys.stdout.flush()
