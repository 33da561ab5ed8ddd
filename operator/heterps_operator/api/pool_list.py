"""DevicePools in a file, for an operator without the right to read those of the API server. Pure.

The file has the documents that `kubectl apply` would take, and they are validated in the same way.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from heterps_operator.api.schema import load_schemas
from heterps_operator.api.structure import OBJECT_META
from heterps_operator.api.yaml_source import Document, read_documents
from heterps_operator.errors import MISSING, FieldError, ManifestError
from heterps_runtime.contract import API_VERSION

__all__ = ["PoolList", "read_pools"]

_KIND = "DevicePool"
_NAME = re.compile(OBJECT_META["properties"]["name"]["pattern"])

Json = dict[str, Any]


@dataclass(frozen=True)
class PoolList:
    """The pools of a file, each in one of the two.

    Attributes:
        pools: valid DevicePools with the defaults of their schema, by name.
        refused: what is wrong with the others, by name.
    """

    pools: Mapping[str, Json] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)


def read_pools(text: str, source: str, before: Mapping[str, Json]) -> PoolList:
    """Read the DevicePools of a file.

    Args:
        text: the file's text.
        source: its name, for messages.
        before: pools that were valid before, by name; a pool that is invalid now stays as it was, and some fields
            cannot be changed.

    Raises:
        ManifestError: the text is not YAML, or a document in it is no DevicePool with a name of its own.
    """
    documents, problems = read_documents(text, source)
    names = [_name_of(document, problems) for document in documents]
    for number, (document, name) in enumerate(zip(documents, names, strict=True)):
        if name and name in names[:number]:
            where, what = (
                document.source_of(("metadata", "name")),
                "a DevicePool of this name comes earlier in the file",
            )
            problems.append(FieldError("metadata.name", name, what, "rename or remove one", source=where))
    if problems:
        raise ManifestError(problems)
    schema, pools, refused = load_schemas()[_KIND], dict[str, Json](), dict[str, str]()
    for document, name in zip(documents, names, strict=True):
        value, old = schema.with_defaults(document.value), before.get(name)
        faults = schema.faults(value, MISSING if old is None else old, document.texts)
        if faults:
            title = f"{_KIND} {name}"
            refused[name] = "; ".join(str(fault.problem(title, document.source_of(fault.path))) for fault in faults)
        if old is not None and faults:
            pools[name] = dict(old)
        elif not faults:
            pools[name] = value
    return PoolList(pools, refused)


def _name_of(document: Document, problems: list[FieldError]) -> str:
    """Return the name of a DevicePool, or add why the document is none."""

    def refuse(path: tuple[str, ...], value: object, message: str, fix: str) -> str:
        problems.append(FieldError(".".join(path), value, message, fix, source=document.source_of(path)))
        return ""

    value = document.value
    if not isinstance(value, dict):
        return refuse((), MISSING, "the document is not a mapping of fields", "start it with apiVersion: and kind:")
    for key, expected in (("kind", _KIND), ("apiVersion", API_VERSION)):
        if value.get(key) != expected:
            return refuse((key,), value.get(key, MISSING), f"must be {expected}", f"write {key}: {expected}")
    metadata = value.get("metadata")
    name = metadata.get("name", MISSING) if isinstance(metadata, dict) else MISSING
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        return refuse(("metadata", "name"), name, 'must be a name like "cpu"', "name the pool")
    return name
