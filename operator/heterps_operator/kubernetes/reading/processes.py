"""The annotation `heterps.io/process`, which describes a pod's process. Pure.

Any client that may write a pod may write its annotations, so only text in the form that HeterPS writes is accepted.
"""

from __future__ import annotations

import functools
import json
import re
from dataclasses import asdict
from typing import Any

from heterps_operator.api.shapes import UnreadableError, fields, number, text
from heterps_operator.documents import Json
from heterps_operator.kubernetes.names import ANNOTATION_PROCESS
from heterps_operator.state.values import ProcessSpec
from heterps_runtime.contract import DenseExchange, Role

__all__ = ["process_from", "process_of", "process_text"]

_VERSION = 1  # of the annotation (docs/compatibility.md)
_LONGEST = 2048  # characters of the annotation; HeterPS writes about 200
_MOST_UNITS = 1_000_000  # of a pool (crds/heterps.io_devicepools.yaml)
_MOST_STARTS = 2**31 - 1
_PROCESSES_KNOWN = 16_384
_NAMES = {
    Role.COORDINATOR: re.compile("coordinator"),
    Role.PS: re.compile("ps-[0-9]{1,9}"),
    Role.WORKER: re.compile("worker-[0-9]{1,9}-[0-9]{1,9}"),
    Role.PROFILE: re.compile("profile-[a-z0-9][-a-z0-9.]{0,62}"),
}
_PATH = f"metadata.annotations[{ANNOTATION_PROCESS}]"
_SHAPE = fields(
    {
        "version": number(1, _VERSION),
        "name": text(least=1, most=80),
        "role": text(among=tuple(_NAMES)),
        "stage": number(0, _MOST_STARTS),
        "index": number(0, _MOST_STARTS),
        "pool": text(least=1, most=63),
        "precision": text(least=1, most=16),
        "dense_exchange": text(among=tuple(DenseExchange)),
        "units": number(0, _MOST_UNITS),
        "threads": number(1, _MOST_UNITS),
        "incarnation": number(1, _MOST_STARTS),
        "attempt": number(1, _MOST_STARTS),
    },
    required=("name", "role", "units", "threads", "incarnation", "attempt"),
)
_FIELDS = frozenset(ProcessSpec.__dataclass_fields__)


def process_text(spec: ProcessSpec) -> str:
    """Serialise a process as the annotation's text."""
    return json.dumps({"version": _VERSION, **asdict(spec)}, separators=(",", ":"))


def process_of(pod: Json) -> ProcessSpec:
    """Return the process that a pod runs.

    Raises:
        UnreadableError: the annotation is missing or malformed: another client created or changed the pod.
    """
    return _read((pod["metadata"].get("annotations") or {}).get(ANNOTATION_PROCESS))


def process_from(document: Any, path: str = "") -> ProcessSpec:
    """Parse a process from its JSON object; unknown keys are ignored, as later versions may write more.

    Args:
        document: the object.
        path: path of the object, for messages.

    Raises:
        UnreadableError: a field is missing or malformed.
    """
    _SHAPE(document, path)
    head = f"{path}." if path else ""
    role, name, pool, units = document["role"], document["name"], document.get("pool"), document["units"]
    if not _NAMES[role].fullmatch(name):
        raise UnreadableError(f"{head}name", name, f"the name of a process of the role {role}")
    if units and pool is None:
        raise UnreadableError(f"{head}units", units, "0 where no pool is named")
    known = {key: value for key, value in document.items() if key in _FIELDS}
    return ProcessSpec(**{**known, "role": Role(role)})


@functools.lru_cache(maxsize=_PROCESSES_KNOWN)  # pods are read again and again
def _read(annotation: str | None) -> ProcessSpec:
    text(least=1, most=_LONGEST)(annotation, _PATH)
    assert annotation is not None
    try:
        document = json.loads(annotation)
    except (ValueError, RecursionError) as error:
        raise UnreadableError(_PATH, annotation, "the JSON object that HeterPS writes") from error
    return process_from(document, _PATH)
