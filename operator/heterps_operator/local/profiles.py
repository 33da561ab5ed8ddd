"""Cache of measured profiles in local files."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from heterps_operator.control.profiles import is_profile, profile_digest
from heterps_operator.documents import Json, read_json, write_json
from heterps_operator.errors import StateError

__all__ = ["ProfileCache"]


class ProfileCache:
    """Profiles of earlier runs in files, keyed by their inputs.

    Args:
        folder: folder of the files.
        configuration: the run configuration: manifests with defaults, and the search path of the model's code.
    """

    def __init__(self, folder: Path, configuration: Json) -> None:
        self._folder = folder
        self._configuration = configuration

    def load(self, pools: Sequence[str]) -> dict[str, Any]:
        """Return the stored profiles of these pools; a damaged one is ignored, so that it is measured again."""
        found = {}
        for pool in pools:
            try:
                document = read_json(self._path(pool))
            except StateError:
                continue
            if is_profile(document):
                found[pool] = document
        return found

    def save(self, pool: str, profile: Json) -> None:
        """Store a profile."""
        self._folder.mkdir(parents=True, exist_ok=True)
        write_json(self._path(pool), profile)

    def _path(self, pool: str) -> Path:
        entrypoint = str(self._configuration["job"]["spec"]["model"]["entrypoint"])
        source = _source_digest(entrypoint, self._configuration.get("pythonPath") or ())
        digest = profile_digest(self._configuration, pool, source)
        return self._folder / f"{re.sub(r'[^A-Za-z0-9.-]', '_', pool)}-{digest}.json"


def _source_digest(entrypoint: str, python_path: Sequence[str]) -> str:
    """Return the digest of the entrypoint's source file; empty if it is not found.

    The module is not imported; its file is searched in the folders of the run configuration and on sys.path.
    """
    parts = entrypoint.partition(":")[0].split(".")
    for folder in [*python_path, *sys.path]:
        base = Path(folder or ".", *parts)
        for path in (base.with_suffix(".py"), base / "__init__.py"):
            if path.is_file():
                return hashlib.sha256(path.read_bytes()).hexdigest()
    return ""
