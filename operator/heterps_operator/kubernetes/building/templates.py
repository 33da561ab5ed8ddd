"""Merging of pod templates, layer over layer: pure, for documents of any shape.

Users write templates that no schema has checked, so nothing here relies on theirs: where two layers disagree about
the type of a field, the upper one wins, and the API server judges the result.
"""

from __future__ import annotations

import copy
import posixpath
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

__all__ = ["merge", "named"]

# Lists of named things, and what names them; all other lists are replaced as a whole.
_KEYS: dict[str, tuple[str, ...]] = {
    "containers": ("name",),
    "env": ("name",),
    "hostAliases": ("ip",),
    "imagePullSecrets": ("name",),
    "initContainers": ("name",),
    "ports": ("containerPort", "protocol"),
    "tolerations": ("key", "operator", "value", "effect"),
    "volumeDevices": ("devicePath",),
    "volumeMounts": ("mountPath",),
    "volumes": ("name",),
}
# The rest are unions of one field each (a variable has value or valueFrom): two of them merged would be neither.
_MERGED_INSIDE = frozenset({"containers", "initContainers"})


def merge(lower: Any, upper: Any, field: str = "") -> Any:
    """One layer over another: mappings are merged, lists of named things by name; null removes a field.

    Args:
        lower: the document underneath.
        upper: what wins.
        field: the name under which both stand.

    Returns:
        A new document that shares nothing with the two.
    """
    if isinstance(lower, Mapping) and isinstance(upper, Mapping):
        result = {str(key): copy.deepcopy(value) for key, value in lower.items()}
        for key, value in upper.items():
            if value is None:
                result.pop(str(key), None)
            else:
                result[str(key)] = merge(result.get(str(key)), value, str(key))
        return result
    if isinstance(upper, Mapping):  # over nothing, so that nulls inside it go too
        return merge({}, upper, field)
    if isinstance(upper, Sequence) and not isinstance(upper, str) and field in _KEYS:
        below = lower if isinstance(lower, Sequence) and not isinstance(lower, str) else ()
        return _merge_named(below, upper, field)
    return copy.deepcopy(upper)


def named(items: Any, name: str) -> dict[str, Any]:
    """The entry of a list that has this name, empty if there is none."""
    entries = items if isinstance(items, Sequence) and not isinstance(items, str) else ()
    return next((dict(item) for item in entries if isinstance(item, Mapping) and item.get("name") == name), {})


def _merge_named(lower: Sequence[Any], upper: Sequence[Any], field: str) -> list[Any]:
    result: list[Any] = []
    places: dict[Hashable, int] = {}
    for item in (*lower, *upper):
        key = _key(item, field)
        place = places.get(key) if key is not None else None
        if place is None:
            if key is not None:
                places[key] = len(result)
            result.append(merge({}, item) if isinstance(item, Mapping) else copy.deepcopy(item))
        else:
            # The first of two mounts or volumes of one name would be refused: also within one layer the last one holds.
            result[place] = merge(result[place] if field in _MERGED_INSIDE else {}, item)
    return result


def _key(item: Any, field: str) -> Hashable:
    """What names an entry; None if nothing does, and it stands for itself."""
    if not isinstance(item, Mapping):
        return None
    values: list[str] = []
    for part in _KEYS[field]:
        value = item.get(part)
        if part == "mountPath" and isinstance(value, str):
            value = posixpath.normpath(value)
        values.append("TCP" if part == "protocol" and value is None else repr(value))
    return None if values[0] == "None" and field != "tolerations" else tuple(values)
