"""The file with the DevicePools of an operator that has rights in namespaces alone (docs/decisions/0035-namespaces.md).

The chart puts it into a ConfigMap. The kubelet replaces the file when the ConfigMap changes, so the operator looks at
it again and again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from collections.abc import Mapping
from pathlib import Path

from heterps_operator.api.pool_list import PoolList, read_pools
from heterps_operator.documents import Json
from heterps_operator.errors import MISSING, FieldError, ManifestError

__all__ = ["PoolFile"]

_LOG = logging.getLogger("heterps.operator")
_LARGEST_FILE = 3 * 2**20  # bytes; no ConfigMap is larger


class PoolFile:
    """The pools of a file, as it was when it was last usable. Thread-safe.

    Args:
        path: the file.

    Raises:
        ManifestError: it cannot be read, or not used at all.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._list = PoolList()
        self._digest = ""
        self._trouble = ""
        self._take(self._read())

    @property
    def pools(self) -> Mapping[str, Json]:
        """The DevicePools, by name. `metadata.uid` changes with the spec, as there is no generation."""
        return {name: _identified(pool) for name, pool in self._list.pools.items()}

    @property
    def refused(self) -> Mapping[str, str]:
        """What is wrong with pools whose last version is not used, by name."""
        return self._list.refused

    def refresh(self) -> frozenset[str]:
        """Read the file again, if its content has changed; return the names of changed pools.

        A file that has become unusable is reported, and what was read before stays.
        """
        with self._lock:
            before = self._list
            try:
                self._take(self._read())
            except ManifestError as error:
                if str(error) != self._trouble:
                    self._trouble = str(error)
                    _LOG.warning("%s; the operator keeps the pools that it has read before", error)
            after = self._list
        names = {*before.pools, *after.pools, *before.refused, *after.refused}
        return frozenset(
            name
            for name in names
            if (before.pools.get(name), before.refused.get(name)) != (after.pools.get(name), after.refused.get(name))
        )

    def _read(self) -> bytes:
        try:
            with self._path.open("rb") as file:
                data = file.read(_LARGEST_FILE + 1)
        except OSError as error:
            raise self._refused(f"cannot be read ({error.strerror})", "check --pools and the volume") from error
        if len(data) > _LARGEST_FILE:
            raise self._refused(f"is larger than {_LARGEST_FILE} bytes", "it must have DevicePools alone")
        return data

    def _take(self, data: bytes) -> None:
        digest = hashlib.sha256(data).hexdigest()
        if digest == self._digest:
            self._trouble = ""
            return
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            raise self._refused(f"is not UTF-8 text (byte {error.start})", "save it as UTF-8") from error
        found = read_pools(text, self._path.name, self._list.pools)
        self._list, self._digest, self._trouble = found, digest, ""
        _LOG.info("%s: the pools are %s", self._path, ", ".join(sorted(found.pools)) or "none")
        for name, problem in sorted(found.refused.items()):
            kept = "its last valid version stays" if name in found.pools else "jobs that name it wait"
            _LOG.warning("%s; %s", problem, kept, extra={"k8s_ref": {"kind": "DevicePool", "name": name}})

    def _refused(self, message: str, fix: str) -> ManifestError:
        return ManifestError([FieldError("", MISSING, message, fix, source=str(self._path))])


def _identified(pool: Json) -> Json:
    digest = hashlib.sha256(json.dumps(pool["spec"], sort_keys=True).encode()).hexdigest()
    return {**pool, "metadata": {**pool["metadata"], "uid": digest}}
