"""Problems of pods with HeterPS's label, explained for their authors. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from heterps_operator.api.shapes import UnreadableError
from heterps_operator.documents import Json
from heterps_operator.kubernetes.names import ANNOTATION_PROCESS, LABEL_JOB
from heterps_operator.kubernetes.reading.claims import Charge, has_ended
from heterps_operator.kubernetes.reading.prices import PoolPrice
from heterps_operator.kubernetes.reading.processes import process_of

__all__ = ["Complaint", "failed_turn", "pod_complaint", "price_complaint", "unreadable"]

_UNREADABLE, _IGNORED, _UNITS_DIFFER, _FAILED = "Unreadable", "Ignored", "UnitsDiffer", "TurnFailed"

_LONGEST_ERROR = 200  # characters


@dataclass(frozen=True)
class Complaint:
    """An event about an unusable object."""

    reason: str  # CamelCase, for programs
    message: str  # the problem, its effect, and the fix


def unreadable(kind: str, error: Exception) -> Complaint:
    """Return the complaint about an unreadable object.

    Args:
        kind: kind of the object.
        error: `UnreadableError`, or an error while processing it.
    """
    what = str(error) if isinstance(error, UnreadableError) else f"the operator fails at it ({_described(error)})"
    follows = f"the operator uses the last readable version of the {kind}, if any; correct the object"
    return Complaint(_UNREADABLE, f"{what}; {follows}")


def failed_turn(error: Exception) -> Complaint:
    """Return the complaint about a job whose turn failed unexpectedly."""
    text = f"the operator fails to reconcile this job ({_described(error)}) and retries; running pods continue"
    return Complaint(_FAILED, f"{text}; check the job's ConfigMaps for damage, or report the operator's log")


def pod_complaint(pod: Json, owned: bool, charge: Charge | None) -> Complaint | None:
    """Return the problem of a readable pod, or None.

    Args:
        pod: pod from the API server.
        owned: whether a HeterPSJob owns it.
        charge: units that it occupies.
    """
    if has_ended(pod):
        return None
    try:
        process_of(pod)
    except ValueError as error:
        if owned:
            fix = "HeterPS wrote another value; delete the pod, and its job creates a new one"
        else:
            fix = f"the pod is ignored because no HeterPSJob owns it; remove the label {LABEL_JOB}"
        return Complaint(_UNREADABLE, f"{error}; {fix}")
    if not owned:
        text = f"the label {LABEL_JOB} assigns the pod to a job, but metadata.ownerReferences names no HeterPSJob"
        return Complaint(_IGNORED, f"{text}: it occupies no units of a pool; remove the label")
    if charge is not None and charge.units != charge.claimed:
        says = f"the annotation {ANNOTATION_PROCESS} claims {charge.claimed} units of pool {charge.pool}"
        text = f"{says}, its containers request {charge.units} of {charge.resource}, which is what counts"
        return Complaint(
            _UNITS_DIFFER, f"{text}; correct the resources in spec.podTemplates of its job, or delete the pod"
        )
    return None


def price_complaint(price: PoolPrice) -> Complaint | None:
    """Return why the price that is in force is not a current one, or None."""
    if price.quote.current:
        return None
    return Complaint(price.quote.reason, f"{price.quote.message}; until then ${price.price} stays in force")


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:_LONGEST_ERROR]
