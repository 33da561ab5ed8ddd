"""JSON documents, and files that are replaced atomically.

A file is replaced atomically (write aside, flush to the disk, rename, flush the folder), so that a reader sees the old
or the new state and never a partial one, even if a process is killed or the power fails.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from heterps_operator.errors import StateError
from heterps_runtime.disk import sync_folder

__all__ = ["Json", "known_fields", "read_json", "write_json", "write_text"]

Json = Mapping[str, Any]


def write_json(path: Path, document: Json, *, mode: int = 0o644) -> None:
    """Replace a JSON file atomically.

    Args:
        path: the file; its folder must exist.
        document: what to write.
        mode: permissions of the file, set before the first write.
    """
    write_text(path, json.dumps(document, indent=1) + "\n", mode=mode)


def write_text(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Replace a UTF-8 text file atomically.

    Args:
        path: the file; its folder must exist.
        text: what to write.
        mode: permissions of the file, set before the first write.

    Raises:
        OSError: the file cannot be written.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
        sync_folder(path.parent)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def read_json(path: Path) -> dict[str, Any] | None:
    """Read a JSON file; None if it does not exist.

    Raises:
        StateError: the file exists and is not a JSON object.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise StateError(f"{path}: cannot be read ({error}); remove it, or start over with --fresh") from error
    if not isinstance(document, dict):
        raise StateError(f"{path}: is not a JSON object; remove it, or start over with --fresh")
    return document


def known_fields(kind: type[Any], document: Json) -> dict[str, Any]:
    """Return the entries of a document that a dataclass declares; a later version may have written others.

    Raises:
        TypeError: the document is not an object.
    """
    if not isinstance(document, Mapping):
        raise TypeError(f"{kind.__name__}: must be an object")
    names = {field.name for field in fields(kind)}
    return {key: value for key, value in document.items() if key in names}
