"""Taints of nodes: which keep pods away, and which announce the end of a node. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from heterps_operator.documents import Json
from heterps_operator.state.values import Departure

__all__ = ["departure", "tolerates", "untolerated"]

_KEEPS_PODS_AWAY = frozenset({"NoSchedule", "NoExecute"})
# Kubernetes sets these on a node in trouble; a condition or a field says the same.
_TROUBLE = "node.kubernetes.io/"
_CORDONED = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}  # what `kubectl cordon` leads to
# Set on a node that is about to be removed, whatever its pods do. Other taints of such nodes, as those that mark spot
# instances, stay for the life of a node.
_REMOVED = (
    "ToBeDeletedByClusterAutoscaler",
    "karpenter.sh/disrupted",
    "karpenter.sh/disruption",  # before Karpenter 1.0
    "aws-node-termination-handler/",  # and what follows: spot-itn, scheduled-maintenance, ...
    "cloud.google.com/impending-node-termination",
    "node.cloudprovider.kubernetes.io/shutdown",
    "node.kubernetes.io/out-of-service",
)


def departure(pod: Json, node: Json) -> Departure | None:
    """Return why a pod has to leave its node soon; None if it may stay.

    A pod that tolerates the taint may stay, as it would be placed there again. So may one where the taint only advises
    against the node (PreferNoSchedule).

    Args:
        pod: with its tolerations.
        node: where it runs.
    """
    name, spec = str(node["metadata"]["name"]), node.get("spec") or {}
    tolerations = (pod.get("spec") or {}).get("tolerations") or ()
    for taint in spec.get("taints") or ():
        removed = str(taint["key"]).startswith(_REMOVED) and str(taint["effect"]) in _KEEPS_PODS_AWAY
        if removed and not tolerates(tolerations, taint):
            return Departure(name, f"has the taint {_text(taint)}", announced=True)
    if spec.get("unschedulable") and not tolerates(tolerations, _CORDONED):
        return Departure(name, "is cordoned")
    return None


def untolerated(node: Json, tolerations: Iterable[Json]) -> str | None:
    """Return the first taint that keeps pods with these tolerations away, formatted as `kubectl taint` does."""
    tolerations = tuple(tolerations)
    for taint in (node.get("spec") or {}).get("taints") or ():
        if str(taint["effect"]) not in _KEEPS_PODS_AWAY or str(taint["key"]).startswith(_TROUBLE):
            continue
        if not tolerates(tolerations, taint):
            return _text(taint)
    return None


def tolerates(tolerations: Iterable[Json], taint: Json) -> bool:
    """Whether one of the tolerations matches a taint; an absent key or effect matches all."""
    key, value, effect = str(taint["key"]), str(taint.get("value") or ""), str(taint["effect"])
    return any(
        toleration.get("effect") in (None, "", effect)
        and toleration.get("key") in (None, "", key)
        and (toleration.get("operator") == "Exists" or str(toleration.get("value") or "") == value)
        for toleration in tolerations
    )


def _text(taint: Json) -> str:
    key, value, effect = taint["key"], taint.get("value"), taint["effect"]
    return f"{key}={value}:{effect}" if value else f"{key}:{effect}"
