"""Parts of requests to an API server: their addresses, the pauses between attempts, their names in metrics."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

__all__ = ["pause_before", "resource_of", "target_of"]

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.2, 3.0


def target_of(path: str, query: Mapping[str, Any]) -> str:
    """Return a path with its query, without empty parameters."""
    text = urlencode({key: value for key, value in query.items() if value != ""})
    return f"{path}?{text}" if text else path


def pause_before(target: str, attempt: int) -> float:
    """Return the pause before the next attempt in seconds: exponential, with jitter between requests and processes."""
    longest = min(_FIRST_PAUSE_SECONDS * 2.0**attempt, _LONGEST_PAUSE_SECONDS)
    digest = hashlib.sha256(f"{os.getpid()} {target} {attempt}".encode()).digest()
    return longest * (0.5 + 0.5 * digest[0] / 255)


def resource_of(path: str) -> str:
    """Return the kind of object in a path, `pods` or `pods/log`: few distinct values, for metrics."""
    parts = path.strip("/").split("/")
    parts = parts[2:] if parts[0] == "api" else parts[3:]  # /api/v1/..., /apis/GROUP/VERSION/...
    if len(parts) > 2 and parts[0] == "namespaces":
        parts = parts[2:]
    return "/".join([*parts[:1], *parts[2:3]])
