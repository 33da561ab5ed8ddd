"""Claims of devices for the pods of a pool with a DeviceClass (dynamic resource allocation). Pure.

Each unit is a claim of one device, which Kubernetes makes from the job's template and deletes with the pod.
"""

from __future__ import annotations

from typing import Any

from heterps_operator.documents import Json
from heterps_operator.kubernetes.names import claim_template_name
from heterps_operator.state.values import ProcessSpec

__all__ = ["claim_spec", "container_claims", "pod_claims"]

_REQUEST = "unit"  # name of the only request in a claim


def claim_spec(device_class: str) -> dict[str, Any]:
    """Return the specification of the claim of one unit, without anything left to defaults."""
    exactly = {"deviceClassName": device_class, "allocationMode": "ExactCount", "count": 1}
    return {"devices": {"requests": [{"name": _REQUEST, "exactly": exactly}]}}


def pod_claims(job: str, pool: Json | None, spec: ProcessSpec) -> dict[str, Any]:
    """Return the fields of a pod's specification that claim its units; none if its pool has no DeviceClass.

    Args:
        job: name of the job.
        pool: the DevicePool; None for the coordinator.
        spec: the process.
    """
    names = _names(pool, spec)
    if pool is None or not names:
        return {}
    template = claim_template_name(job, str(pool["metadata"]["name"]), str(pool["spec"]["deviceClassName"]))
    return {"resourceClaims": [{"name": name, "resourceClaimTemplateName": template} for name in names]}


def container_claims(pool: Json | None, spec: ProcessSpec) -> list[dict[str, str]]:
    """Return `resources.claims` of the runtime's container: the claims of its pod's units."""
    return [{"name": name} for name in _names(pool, spec)]


def _names(pool: Json | None, spec: ProcessSpec) -> list[str]:
    """Return the names of a pod's claims of units."""
    claims = pool is not None and bool(pool["spec"].get("deviceClassName"))
    return [f"heterps-unit-{number}" for number in range(spec.units)] if claims else []
