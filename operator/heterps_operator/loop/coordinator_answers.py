"""Shapes of a coordinator's answers. Pure.

A coordinator runs an image of the user, so its answers are checked like objects of strangers
(`kubernetes.reading.readable`). Only the fields named here are kept: what follows may rely on their types, and what the
operator stores of a job stays small. A member's totals are read and not kept.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from heterps_operator.api.shapes import Shape, fields, items, matching, number, optional, real, table, text
from heterps_operator.control.profiles import check_profile
from heterps_operator.documents import Json
from heterps_operator.state.values import CoordinatorView
from heterps_planner.model.limits import MAX_LAYERS
from heterps_runtime.contract import JobPhase

__all__ = ["read_profiles", "read_status"]

_MOST_MEMBERS = 10_000
_MOST_EVENTS = 1_000
_LARGEST_COUNT = 2**63 - 1
_NAME = text(least=1, most=253)
_MESSAGE = text()
_REASON = matching(r"[A-Za-z]([A-Za-z0-9_,:]{0,126}[A-Za-z0-9_])?", "a reason in CamelCase of at most 128 characters")
_COUNT = number(0, _LARGEST_COUNT)
_INDEX = number(-1, 2**31 - 1)  # -1: of a member without a stage
_SECONDS = real(0.0, 1e12)
_RATE = real(0.0, 1e18)
_ANY_NUMBER = real(-1e300, 1e300)

_MEMBER: dict[str, Shape] = {
    "name": _NAME,
    "role": text(most=32),
    "state": text(most=32),
    "message": _MESSAGE,
    "stage": _INDEX,
    "index": _INDEX,
    "pool": text(most=253),
    "batchSize": _COUNT,
    "stepSeconds": _SECONDS,
    "computeSeconds": _SECONDS,
    "waitSeconds": _SECONDS,
    "silentSeconds": _SECONDS,
}
_TOTALS: dict[str, Shape] = {"operations": _RATE, "memory": _RATE, "round-trip": _SECONDS}
_STAGE: dict[str, Shape] = {
    "name": text(most=253),
    "pool": text(most=253),
    "workers": _COUNT,
    "samplesPerSecond": _RATE,
    "busyFraction": real(0.0, 1.0),
}
_EVENT: dict[str, Shape] = {"time": _SECONDS, "type": text(most=32), "reason": _REASON, "message": _MESSAGE}
_ERROR: dict[str, Shape] = {"reason": _REASON, "message": _MESSAGE}
_CHECKPOINT: dict[str, Shape] = {
    "lastStep": _COUNT,
    "lastTime": _SECONDS,
    "path": text(most=4096),
    "failures": _COUNT,
    "lastError": _MESSAGE,
}
_LISTS: dict[str, tuple[dict[str, Shape], tuple[str, ...], int]] = {
    "members": (_MEMBER, ("name",), _MOST_MEMBERS),
    "stages": (_STAGE, ("name",), MAX_LAYERS),
    "events": (_EVENT, ("time", "type", "reason", "message"), _MOST_EVENTS),
}
_STATUS: dict[str, Shape] = {
    "phase": text(among=tuple(JobPhase)),
    "time": _SECONDS,
    "message": _MESSAGE,
    "generation": _COUNT,
    "committedSteps": _COUNT,
    "totalSteps": _COUNT,
    "epoch": _COUNT,
    "epochs": _COUNT,
    "globalBatchSize": _COUNT,
    "numRows": _COUNT,
    "samples": _COUNT,
    "resumedFromStep": _COUNT,
    "loss": _ANY_NUMBER,
    "lossScale": _RATE,
    "skippedSteps": _COUNT,
    "samplesPerSecond": _RATE,
    "meanSamplesPerSecond": _RATE,
    "secondsTraining": _SECONDS,
    "checkpoint": fields(_CHECKPOINT),
    "rows": fields(dict.fromkeys(("stored", "candidates", "admitted", "evicted"), _COUNT)),
    "evaluation": table(optional(_ANY_NUMBER)),
    "model": text(most=4096),
    "error": fields(_ERROR, required=("reason", "message")),
    **{key: items(fields(shapes, required), most) for key, (shapes, required, most) in _LISTS.items()},
    "members": items(fields({**_MEMBER, "totals": fields(_TOTALS)}, ("name",)), _MOST_MEMBERS),
}
_CHECK_STATUS = fields(_STATUS, required=("phase",))


def read_status(document: Json) -> CoordinatorView:
    """Read a coordinator's `GET /v1/status`.

    Raises:
        UnreadableError: the answer is malformed; the error names the first faulty field.
    """
    _CHECK_STATUS(document, "status")
    kept = {key: document[key] for key in _STATUS if key in document}
    for key, (shapes, _, _) in _LISTS.items():
        if kept.get(key):
            kept[key] = [{name: entry[name] for name in shapes if name in entry} for entry in kept[key]]
    return replace(CoordinatorView.from_json(document), document=kept)


def read_profiles(document: Json) -> dict[str, Any]:
    """Read a coordinator's `GET /v1/profiles`: measured profiles, by pool.

    Raises:
        UnreadableError: a profile is malformed, or has more layers than a planner takes.
    """
    for pool, profile in document.items():
        check_profile(profile, f"profiles[{pool}]")
    return dict(document)
