"""The second half of `make demo-cluster`: a job whose cheapest plan has a CPU stage and an accelerator stage.

CPU limits make the pools unequal, and prices match them. A unit of `cpu` is a core for $0.04 an hour; there are two,
one of them for the parameter server. A card of `accelerator` computes like half a core and costs $0.02; there are
two. The first plan is the cheapest of all, whatever its throughput. The floor that is set then is beyond each pool
alone, but not beyond both together. While the job trains, one worker loses half of its processor, as on a node that
others use too, and its part of the batch moves to the other.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from heterps_operator.state.plan import JobPlan
from tests.cluster.demo_output import print_result, print_text, say, watch
from tests.cluster.errors import ClusterError
from tests.cluster.kubectl import Kubectl, wait_until

__all__ = ["MIXED", "mixed", "show_mixed"]

Json = dict[str, Any]

MIXED = "mixed"
_PRICES = {"cpu": "0.04", "accelerator": "0.02"}
_CARD, _SLOWED = "500m", "250m"  # processor of a card's worker
_FLOOR = 1.05  # times what the better of both pools reaches alone
_STEPS_BEFORE = 20  # until speeds are known
_PATIENCE_SECONDS = 600


def mixed(documents: list[Json]) -> list[Json]:
    """Return the flights job and its pools, changed so that a mix of both pools pays.

    Args:
        documents: of `demo.flights`.
    """
    for document in documents:
        name, spec = document["metadata"]["name"], document["spec"]
        if document["kind"] == "DevicePool":
            spec |= {"pricePerUnitHour": _PRICES[name], "maxUnits": 2, "torchDevice": "cpu"}
            continue
        [cards] = [pool for pool in spec["pools"] if pool["name"] == "accelerator"]
        resources = {"requests": {"cpu": "100m"}, "limits": {"cpu": _CARD}}
        cards["podTemplate"] = {"spec": {"containers": [{"name": "heterps", "resources": resources}]}}
        spec["model"]["arguments"] |= {"hidden": [512, 256]}
        spec["training"] |= {"epochs": 4, "globalBatchSize": 2048}
        spec["objective"] = {"minSamplesPerSecond": 0}
        spec["balancing"] = {"policy": "optimal", "intervalSeconds": 5}
        # The cores are shared with a whole Kubernetes: the measured throughput says little about the pools.
        spec["elasticity"] = {"mode": "Disabled"}
    return documents


def show_mixed(kubectl: Kubectl, documents: list[Json], folder: Path) -> str:
    """Show the plans with and without a floor, train by the second, and show a rebalance; return the last phase.

    Args:
        kubectl: of a cluster with an operator.
        documents: of `mixed`.
        folder: for the manifest; its folder `shared` has the model.

    Raises:
        ClusterError: there is no plan.
    """
    say("\nThe same model, but wider, on pools that CPU limits and prices make unequal. The cheapest plan:")
    _apply(kubectl, documents, folder)
    floor = int(_FLOOR * max(_show_plan(kubectl).values()))
    say(f"kubectl delete heterpsjob {MIXED}")
    print_text(kubectl("delete", "heterpsjob", MIXED))
    say(f"\nNeither pool alone reaches {floor:,} samples/s. With that as spec.objective.minSamplesPerSecond:")
    documents[-1]["spec"]["objective"] = {"minSamplesPerSecond": floor}
    _apply(kubectl, documents, folder)
    _show_plan(kubectl)
    _slow_down(kubectl)
    say(f"kubectl get hpsj {MIXED} --watch")
    phase = watch(kubectl, MIXED)
    print_result(kubectl, MIXED, folder / "shared")
    return phase


def _apply(kubectl: Kubectl, documents: list[Json], folder: Path) -> None:
    manifest = folder / f"{MIXED}.yaml"
    manifest.write_text(yaml.safe_dump_all(documents, sort_keys=False))
    say(f"kubectl apply -f {manifest.name}")
    print_text(kubectl("apply", "--server-side", "--force-conflicts", f"--filename={manifest}"))


def _status(kubectl: Kubectl) -> Json:
    status: Json = json.loads(kubectl("get", "heterpsjob", MIXED, "--output=json")).get("status") or {}
    return status


def _show_plan(kubectl: Kubectl) -> dict[str, float]:
    """Wait for the plan and print it beside its alternatives; return samples/s of each pool alone.

    Raises:
        ClusterError: the job has failed.
    """

    def plan() -> str:
        status = _status(kubectl)
        if status.get("phase") == "Failed":
            raise ClusterError(f"job {MIXED}: {status.get('message')}")
        return str((status.get("plan") or {}).get("configMapName") or "")

    name = wait_until("the job has a plan", plan, _PATIENCE_SECONDS)
    found = json.loads(json.loads(kubectl("get", "configmap", name, "--output=json"))["data"]["plan.json"])
    others = {other["name"]: other for other in found["explanation"]["alternatives"]}
    print_text(f"{'':72} {'samples/s':>10} {'$ per hour':>10} {'$ in all':>9}")
    for title, row in ((f"chosen: {JobPlan.from_json(found).summary}", found), *others.items()):
        if row["feasible"]:
            figures = f"{row['throughput']:10,.0f} {row['costPerHour']:10.2f} {row['cost']:9.6f}"
        else:
            figures = "no plan reaches the floor"
        print_text(f"{title:72} {figures}")
    return {title: row["throughput"] for title, row in others.items() if title.startswith("only ") and row["feasible"]}


def _slow_down(kubectl: Kubectl) -> None:
    """Take half of its processor from a worker of the accelerator stage, and wait until its part of the batch moves."""

    def trains() -> bool:
        return int((_status(kubectl).get("progress") or {}).get("step") or 0) > _STEPS_BEFORE

    wait_until("the job trains", trains, _PATIENCE_SECONDS)
    selector = f"heterps.io/job={MIXED},heterps.io/role=worker,heterps.io/pool=accelerator"
    pods = json.loads(kubectl("get", "pods", f"--selector={selector}", "--output=json"))["items"]
    slowed = max(str(pod["metadata"]["name"]) for pod in pods)
    change = json.dumps({"spec": {"containers": [{"name": "heterps", "resources": {"limits": {"cpu": _SLOWED}}}]}})
    say(f"kubectl patch pod {slowed} --subresource=resize --patch '{change}'")
    print_text(kubectl("patch", "pod", slowed, "--subresource=resize", f"--patch={change}"))
    of_moves = f"--field-selector=involvedObject.name={MIXED},reason=BatchesMoved"
    say("kubectl get events")
    print_text(wait_until("its part has moved", lambda: kubectl("get", "events", of_moves), _PATIENCE_SECONDS))
