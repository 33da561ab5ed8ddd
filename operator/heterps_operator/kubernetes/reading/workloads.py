"""Kueue's Workloads as requests for quota. Pure.

A Workload that cannot be read is a request without a name, which `control.queueing` withdraws.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from heterps_operator.documents import Json
from heterps_operator.kubernetes.names import ANNOTATION_PROCESSES, ANNOTATION_REQUEST, workload_name
from heterps_operator.state.values import QuotaRequest

__all__ = ["read_request", "reclaimable_pods"]


def read_request(job: str, workload: Json) -> QuotaRequest:
    """Return the request that a Workload of a job is.

    Args:
        job: name of the job.
        workload: the Workload from the API server.
    """
    metadata, status = workload["metadata"], workload.get("status") or {}
    name = str((metadata.get("annotations") or {}).get(ANNOTATION_REQUEST) or "")
    if metadata["name"] != workload_name(job, name):
        name = ""  # its annotation was edited, and requests are withdrawn by name
    conditions = {str(c.get("type")): c for c in status.get("conditions") or () if isinstance(c, Mapping)}
    reserved, admitted, evicted = (
        conditions.get(kind, {}).get("status") == "True" for kind in ("QuotaReserved", "Admitted", "Evicted")
    )
    inactive = (workload.get("spec") or {}).get("active") is False
    waits = conditions.get("Evicted" if evicted and reserved else "QuotaReserved", {})
    message = str(waits.get("message") or "")
    if inactive:
        message = "its Workload is inactive: an administrator, or Kueue, has set spec.active to false"
    gone = {
        str(entry.get("name")): int(entry.get("count") or 0)
        for entry in status.get("reclaimablePods") or ()
        if isinstance(entry, Mapping)
    }
    names = [kept for each, members in _sets(workload).items() for kept in members[: len(members) - gone.get(each, 0)]]
    return QuotaRequest(name, frozenset(names), reserved, admitted, evicted and reserved, inactive, message)


def reclaimable_pods(workload: Json, processes: frozenset[str]) -> list[dict[str, Any]]:
    """Return the `status.reclaimablePods` of a Workload of which these processes are gone, too.

    Kueue knows numbers, not names: of each pod set, only the last processes can be given back.
    """
    reclaimed = (workload.get("status") or {}).get("reclaimablePods") or ()
    before = {str(entry["name"]): int(entry["count"]) for entry in reclaimed}
    result = []
    for name, members in _sets(workload).items():
        count = before.get(name, 0)
        while count < len(members) and members[len(members) - 1 - count] in processes:
            count += 1
        if count:
            result.append({"name": name, "count": count})
    return result


def _sets(workload: Json) -> dict[str, list[str]]:
    """Names of the processes by pod set; empty if the annotation was edited."""
    try:
        text = (workload["metadata"].get("annotations") or {}).get(ANNOTATION_PROCESSES)
        found = json.loads(str(text))
        sets = {str(name): [str(member) for member in members] for name, members in found.items()}
        counts = {str(entry["name"]): int(entry["count"]) for entry in workload["spec"]["podSets"]}
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
        return {}
    return sets if {name: len(members) for name, members in sets.items()} == counts else {}
