"""An operator of another version, as far as stored documents go: there is no other release yet.

    python -m tests.cluster.skewed_operator older|newer|next operator OPTIONS...

Production code is unaffected: what is written is changed on its way to the API server.

    older   stores of a job only what an operator needs that knows nothing else
    newer   adds fields that this version does not know to every document that it writes
    next    stores states of the next version, which this version must leave alone
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

from heterps_operator import __main__
from heterps_operator.controller.jobs.owned_objects import OwnedObjects
from heterps_operator.kubernetes import state
from heterps_operator.kubernetes.api import KubernetesApi
from heterps_operator.kubernetes.state import StoredState
from tests.heterps_operator.helpers.versions import newer, older

__all__ = ["DOCUMENTS", "UNKNOWN"]

Json = dict[str, Any]

UNKNOWN = "laterField"
# Keys of ConfigMaps whose documents get a field that this version does not know; a state gets them in all its objects.
DOCUMENTS = ("plan.json", "run.json", "profile.json")
_PROCESS = "heterps.io/process"


def store_as(change: Callable[[dict[str, str]], dict[str, str]]) -> None:
    """Change the states of jobs."""
    to_data = StoredState.to_data
    setattr(StoredState, to_data.__name__, lambda stored: change(to_data(stored)))


def extend_documents() -> None:
    """Add unknown fields to plans, run configurations, profiles and the annotations of pods."""
    for name in ("create", "replace", "apply"):
        _around(name)
    apply = OwnedObjects.apply

    def apply_extended(owned: OwnedObjects, job: Json, *items: Json) -> None:
        apply(owned, job, *map(extended, items))  # it compares them with what is stored, and replaces old plans

    setattr(OwnedObjects, apply.__name__, apply_extended)


def extended(body: Mapping[str, Any]) -> Json:
    """Return an object whose documents have an unknown field."""
    found: Json = json.loads(json.dumps(body))
    for key in DOCUMENTS:
        if key in (found.get("data") or {}):
            found["data"][key] = _with_unknown(found["data"][key])
    annotations = found["metadata"].get("annotations") or {}
    if _PROCESS in annotations:
        annotations[_PROCESS] = _with_unknown(annotations[_PROCESS])
    return found


def _with_unknown(text: str) -> str:
    return json.dumps({**json.loads(text), UNKNOWN: {"x": [1]}})


def _around(name: str) -> None:
    original = getattr(KubernetesApi, name)

    def replacement(api: KubernetesApi, path: str, body: Mapping[str, Any], *more: Any, **options: Any) -> Any:
        return original(api, path, extended(body), *more, **options)

    setattr(KubernetesApi, name, replacement)


def main(version: str, arguments: list[str]) -> int:
    match version:
        case "older":
            store_as(older)
        case "newer":
            store_as(newer)
            extend_documents()
        case "next":
            state._VERSION += 1
        case _:
            raise SystemExit(f"unknown version {version!r}")
    return __main__.main(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
