"""Merging of pod templates, for documents of any shape. Pure.

No schema checks the users' templates, so this module does not rely on their shape: if two layers disagree about the
type of a field, the upper one wins, and the API server validates the result.
"""

from __future__ import annotations

import copy
import posixpath
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

__all__ = ["merge", "named"]

# Lists of named objects, and their keys; all other lists are replaced as a whole.
_KEYS: dict[str, tuple[str, ...]] = {
    "claims": ("name", "request"),
    "containers": ("name",),
    "env": ("name",),
    "hostAliases": ("ip",),
    "imagePullSecrets": ("name",),
    "initContainers": ("name",),
    "ports": ("containerPort", "protocol"),
    "resourceClaims": ("name",),
    "tolerations": ("key", "operator", "value", "effect"),
    "volumeDevices": ("devicePath",),
    "volumeMounts": ("mountPath",),
    "volumes": ("name",),
}
# The rest are unions of one field each (a variable has value or valueFrom): merging two of them would be invalid.
_MERGED_INSIDE = frozenset({"containers", "initContainers"})


def merge(lower: Any, upper: Any, field: str = "") -> Any:
    """Merge one layer over another: mappings by key, lists of named objects by name; null removes a field.

    Args:
        lower: the document underneath.
        upper: the document that wins.
        field: the field that holds both.

    Returns:
        A new document that shares nothing with the two.
    """
    if isinstance(lower, Mapping) and isinstance(upper, Mapping):
        result = {str(key): value for key, value in lower.items()}
        merged = set()
        for name, value in ((str(key), value) for key, value in upper.items()):
            if value is None:
                result.pop(name, None)
            else:
                result[name] = merge(result.get(name), value, name)
                merged.add(name)
        # Each value is copied once, not again on every level above it.
        return {name: value if name in merged else copy.deepcopy(value) for name, value in result.items()}
    if isinstance(upper, Mapping):  # merged over an empty mapping, so that nested nulls are removed too
        return merge({}, upper, field)
    if isinstance(upper, Sequence) and not isinstance(upper, str) and field in _KEYS:
        below = lower if isinstance(lower, Sequence) and not isinstance(lower, str) else ()
        return _merge_named(below, upper, field)
    return copy.deepcopy(upper)


def named(items: Any, name: str) -> dict[str, Any]:
    """Return the entry of a list with this name, or an empty one."""
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
            # Two mounts or volumes of the same name would be refused: within one layer too, the last one wins.
            result[place] = merge(result[place] if field in _MERGED_INSIDE else {}, item)
    return result


def _key(item: Any, field: str) -> Hashable:
    """Return the identifying key of an entry; None if it has none."""
    if not isinstance(item, Mapping):
        return None
    values: list[str] = []
    for part in _KEYS[field]:
        value = item.get(part)
        if part == "mountPath" and isinstance(value, str):
            value = posixpath.normpath(value)
        values.append("TCP" if part == "protocol" and value is None else repr(value))
    return None if values[0] == "None" and field != "tolerations" else tuple(values)
