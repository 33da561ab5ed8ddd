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

__all__ = [
    "MOST_LEVELS",
    "Json",
    "known_fields",
    "limit_levels",
    "parse_answer",
    "read_json",
    "write_json",
    "write_text",
]

Json = Mapping[str, Any]

MOST_LEVELS = 64  # of objects and lists in an object of the API; a pod has a dozen
_ANSWER_LEVELS = MOST_LEVELS + 16  # an object in an event of a watch, or in a list, is a few levels down
_PARSED_LEVELS = 500  # Python's parser manages at least these, wherever it is called


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


def parse_answer(text: str | bytes) -> Any:
    """Parse JSON of the API server, however deeply it nests.

    The API server stores up to 10,000 levels, and Python's parser raises an error at about 1,000. One such object must
    not hide all others of a list, or end a watch: what is nested too deeply is left out. The object still has more than
    `MOST_LEVELS` levels and is refused when it is checked (`shapes.check_levels`).

    Raises:
        ValueError: the text is not JSON.
    """
    encoded = text.encode() if isinstance(text, str) else text
    try:
        return json.loads(encoded)
    except RecursionError:
        return json.loads(limit_levels(encoded))


def limit_levels(encoded: bytes) -> bytes:
    """Empty objects and lists `_ANSWER_LEVELS` levels down, unless JSON has so few that Python's parser manages them.

    Args:
        encoded: JSON in UTF-8. What is not JSON is returned as something that is not JSON either.
    """
    if encoded.count(b"[") + encoded.count(b"{") <= _PARSED_LEVELS:
        return encoded
    import numpy as np

    # Users decide what is in it: megabytes of brackets must not take a loop in Python. Without escape sequences, of the
    # same length, every quote begins or ends a text.
    plain = encoded.replace(b"\\\\", b"..").replace(b'\\"', b"..")
    characters = np.frombuffer(plain, np.uint8)
    steps = np.zeros(256, np.int8)
    steps[list(b"[{")], steps[list(b"]}")] = 1, -1
    outside = 1 - np.cumsum(np.equal(characters, ord('"')), dtype=np.int32) % 2
    step = steps[characters] * outside
    level = np.cumsum(step, dtype=np.int32)
    kept = np.less(level, _ANSWER_LEVELS) | (np.equal(level, _ANSWER_LEVELS) & np.equal(step, 1))
    return encoded if kept.all() else np.frombuffer(encoded, np.uint8)[kept].tobytes()


def known_fields(kind: type[Any], document: Json) -> dict[str, Any]:
    """Return the entries of a document that a dataclass declares; a later version may have written others.

    Raises:
        TypeError: the document is not an object.
    """
    if not isinstance(document, Mapping):
        raise TypeError(f"{kind.__name__}: must be an object")
    names = {field.name for field in fields(kind)}
    return {key: value for key, value in document.items() if key in names}
